// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package filetree

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"
)

// readTime bounds the time that a file may take to be read, where the file
// system can bound it.
const readTime = 10 * time.Second

// errKernel is of files that the kernel makes up.
var errKernel = errors.New("it belongs to a file system of the kernel, such as /proc: copy the file to a disk")

// ReadFile returns the content of a regular file in the boundary, no more than most
// bytes of it, and what Stat says of the file. It opens no device, socket or
// pipe for longer than it takes to see that it is one, and does not wait for
// data that is not there.
func (s Boundary) ReadFile(path string, most int64) ([]byte, fs.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, info, fmt.Errorf("it is no regular file but %s", info.Mode().Type())
	}
	if madeUp(path) {
		return nil, info, errKernel
	}
	if err := s.opened(f); err != nil {
		return nil, info, err
	}
	_ = f.SetReadDeadline(time.Now().Add(readTime)) // most file systems need and have no deadline
	data, err := io.ReadAll(io.LimitReader(f, most))
	return data, info, err
}
