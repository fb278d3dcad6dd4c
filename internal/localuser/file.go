// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package localuser

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// ErrRefused is wrapped by errors for files that exist but do not belong to the user.
var ErrRefused = errors.New("refused")

// Owns reports whether a file belongs to the user of this process.
func Owns(info fs.FileInfo) bool {
	uid, ok := Owner(info)
	return ok && uid == os.Geteuid()
}

// Owner returns the user id of a file's owner, if the system provides it.
func Owner(info fs.FileInfo) (uid int, ok bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(st.Uid), true
}

// Open opens a regular file of this process's user for reading. It does not follow a link at the
// end of the path and does not block on a pipe. It rejects a file whose mode has one of the
// forbidden bits.
func Open(path string, forbidden fs.FileMode) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if errors.Is(err, syscall.ELOOP) {
		return nil, fmt.Errorf("%w: it is a symbolic link", ErrRefused)
	}
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = fmt.Errorf("%w: it is not a regular file", ErrRefused)
	case !Owns(info):
		err = fmt.Errorf("%w: it belongs to another user", ErrRefused)
	case info.Mode().Perm()&forbidden != 0:
		err = fmt.Errorf("%w: its mode %04o allows access by others", ErrRefused, info.Mode().Perm())
	}
	if err != nil {
		_ = f.Close() // return the first error
		return nil, err
	}
	return f, nil
}
