// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package objects

import (
	"context"
	"errors"
	"os"
	"sync"
	"syscall"
)

// Output is the standard output. Its first error ends the command: nobody reads what follows.
type Output struct {
	File *os.File
	// End ends the command.
	End context.CancelFunc

	mu  sync.Mutex
	err error
}

func (o *Output) Write(p []byte) (int, error) {
	n, err := o.File.Write(p)
	if err != nil {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.err == nil {
			o.err = err
			o.End()
		}
	}
	return n, err
}

// Fd is that of the file, which may be a terminal.
func (o *Output) Fd() uintptr { return o.File.Fd() }

// Failed returns the first error of a write.
func (o *Output) Failed() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// Closed reports whether an error says only that nobody reads the output any more.
func (o *Output) Closed(err error) bool {
	return errors.Is(o.Failed(), syscall.EPIPE) && (errors.Is(err, syscall.EPIPE) || errors.Is(err, context.Canceled))
}
