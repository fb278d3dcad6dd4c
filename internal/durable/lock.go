// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package durable

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// Unlock releases the flock(2) lock of a file and closes the file. Close alone may not release it:
// a child process that another goroutine starts shares the lock between fork and exec.
func Unlock(f *os.File) error {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_UN)
	if err != nil {
		err = fmt.Errorf("unlock %s: %w", f.Name(), err)
	}
	return errors.Join(err, f.Close())
}
