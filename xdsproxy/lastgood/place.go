// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package lastgood

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/outrigger-mesh/outrigger/internal/durable"
	"github.com/outrigger-mesh/outrigger/internal/localuser"
)

// File names.
const (
	keyFile       = "key"
	snapshotFile  = "snapshot"
	confirmedFile = "confirmed" // time at which the snapshot was last the control plane's state
	identityFile  = "identity"
	lockFile      = "lock"
	temporary     = durable.Suffix
	// legacyFile is the log of earlier versions, which is no longer read.
	legacyFile = "state"
)

// ownDirectory creates a directory that is accessible only to this user. An existing directory must
// belong to this user; its mode is corrected.
func ownDirectory(path string) (err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return refuse(reasonDirectory, "the directory cannot be created: %v", err)
	}
	if err := checkParent(filepath.Dir(path)); err != nil {
		return err
	}
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return refuse(reasonDirectory, "the directory cannot be created: %v", err)
	}
	// Do not follow a link, and check the open directory: it cannot be replaced in between.
	d, err := os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return refuse(reasonDirectory, "it is not a private directory: %v", err)
	}
	defer func() { _ = d.Close() }() // read-only: closing cannot lose data
	info, err := d.Stat()
	if err != nil {
		return refuse(reasonDirectory, "it cannot be examined: %v", err)
	}
	if !localuser.Owns(info) {
		return refuse(reasonDirectory, "it belongs to another user; change its owner to user %d or name another directory", os.Geteuid())
	}
	if info.Mode().Perm() != 0o700 {
		if err := d.Chmod(0o700); err != nil {
			return refuse(reasonDirectory, "others can enter it, and its mode cannot be changed: %v", err)
		}
	}
	return nil
}

// checkParent rejects a directory, or a link in its place, that belongs to a user other than root
// and this one, who could redirect writes.
func checkParent(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return refuse(reasonDirectory, "it cannot be examined: %v", err)
	}
	if uid, ok := localuser.Owner(info); ok && uid != 0 && uid != os.Geteuid() {
		return refuse(reasonDirectory, "%s belongs to user %d; change its owner to user %d or name another directory", path, uid, os.Geteuid())
	}
	return nil
}

// openOwn opens a regular file of this user for reading. It rejects a file that others can read or
// write.
func openOwn(path string) (*os.File, error) {
	f, err := localuser.Open(path, 0o077)
	if errors.Is(err, localuser.ErrRefused) {
		return nil, refuse(reasonDirectory, "%v; remove it, and a new one is created", err)
	}
	return f, err
}

// nodeKey returns the key of the node, creating it if necessary.
func nodeKey(dir string) ([]byte, error) {
	path := filepath.Join(dir, keyFile)
	f, err := openOwn(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err = makeKey(path); err == nil {
			f, err = openOwn(path)
		}
	}
	if err != nil {
		return nil, refuse(reasonKey, "%s is not used: %v", path, err)
	}
	defer func() { _ = f.Close() }() // read-only: closing cannot lose data
	key := make([]byte, keySize+1)
	n, err := f.Read(key)
	if err != nil || n != keySize {
		return nil, refuse(reasonKey, "%s is not used: it has %d bytes (%v), a key has %d; remove it, and a new one is created", path, n, err, keySize)
	}
	return key[:keySize], nil
}

// makeKey creates a key file, unless another agent does so concurrently.
func makeKey(path string) error {
	key := make([]byte, keySize)
	if _, err := rand.Read(key); err != nil {
		return fmt.Errorf("make a key: %w", err)
	}
	tmp, err := durable.Temp(filepath.Dir(path), keyFile+temporary+"*", key, 0o600)
	if err != nil {
		return fmt.Errorf("make %s: %w", path, err)
	}
	defer func() { _ = os.Remove(tmp) }() // may fail after a rename
	// Unlike a rename, a link does not replace a file that another agent has created.
	err = os.Link(tmp, path)
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOTSUP) {
		err = os.Rename(tmp, path) // the file system does not support links
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make %s: %w", path, err)
	}
	return durable.SyncDir(filepath.Dir(path))
}

// lock makes this process the only writer of a directory, until it releases the lock or exits.
func lock(dir string) (*os.File, error) {
	path := filepath.Join(dir, lockFile)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close() // nothing was written
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, refuse(reasonBusy, "another agent stores its state in %s; give each agent a directory of its own", dir)
		}
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return f, nil
}

// removeTemporary removes the temporary files of an agent that was killed. The caller holds the
// lock.
func removeTemporary(dir string) {
	left, _ := os.ReadDir(dir) // on failure, the files remain
	for _, e := range left {
		if strings.Contains(e.Name(), temporary) {
			_ = os.Remove(filepath.Join(dir, e.Name())) // harmless if it remains
		}
	}
}
