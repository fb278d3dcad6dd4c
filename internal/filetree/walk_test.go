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

// look returns the files and the troubles below a directory.
func look(t *testing.T, ctx context.Context, dir string) (files, troubles []string, err error) {
	t.Helper()
	err = Walk{
		Wanted: func(name string) bool { return strings.HasSuffix(name, ".yaml") },
		File: func(path string, _ fs.FileInfo) {
			files = append(files, strings.TrimPrefix(path, dir+"/"))
		},
		Trouble: func(path, reason string) {
			troubles = append(troubles, strings.TrimPrefix(path, dir+"/")+": "+reason)
		},
	}.Run(ctx, dir)
	return files, troubles, err
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// TestCircles walks links that make 2^32 paths, and more than one way to a
// directory.
func TestCircles(t *testing.T) {
	t.Parallel()
	dir, outside := t.TempDir(), t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "z"), 0o700), os.WriteFile(filepath.Join(dir, "z", "one.yaml"), nil, 0o600),
		os.WriteFile(filepath.Join(outside, "two.yaml"), nil, 0o600),
		os.Symlink(".", filepath.Join(dir, "a")), os.Symlink(".", filepath.Join(dir, "b")), os.Symlink("z", filepath.Join(dir, "c")),
		os.Symlink(dir, filepath.Join(outside, "back")), os.Symlink(outside, filepath.Join(dir, "d")), os.Symlink(outside, filepath.Join(dir, "e")))
	files, troubles, err := look(t, t.Context(), dir)
	if want := []string{"z/one.yaml", "d/two.yaml"}; !slices.Equal(files, want) || len(troubles) > 0 || err != nil {
		t.Errorf("files %q, want %q; troubles %q, error %v", files, want, troubles, err)
	}
}

// TestDepth ends the descent.
func TestDepth(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(dir, strings.Repeat("d/", maxDepth+3)), 0o700))
	_, troubles, _ := look(t, t.Context(), dir)
	if len(troubles) != 1 || !strings.Contains(troubles[0], "more than 32 directories deep") {
		t.Errorf("troubles %q", troubles)
	}
}

// TestWalkEnds ends a walk that nobody waits for.
func TestWalkEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "one.yaml"), nil, 0o600))
	if files, _, err := look(t, ctx, dir); len(files) > 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("files %q, error %v", files, err)
	}
}

// TestKernel neither walks nor reads what the kernel makes up.
func TestKernel(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has /proc")
	}
	dir := t.TempDir()
	must(t, os.Symlink("/proc", filepath.Join(dir, "proc")), os.Symlink("/proc/self/status", filepath.Join(dir, "status.yaml")))
	files, troubles, _ := look(t, t.Context(), dir)
	if len(troubles) != 1 || !strings.HasPrefix(troubles[0], "proc: it belongs to a file system of the kernel") || !slices.Equal(files, []string{"status.yaml"}) {
		t.Errorf("files %q, troubles %q", files, troubles)
	}
	if _, _, err := ReadFile(filepath.Join(dir, "status.yaml"), 10); !errors.Is(err, errKernel) {
		t.Errorf("/proc/self/status: %v", err)
	}
}

// TestReadFile refuses what is no file without waiting for it, and reads no
// more than it was asked to.
func TestReadFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	pipe, file := filepath.Join(dir, "pipe"), filepath.Join(dir, "file")
	must(t, syscall.Mkfifo(pipe, 0o600), os.WriteFile(file, []byte("0123456789"), 0o600))
	for _, path := range []string{pipe, "/dev/zero", dir} {
		if _, _, err := ReadFile(path, 10); err == nil || !strings.Contains(err.Error(), "no regular file") {
			t.Errorf("%s: %v", path, err)
		}
	}
	data, info, err := ReadFile(file, 4)
	if string(data) != "0123" || info.Size() != 10 || err != nil {
		t.Errorf("%q, %v, %v", data, info, err)
	}
	if _, _, err := ReadFile(fmt.Sprint(file, "-gone"), 4); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is gone: %v", err)
	}
}
