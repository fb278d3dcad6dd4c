// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package durable

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// Unlock releases the lock that flock(2) took on a file, and closes the file.
// Close alone does not always release it: a child that another goroutine starts
// shares the lock from fork to exec.
func Unlock(f *os.File) error {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_UN)
	if err != nil {
		err = fmt.Errorf("unlock %s: %w", f.Name(), err)
	}
	return errors.Join(err, f.Close())
}
