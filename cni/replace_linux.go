// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package cni

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/outrigger-mesh/outrigger/internal/durable"
)

// exchange replaces a file and returns the content that it replaced, which another program may have
// written in the meantime. Where the file system cannot exchange files, it returns expected.
func exchange(path string, data, expected []byte, mode fs.FileMode) (displaced []byte, err error) {
	dir := filepath.Dir(path)
	temp, err := durable.Temp(dir, filepath.Base(path)+durable.Suffix+"*", data, mode)
	if err != nil {
		return nil, err
	}
	err = unix.Renameat2(unix.AT_FDCWD, temp, unix.AT_FDCWD, path, unix.RENAME_EXCHANGE)
	switch {
	case err == nil:
		displaced, err = os.ReadFile(temp)
		err = errors.Join(err, os.Remove(temp))
	case errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.ENOENT):
		displaced, err = expected, os.Rename(temp, path)
	default:
		_ = os.Remove(temp) // the first error counts
	}
	return displaced, errors.Join(err, durable.SyncDir(dir))
}
