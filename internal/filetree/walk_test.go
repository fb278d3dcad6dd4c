// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package filetree

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// look returns the files and problems below a directory. Links may lead to the directories in also.
func look(t *testing.T, ctx context.Context, dir string, also ...string) (files, troubles []string, err error) {
	t.Helper()
	_, err = Walk{
		Boundary: Boundary{Root: dir, Also: also, Cure: "cure"},
		Wanted:   func(name string) bool { return strings.HasSuffix(name, ".yaml") },
		File: func(path string, _ fs.FileInfo) {
			files = append(files, strings.TrimPrefix(path, dir+"/"))
		},
		Trouble: func(path, reason string) {
			troubles = append(troubles, strings.TrimPrefix(path, dir+"/")+": "+reason)
		},
	}.Run(ctx)
	return files, troubles, err
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// TestLinkCycles walks links that form 2^32 paths, and several paths to one directory.
func TestLinkCycles(t *testing.T) {
	t.Parallel()
	dir, outside := t.TempDir(), t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "z"), 0o700), os.WriteFile(filepath.Join(dir, "z", "one.yaml"), nil, 0o600),
		os.WriteFile(filepath.Join(outside, "two.yaml"), nil, 0o600),
		os.Symlink(".", filepath.Join(dir, "a")), os.Symlink(".", filepath.Join(dir, "b")), os.Symlink("z", filepath.Join(dir, "c")),
		os.Symlink(dir, filepath.Join(outside, "back")), os.Symlink(outside, filepath.Join(dir, "d")), os.Symlink(outside, filepath.Join(dir, "e")))
	files, troubles, err := look(t, t.Context(), dir, outside)
	if want := []string{"z/one.yaml", "d/two.yaml"}; !slices.Equal(files, want) || len(troubles) > 0 || err != nil {
		t.Errorf("files: got %q, want %q; troubles %q, error %v", files, want, troubles, err)
	}
}

// TestDepth checks the limit of the depth.
func TestDepth(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(dir, strings.Repeat("d/", maxDepth+3)), 0o700))
	_, troubles, _ := look(t, t.Context(), dir)
	if len(troubles) != 1 || !strings.Contains(troubles[0], "more than 32 directories deep") {
		t.Errorf("troubles: got %q", troubles)
	}
}

// TestWalkEnds checks that a walk ends when its context is canceled.
func TestWalkEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "one.yaml"), nil, 0o600))
	if files, _, err := look(t, ctx, dir); len(files) > 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("got files %q, error %v; want context.Canceled", files, err)
	}
}

// TestKernel checks that file systems of the kernel are neither walked nor read.
func TestKernel(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has /proc")
	}
	dir := t.TempDir()
	must(t, os.Symlink("/proc", filepath.Join(dir, "proc")), os.Symlink("/proc/self/status", filepath.Join(dir, "status.yaml")))
	files, troubles, _ := look(t, t.Context(), dir, "/")
	if len(troubles) != 1 || !strings.HasPrefix(troubles[0], "proc: it belongs to a file system of the kernel") || !slices.Equal(files, []string{"status.yaml"}) {
		t.Errorf("got files %q, troubles %q", files, troubles)
	}
	if _, _, err := (Boundary{Root: "/"}).ReadFile(filepath.Join(dir, "status.yaml"), 10); !errors.Is(err, errKernel) {
		t.Errorf("ReadFile(/proc/self/status) = %v, want an error", err)
	}
}

// TestReadFile checks that special files are rejected without blocking, and that at most the
// requested number of bytes is read.
func TestReadFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	pipe, file := filepath.Join(dir, "pipe"), filepath.Join(dir, "file")
	must(t, syscall.Mkfifo(pipe, 0o600), os.WriteFile(file, []byte("0123456789"), 0o600))
	for _, path := range []string{pipe, "/dev/zero", dir} {
		if _, _, err := (Boundary{Root: "/"}).ReadFile(path, 10); err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("ReadFile(%s) = %v, want an error", path, err)
		}
	}
	in := Boundary{Root: dir}
	data, info, err := in.ReadFile(file, 4)
	if string(data) != "0123" || info.Size() != 10 || err != nil {
		t.Errorf("ReadFile() = %q, %v, %v", data, info, err)
	}
	if _, _, err := in.ReadFile(fmt.Sprint(file, "-gone"), 4); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("ReadFile of a missing file = %v", err)
	}
}

// TestLinksOutOfDirectory checks that nothing outside the boundary is walked or read. A root that
// is a link, and links inside the boundary as in Kubernetes mounts, are followed.
func TestLinksOutOfDirectory(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	real, outside := filepath.Join(base, "real"), filepath.Join(base, "real-not")
	must(t, os.MkdirAll(filepath.Join(real, "..data"), 0o700), os.Mkdir(outside, 0o700),
		os.WriteFile(filepath.Join(real, "..data", "in.yaml"), []byte("in"), 0o600), os.WriteFile(filepath.Join(outside, "out.yaml"), []byte("out"), 0o600),
		os.Symlink("..data/in.yaml", filepath.Join(real, "in.yaml")), os.Symlink(outside, filepath.Join(real, "dir")),
		os.Symlink("../real-not/out.yaml", filepath.Join(real, "out.yaml")), os.Symlink("/", filepath.Join(real, "all")),
		os.Symlink("real", filepath.Join(base, "root")))
	for _, dir := range []string{real, filepath.Join(base, "root")} {
		files, troubles, err := look(t, t.Context(), dir)
		if !slices.Equal(files, []string{"in.yaml"}) || len(troubles) != 3 || err != nil {
			t.Errorf("%s: got files %q, troubles %q, error %v", dir, files, troubles, err)
		}
		if want := "dir: it is a link to " + outside + ", outside of " + dir + ": cure"; !slices.Contains(troubles, want) {
			t.Errorf("troubles: got %q, want %q", troubles, want)
		}
		if data, _, err := (Boundary{Root: dir}).ReadFile(filepath.Join(dir, "in.yaml"), 10); string(data) != "in" || err != nil {
			t.Errorf("%s: in.yaml: got %q, error %v", dir, data, err)
		}
		var left *OutsideError
		if data, _, err := (Boundary{Root: dir}).ReadFile(filepath.Join(dir, "out.yaml"), 10); !errors.As(err, &left) || data != nil {
			t.Errorf("%s: out.yaml: got %q, error %v; want an error", dir, data, err)
		}
		if data, _, err := (Boundary{Root: dir, Also: []string{outside}}).ReadFile(filepath.Join(dir, "out.yaml"), 10); string(data) != "out" || err != nil {
			t.Errorf("%s: out.yaml with its directory allowed: got %q, error %v", dir, data, err)
		}
	}
}

// TestNeighbours reads the neighbours of a directory with too many names, in any order, and checks
// that the walk is reported as incomplete.
func TestNeighbours(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	crowd := filepath.Join(dir, "a")
	must(t, os.MkdirAll(filepath.Join(dir, "z", "y"), 0o700), os.Mkdir(crowd, 0o700), os.WriteFile(filepath.Join(dir, "z", "y", "one.yaml"), nil, 0o600))
	file := filepath.Join(crowd, "0.yaml")
	must(t, os.WriteFile(file, nil, 0o600))
	for i := range maxNames {
		must(t, os.Link(file, filepath.Join(crowd, fmt.Sprint(i+1)))) // not selected by Wanted
	}
	found, troubles := false, 0
	complete, err := Walk{
		Boundary: Boundary{Root: dir},
		Wanted:   func(name string) bool { return strings.HasSuffix(name, ".yaml") },
		File:     func(path string, _ fs.FileInfo) { found = found || strings.HasSuffix(path, "one.yaml") },
		Trouble:  func(string, string) { troubles++ },
	}.Run(t.Context())
	if !found || complete || troubles != 1 || err != nil {
		t.Errorf("got found %v, complete %v, %d troubles, error %v", found, complete, troubles, err)
	}
}
