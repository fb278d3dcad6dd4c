// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package file

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/durable"
	"github.com/outrigger-mesh/outrigger/internal/filetree"
)

const (
	// tempPrefix begins the names of files that are not in place yet. The dot
	// keeps them from being read. A process that is killed leaves at most one,
	// which the next that writes removes.
	tempPrefix = ".outrigger-new-"
	// Files that users and this store write are readable by others.
	fileMode = 0o644
	dirMode  = 0o755
	// stateMode is that of directories for status and last good objects.
	stateMode = 0o700
	// writable is W_OK of access(2).
	writable = 2
	// abandoned is the age of a file that no writer is still writing.
	abandoned = time.Minute
	// longestName is what file systems take.
	longestName = 255
)

// errChanged means that a file is not what it was when it was read.
var errChanged = errors.New("the file was changed in the meantime")

func isReadOnly(err error) bool {
	return errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS)
}

// fileName joins words to the name of a file. Words that are too long for a
// file system end in a hash instead.
func fileName(end, separator string, words ...string) string {
	name := strings.Join(words, separator)
	if len(name)+len(end) > longestName {
		sum := sha256.Sum256([]byte(name))
		hash := "-" + hex.EncodeToString(sum[:16])
		name = name[:longestName-len(end)-len(hash)] + hash
	}
	return name + end
}

// lockRetry is how often a lock is tried that another process holds.
const lockRetry = 5 * time.Millisecond

// lockDir locks a directory against other processes that write to it, and returns
// what releases the lock. The end of the process releases it too. On a file system
// that has no locks on directories it locks nothing: replaceFile finds most
// changes that others make meanwhile.
func lockDir(ctx context.Context, dir string) (release func(), err error) {
	if err := syscall.Access(dir, writable); err != nil {
		return nil, &fs.PathError{Op: "lock", Path: dir, Err: err}
	}
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	release = func() { _ = durable.Unlock(f) } // nothing was written
	ticker := time.NewTicker(lockRetry)
	defer ticker.Stop()
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil, errors.Is(err, syscall.EBADF), errors.Is(err, syscall.ENOLCK), errors.Is(err, errors.ErrUnsupported):
			return release, nil
		case !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR):
			release()
			return nil, fmt.Errorf("lock %s: %w", dir, err)
		}
		select {
		case <-ctx.Done():
			release()
			return nil, fmt.Errorf("lock %s, which another process holds: %w", dir, ctx.Err())
		case <-ticker.C:
		}
	}
}

// makeDirs makes the directories from root, which exists, down to dir, so that
// they outlive a loss of power.
func makeDirs(root, dir string) error {
	if info, err := os.Stat(dir); err == nil && info.IsDir() {
		return nil
	}
	if dir == root {
		return &fs.PathError{Op: "open", Path: root, Err: fs.ErrNotExist}
	}
	parent := filepath.Dir(dir)
	if err := makeDirs(root, parent); err != nil {
		return err
	}
	if err := os.Mkdir(dir, dirMode); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return durable.SyncDir(parent)
}

// writeTemp writes a durable file that is not in place yet, with the mode and
// the owner of another one if that is not nil.
func writeTemp(dir string, data []byte, like fs.FileInfo) (path string, err error) {
	mode := fs.FileMode(fileMode)
	if like != nil {
		mode = like.Mode().Perm()
	}
	if path, err = durable.Temp(dir, tempPrefix+"*", data, mode); err != nil || like == nil {
		return path, err
	}
	if stat, ok := like.Sys().(*syscall.Stat_t); ok && (int(stat.Uid) != os.Geteuid() || int(stat.Gid) != os.Getegid()) {
		_ = os.Lchown(path, int(stat.Uid), int(stat.Gid)) // only root may, and the file is of use without
	}
	return path, nil
}

// replaceFile replaces the content of a file if it is still the expected one; nil
// means that the file must not exist. If data is nil, it removes the file. A reader
// sees either the old or the new data; when replaceFile returns nil, the new data
// is durable. If the file was changed meanwhile, it is left alone and the error is
// errChanged.
func replaceFile(path string, expected, data []byte) error {
	dir := filepath.Dir(path)
	var err error
	switch {
	case data == nil:
		err = removeFile(path, expected)
	case expected == nil:
		err = createFile(path, data)
	default:
		err = overwriteFile(path, expected, data)
	}
	if err != nil {
		return err
	}
	return durable.SyncDir(dir)
}

// createFile writes a file that must not exist.
func createFile(path string, data []byte) error {
	temp, err := writeTemp(filepath.Dir(path), data, nil)
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(temp) }() // it has its name, or is of no use
	err = os.Link(temp, path)              // never replaces a file, as rename does
	switch {
	case errors.Is(err, fs.ErrExist):
		return errChanged
	case err == nil:
		return nil
	}
	// A file system without links.
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return errChanged
	}
	return os.Rename(temp, path)
}

// overwriteFile writes a file in the place of another one.
func overwriteFile(path string, expected, data []byte) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return errChanged
	}
	if err != nil {
		return err
	}
	temp, err := writeTemp(filepath.Dir(path), data, info)
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(temp) }() // it is in place, or of no use
	if !holds(path, expected) {
		return errChanged
	}
	err = exchange(temp, path)
	switch {
	case errors.Is(err, errors.ErrUnsupported), errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.ENOSYS):
		return os.Rename(temp, path)
	case errors.Is(err, fs.ErrNotExist):
		return errChanged
	case err != nil:
		return err
	}
	// What stood there is now under the other name: it may be newer than
	// what was expected.
	if holds(temp, expected) {
		return nil
	}
	if err := exchange(temp, path); err == nil && !holds(temp, data) {
		_ = exchange(temp, path) // it was changed once more, and the newest stays
	}
	return errChanged
}

// removeFile removes a file that holds what is expected.
func removeFile(path string, expected []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), tempPrefix+"*")
	if err != nil {
		return err
	}
	temp := f.Name()
	defer func() { _ = os.Remove(temp) }() // it is meant to go
	if err := f.Close(); err != nil {
		return err
	}
	if !holds(path, expected) {
		return errChanged
	}
	if err := os.Rename(path, temp); err != nil {
		return err
	}
	if !holds(temp, expected) {
		_ = os.Link(temp, path) // if there is none again, which would be newer
		return errChanged
	}
	return nil
}

// sweep removes what writers left that were killed. Another store may begin below
// the root, with a lock of its own: files that are young may be of its writers.
func sweep(ctx context.Context, root string) {
	none := func(string) bool { return false }
	clean := func(dir string) bool {
		entries, err := os.ReadDir(dir)
		for _, e := range entries {
			if !strings.HasPrefix(e.Name(), tempPrefix) || !e.Type().IsRegular() {
				continue
			}
			if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > abandoned {
				_ = os.Remove(filepath.Join(dir, e.Name())) // it harms nobody, and the next writer tries again
			}
		}
		return err == nil
	}
	// The reader of the directory reports trouble with it.
	_, _ = filetree.Walk{Boundary: filetree.Boundary{Root: root}, Wanted: none, Enter: clean, Trouble: func(string, string) {}}.Run(ctx)
}

func holds(path string, data []byte) bool {
	got, err := readFile(path)
	return err == nil && bytes.Equal(got, data)
}
