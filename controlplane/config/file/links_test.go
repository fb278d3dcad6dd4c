// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package file

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/config/codec"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

func must(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestFileStoreFollowsConfigMaps replaces the ..data link as Kubernetes does for a volume.
func TestFileStoreFollowsConfigMaps(t *testing.T) {
	t.Parallel()
	version := func(dir string, n int) {
		data := fmt.Sprintf("..v%d", n)
		must(t, os.Mkdir(filepath.Join(dir, data), 0o700),
			os.WriteFile(filepath.Join(dir, data, "a.yaml"), []byte(workload("a", fmt.Sprintf("10.0.0.%d", n))), 0o600),
			os.Symlink(data, filepath.Join(dir, "..tmp")),
			os.Rename(filepath.Join(dir, "..tmp"), filepath.Join(dir, "..data")))
	}
	r := follow(t, func(dir string) {
		version(dir, 1)
		must(t, os.Symlink("..data/a.yaml", filepath.Join(dir, "a.yaml")))
	})
	r.wantAddress("a", "10.0.0.1")
	for n := 2; n < 5; n++ {
		version(r.dir, n)
		r.wantAddress("a", fmt.Sprintf("10.0.0.%d", n))
	}
}

// TestFileStoreFollowsItsOwnLink replaces the link that is the directory itself, as git-sync does.
func TestFileStoreFollowsItsOwnLink(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	for n := 1; n <= 2; n++ {
		dir := filepath.Join(base, fmt.Sprint(n))
		must(t, os.MkdirAll(filepath.Join(dir, "sub"), 0o700),
			os.WriteFile(filepath.Join(dir, "sub", "a.yaml"), []byte(workload("a", fmt.Sprintf("10.0.0.%d", n))), 0o600))
	}
	link := filepath.Join(base, "current")
	must(t, os.Symlink("1", link))
	r := followWith(t, Config{Dir: link})
	r.wantAddress("a", "10.0.0.1")
	must(t, os.Symlink("2", link+".new"), os.Rename(link+".new", link))
	r.wantAddress("a", "10.0.0.2")
	// Changes behind the new link must be detected too.
	must(t, os.WriteFile(filepath.Join(base, "2/sub/a.yaml"), []byte(workload("a", "10.0.0.3")), 0o600))
	r.wantAddress("a", "10.0.0.3")
}

// TestFileStoreSurvivesLossOfDirectory checks that objects remain while the directory is
// missing.
func TestFileStoreSurvivesLossOfDirectory(t *testing.T) {
	t.Parallel()
	r := follow(t, nil)
	r.write("a.yaml", workload("a", "10.0.0.1"))
	r.wantAddress("a", "10.0.0.1")
	must(t, os.Rename(r.dir, r.dir+".away"))
	r.wantProblem("config: it cannot be read: ")
	r.wantAddress("a", "10.0.0.1")
	must(t, os.Rename(r.dir+".away", r.dir))
	r.eventually("the directory is read again", func() bool { return len(r.Problems()) == 0 })
	r.write("a.yaml", workload("a", "10.0.0.2"))
	r.wantAddress("a", "10.0.0.2")
}

func TestFileStoreOddFiles(t *testing.T) {
	t.Parallel()
	r := follow(t, func(dir string) {
		must(t, syscall.Mkfifo(filepath.Join(dir, "pipe.yaml"), 0o600), // opening it would block
			os.Symlink("nowhere", filepath.Join(dir, "dangling.yaml")),
			os.Symlink("loop.yaml", filepath.Join(dir, "loop.yaml")),
			os.Symlink(".", filepath.Join(dir, "cycle")),
			os.Mkdir(filepath.Join(dir, "dir.yaml"), 0o700),
			os.WriteFile(filepath.Join(dir, "dir.yaml", "a.yaml"), []byte(workload("a", "10.0.0.1")), 0o600),
			os.WriteFile(filepath.Join(dir, "huge.yaml"), make([]byte, codec.MaxFileSize+1), 0o600))
	})
	r.wantAddress("a", "10.0.0.1")
	r.wantProblem("huge.yaml:1: the file is larger than 16 MiB, the limit for one file: split it into several files")
	r.wantProblem("loop.yaml: it cannot be read: ")
}

// TestFileStoreLinkCycles follows a directory whose links form 2^32 paths, and one with links to
// /proc and /sys.
func TestFileStoreLinkCycles(t *testing.T) {
	t.Parallel()
	r := follow(t, func(dir string) {
		must(t, os.Symlink(".", filepath.Join(dir, "a")), os.Symlink(".", filepath.Join(dir, "b")),
			os.Symlink("/proc", filepath.Join(dir, "proc")), os.Symlink("/proc/kmsg", filepath.Join(dir, "kmsg.yaml")),
			os.WriteFile(filepath.Join(dir, "one.yaml"), []byte(workload("a", "10.0.0.1")), 0o600))
	})
	r.wantAddress("a", "10.0.0.1")
	if runtime.GOOS == "linux" {
		r.wantProblem("proc: it cannot be read: it is a link to /proc, outside of ")
		r.wantProblem("kmsg.yaml: it cannot be read: it is a link to /proc/kmsg, outside of ")
	}
	r.write("one.yaml", workload("a", "10.0.0.2"))
	r.wantAddress("a", "10.0.0.2")
	if !r.Behind().IsZero() {
		t.Error("Behind() is set although the store is idle")
	}
	if got := len(r.Problems()); got > 3 {
		t.Errorf("%d problems, want at most 3: %v", got, r.Problems())
	}
}

// TestFileStoreBehind checks that Behind reports a directory read that does not finish.
func TestFileStoreBehind(t *testing.T) {
	t.Parallel()
	s, err := New(Config{Dir: t.TempDir(), Name: "slow"})
	must(t, err)
	for age, want := range map[time.Duration]bool{0: false, behindAfter + time.Minute: true} {
		began := time.Now().Add(-age)
		s.busy.Store(&began)
		if s.Behind().IsZero() == want {
			t.Errorf("after %v: the store is behind: %v", age, !want)
		}
		a := config.NewAggregate(nil, s)
		if got := len(a.Behind()); (got == 1) != want {
			t.Errorf("after %v: %d stores are behind", age, got)
		}
	}
}

// TestFileStoreManyFiles starts with 2000 files, which is more than any queue can hold.
func TestFileStoreManyFiles(t *testing.T) {
	t.Parallel()
	const files = 2000
	r := follow(t, func(dir string) {
		for i := range files {
			must(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d.yaml", i)),
				[]byte(workload(fmt.Sprintf("w%d", i), "10.0.0.1")), 0o600))
		}
	})
	if got := len(r.List(model.WorkloadEntry, "")); got != files {
		t.Fatalf("%d objects, want %d", got, files)
	}
	start := time.Now()
	r.write("7.yaml", workload("w7", "10.0.0.2"))
	r.wantAddress("w7", "10.0.0.2")
	t.Logf("one change among %d files was detected after %v", files, time.Since(start))
	for i := range files {
		r.write(fmt.Sprintf("%d.yaml", i), workload(fmt.Sprintf("w%d", i), "10.0.0.3"))
	}
	for i := range files {
		r.wantAddress(fmt.Sprintf("w%d", i), "10.0.0.3")
	}
}

func TestNewFileStoreNeedsADirectory(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "f")
	must(t, os.WriteFile(file, nil, 0o600))
	for _, dir := range []string{file, file + "/none", "/does/not/exist"} {
		if _, err := New(Config{Dir: dir}); err == nil {
			t.Errorf("New accepted %s as a directory", dir)
		}
	}
}
