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

// name is that of the anonymous file, by which Read knows it.
const name = "outrigger-key"

// New returns an anonymous file with a random key, which nobody can change.
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

// Read returns the key in an inherited file, given its descriptor, and closes the
// file. A descriptor of anything else is left alone.
func Read(fd int) ([]byte, error) {
	link, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil || !strings.HasPrefix(link, "/memfd:"+name+" ") {
		return nil, fmt.Errorf("descriptor %d is no key in memory", fd)
	}
	f := os.NewFile(uintptr(fd), name)
	key := make([]byte, Size+1)
	// Not from the offset, which all processes share that have the file.
	n, err := f.ReadAt(key, 0)
	_ = f.Close() // it was only read from
	if n != Size {
		return nil, fmt.Errorf("the key in memory has %d bytes, want %d: %w", n, Size, err)
	}
	return key[:Size], nil
}
