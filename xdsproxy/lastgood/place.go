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

// Names of the files.
const (
	keyFile       = "key"
	snapshotFile  = "snapshot"
	confirmedFile = "confirmed" // when the snapshot was last the control plane's state
	identityFile  = "identity"
	lockFile      = "lock"
	temporary     = durable.Suffix
	// legacyFile is the log of earlier versions, which is not read anymore.
	legacyFile = "state"
)

// ownDirectory makes a directory that only this user can enter. One that is
// there already has to be this user's; its mode is set right.
func ownDirectory(path string) (err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return refuse(reasonDirectory, "the directory cannot be made: %v", err)
	}
	if err := checkParent(filepath.Dir(path)); err != nil {
		return err
	}
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return refuse(reasonDirectory, "the directory cannot be made: %v", err)
	}
	// The name is not followed, and checks are of what is open: nobody can
	// put something else there in between.
	d, err := os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return refuse(reasonDirectory, "it is no directory of its own: %v", err)
	}
	defer func() { _ = d.Close() }() // it was only read from
	info, err := d.Stat()
	if err != nil {
		return refuse(reasonDirectory, "it cannot be looked at: %v", err)
	}
	if !localuser.Owns(info) {
		return refuse(reasonDirectory, "it belongs to another user; give it to user %d or name another directory", os.Geteuid())
	}
	if info.Mode().Perm() != 0o700 {
		if err := d.Chmod(0o700); err != nil {
			return refuse(reasonDirectory, "others can enter it, and its mode cannot be changed: %v", err)
		}
	}
	return nil
}

// checkParent refuses a directory, or a link in its place, of a user who is neither root
// nor this one: that user could lead what is written elsewhere.
func checkParent(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return refuse(reasonDirectory, "it cannot be looked at: %v", err)
	}
	if uid, ok := localuser.Owner(info); ok && uid != 0 && uid != os.Geteuid() {
		return refuse(reasonDirectory, "%s belongs to user %d; give it to user %d or name another directory", path, uid, os.Geteuid())
	}
	return nil
}

// openOwn opens a regular file of this user for reading. A file that others
// can read or write is refused.
func openOwn(path string) (*os.File, error) {
	f, err := localuser.Open(path, 0o077)
	if errors.Is(err, localuser.ErrRefused) {
		return nil, refuse(reasonDirectory, "%v; remove it, and a new one is made", err)
	}
	return f, err
}

// nodeKey returns the key of the node, and makes it on first use.
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
	defer func() { _ = f.Close() }() // it was only read from
	key := make([]byte, keySize+1)
	n, err := f.Read(key)
	if err != nil || n != keySize {
		return nil, refuse(reasonKey, "%s is not used: it has %d bytes (%v), a key has %d; remove it, and a new one is made", path, n, err, keySize)
	}
	return key[:keySize], nil
}

// makeKey makes a key file, unless another agent does so at the same time.
func makeKey(path string) error {
	key := make([]byte, keySize)
	if _, err := rand.Read(key); err != nil {
		return fmt.Errorf("make a key: %w", err)
	}
	tmp, err := durable.Temp(filepath.Dir(path), keyFile+temporary+"*", key, 0o600)
	if err != nil {
		return fmt.Errorf("make %s: %w", path, err)
	}
	defer func() { _ = os.Remove(tmp) }() // it may have got its name
	// Unlike a rename, a link does not replace what another one made.
	err = os.Link(tmp, path)
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOTSUP) {
		err = os.Rename(tmp, path) // a file system without links
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make %s: %w", path, err)
	}
	return durable.SyncDir(filepath.Dir(path))
}

// lock makes this process the only one that writes to a directory, until it
// closes the file or ends.
func lock(dir string) (*os.File, error) {
	path := filepath.Join(dir, lockFile)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close() // nothing was written
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, refuse(reasonBusy, "another agent keeps what it knows in %s; give each agent a directory of its own", dir)
		}
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return f, nil
}

// unlock releases the lock. A child of this process that has not started its
// program yet has the file open, too: closing it would not be enough.
func unlock(f *os.File) {
	_ = syscall.Flock(int(f.Fd()), syscall.LOCK_UN) // the end of the process releases it
	_ = f.Close()                                   // nothing was written
}

// removeTemporary removes the files of an agent that ended while it wrote. The
// caller holds the lock.
func removeTemporary(dir string) {
	left, _ := os.ReadDir(dir) // what cannot be listed stays
	for _, e := range left {
		if strings.Contains(e.Name(), temporary) {
			_ = os.Remove(filepath.Join(dir, e.Name())) // it does no harm where it is
		}
	}
}
