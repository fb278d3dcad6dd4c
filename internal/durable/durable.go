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

// Suffix stands between the name of a file and a random number in the name of a
// temporary file of Replace.
const Suffix = ".tmp."

// Replace writes a file, or replaces the one that is there. It is durable when
// Replace returns nil. Links are replaced, not followed.
func Replace(path string, data []byte, mode fs.FileMode) error {
	if err := replace(path, data, mode, true); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// ReplaceFast is Replace for a file that is written anew at each start, and need
// not outlive a loss of power.
func ReplaceFast(path string, data []byte, mode fs.FileMode) error {
	return replace(path, data, mode, false)
}

func replace(path string, data []byte, mode fs.FileMode, sync bool) error {
	temp, err := write(filepath.Dir(path), filepath.Base(path)+Suffix+"*", data, mode, sync)
	if err == nil {
		if err = os.Rename(temp, path); err != nil {
			_ = os.Remove(temp) // the error that counts is the first
		}
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// Temp writes a durable file that is not in place yet, and returns its path: in a
// directory, with a name as os.CreateTemp makes it. Its caller renames it, and
// calls SyncDir.
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
		_ = os.Remove(f.Name()) // the error that counts is the first
		return "", err
	}
	return f.Name(), nil
}

// Commit puts a temporary file, which it closes, in the place of another one. It
// removes the temporary file after an error.
func Commit(f *os.File, path string, mode fs.FileMode) error {
	err := errors.Join(f.Chmod(mode), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // the error that counts is the first
		return fmt.Errorf("write %s: %w", path, err)
	}
	return SyncDir(filepath.Dir(path))
}

// Discard closes and removes a temporary file.
func Discard(f *os.File) error { return errors.Join(f.Close(), os.Remove(f.Name())) }

// SyncDir makes the names in a directory durable.
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
