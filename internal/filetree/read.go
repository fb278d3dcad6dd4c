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

// readTime limits the time to read a file, on file systems that support deadlines.
const readTime = 10 * time.Second

// errKernel reports a file that the kernel generates.
var errKernel = errors.New("it belongs to a file system of the kernel, such as /proc: copy the file to a disk")

// ReadFile returns the content of a regular file in the boundary, at most most bytes, and its
// FileInfo. It rejects devices, sockets and pipes without reading them, and does not wait for data.
func (s Boundary) ReadFile(path string, most int64) ([]byte, fs.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = f.Close() }() // read-only: closing cannot lose data
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, info, fmt.Errorf("it is not a regular file but %s", info.Mode().Type())
	}
	if madeUp(path) {
		return nil, info, errKernel
	}
	if err := s.opened(f); err != nil {
		return nil, info, err
	}
	_ = f.SetReadDeadline(time.Now().Add(readTime)) // most file systems neither need nor support deadlines
	data, err := io.ReadAll(io.LimitReader(f, most))
	return data, info, err
}
