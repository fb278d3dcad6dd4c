// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package memkey

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Size is the size of a key, in bytes.
const Size = 32

// name is the name of the anonymous file, by which Read recognises it.
const name = "outrigger-key"

// New returns an anonymous file with a random key. The file is sealed against changes.
func New() (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("make a key in memory: %w", err)
	}
	f := os.NewFile(uintptr(fd), name)
	var key [Size]byte
	_, err = rand.Read(key[:])
	if err == nil {
		_, err = f.Write(key[:])
	}
	clear(key[:])
	if err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make a key in memory: %w", err), f.Close())
	}
	return f, nil
}

// Read returns the key in the inherited file with the descriptor fd, and closes the file. It does
// not touch a descriptor of any other file.
func Read(fd int) ([]byte, error) {
	link, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil || !strings.HasPrefix(link, "/memfd:"+name+" ") {
		return nil, fmt.Errorf("descriptor %d is not a key in memory", fd)
	}
	f := os.NewFile(uintptr(fd), name)
	key := make([]byte, Size+1)
	// Do not use the file offset, which is shared by all processes that inherit the file.
	n, err := f.ReadAt(key, 0)
	_ = f.Close() // read-only: closing cannot lose data
	if n != Size {
		return nil, fmt.Errorf("the key in memory has %d bytes, want %d: %w", n, Size, err)
	}
	return key[:Size], nil
}
