// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Suffix precedes the random number in the names of Replace's temporary files.
const Suffix = ".tmp."

// Replace creates or replaces a file. The file is durable when Replace returns nil. Links are
// replaced, not followed.
func Replace(path string, data []byte, mode fs.FileMode) error {
	if err := replace(path, data, mode, true); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// ReplaceFast is like Replace, for a file that is rewritten at each start and need not survive a
// power failure.
func ReplaceFast(path string, data []byte, mode fs.FileMode) error {
	return replace(path, data, mode, false)
}

func replace(path string, data []byte, mode fs.FileMode, sync bool) error {
	temp, err := write(filepath.Dir(path), filepath.Base(path)+Suffix+"*", data, mode, sync)
	if err == nil {
		if err = os.Rename(temp, path); err != nil {
			_ = os.Remove(temp) // return the first error
		}
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// Temp writes a durable temporary file and returns its path. The name is derived from pattern as in
// os.CreateTemp. The caller renames the file and calls SyncDir.
func Temp(dir, pattern string, data []byte, mode fs.FileMode) (path string, err error) {
	return write(dir, pattern, data, mode, true)
}

func write(dir, pattern string, data []byte, mode fs.FileMode, sync bool) (path string, err error) {
	f, err := os.CreateTemp(dir, pattern)
	if err != nil {
		return "", err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(mode))
	if sync {
		err = errors.Join(err, f.Sync())
	}
	if err = errors.Join(err, f.Close()); err != nil {
		_ = os.Remove(f.Name()) // return the first error
		return "", err
	}
	return f.Name(), nil
}

// Commit closes a temporary file and renames it to path. If Commit fails, it removes the temporary
// file.
func Commit(f *os.File, path string, mode fs.FileMode) error {
	err := errors.Join(f.Chmod(mode), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // return the first error
		return fmt.Errorf("write %s: %w", path, err)
	}
	return SyncDir(filepath.Dir(path))
}

// Discard closes and removes a temporary file.
func Discard(f *os.File) error { return errors.Join(f.Close(), os.Remove(f.Name())) }

// SyncDir makes the entries of a directory durable.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("sync directory %s: %w", dir, err)
	}
	return nil
}
