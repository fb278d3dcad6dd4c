// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package durable

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestReplace checks that each way to replace a file sets content and mode, replaces links, and
// leaves no temporary files, even after an error.
func TestReplace(t *testing.T) {
	t.Parallel()
	for name, replace := range map[string]func(path string, data []byte, mode fs.FileMode) error{
		"Replace":     Replace,
		"ReplaceFast": ReplaceFast,
		"Temp": func(path string, data []byte, mode fs.FileMode) error {
			temp, err := Temp(filepath.Dir(path), ".part-*", data, mode)
			if err == nil {
				err = os.Rename(temp, path)
			}
			if err != nil {
				_ = os.Remove(temp) // callers do the same
				return err
			}
			return SyncDir(filepath.Dir(path))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			path, other := filepath.Join(dir, "file"), filepath.Join(dir, "other")
			if err := os.WriteFile(other, []byte("other"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(other, path); err != nil {
				t.Fatal(err)
			}
			for i, mode := range []fs.FileMode{0o644, 0o600, 0o666} {
				text := fmt.Sprintf("content %d", i)
				if err := replace(path, []byte(text), mode); err != nil {
					t.Fatal(err)
				}
				info, err := os.Lstat(path)
				got, readErr := os.ReadFile(path)
				if err != nil || readErr != nil || info.Mode() != mode || string(got) != text {
					t.Errorf("got mode %v, text %q, errors %v and %v; want mode %v and %q", info.Mode(), got, err, readErr, mode, text)
				}
			}
			if got, err := os.ReadFile(other); err != nil || string(got) != "other" {
				t.Errorf("the target of the replaced link: got %q, error %v", got, err)
			}
			directory := filepath.Join(dir, "directory")
			if err := os.MkdirAll(filepath.Join(directory, "full"), 0o700); err != nil {
				t.Fatal(err)
			}
			for _, bad := range []string{directory, filepath.Join(dir, "none", "file"), filepath.Join(path, "below")} {
				if err := replace(bad, []byte("x"), 0o600); err == nil {
					t.Errorf("%s was replaced", bad)
				}
			}
			entries, err := os.ReadDir(dir)
			if err != nil || len(entries) != 3 {
				t.Errorf("files: got %v, error %v; want 3", entries, err)
			}
		})
	}
}

func TestDiscard(t *testing.T) {
	t.Parallel()
	f, err := os.CreateTemp(t.TempDir(), "x")
	if err != nil {
		t.Fatal(err)
	}
	if err := Discard(f); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(f.Name()); err == nil {
		t.Error("the file was not removed")
	}
	if err := SyncDir(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("SyncDir of a missing directory returned no error")
	}
}

func TestUnlock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		t.Fatal(err)
	}
	child, err := syscall.Dup(int(f.Fd())) // as in a child process before exec
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Close(child) }()
	if err := Unlock(f); err != nil {
		t.Fatal(err)
	}
	again, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(again.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		t.Errorf("the lock is still held: %v", err)
	}
	if err := Unlock(again); err != nil {
		t.Error(err)
	}
	if err := Unlock(again); err == nil {
		t.Error("Unlock of a closed file returned no error")
	}
}
