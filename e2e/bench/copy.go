// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
)

// copyHelper is the name of the helper that only copies bytes between a Unix
// socket and a TCP address: what a relay costs at least.
const copyHelper = "copy"

// runCopy joins the connections of the socket args[0] to the address args[1] until
// ctx ends. Like the agent, it uses one processor.
func runCopy(ctx context.Context, args []string) error {
	runtime.GOMAXPROCS(1)
	l, err := net.Listen("unix", args[0])
	if err != nil {
		return fmt.Errorf("listen for those whose bytes are copied: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = l.Close() })() // Accept returns the error
	for {
		near, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		far, err := net.Dial("tcp", args[1])
		if err != nil {
			_ = near.Close() // the other end sees it
			return fmt.Errorf("join a connection: %w", err)
		}
		go copyBytes(near, far)
		go copyBytes(far, near)
	}
}

// copyBytes copies until either end closes, and closes both. It reads and
// writes: splicing, which io.Copy would do for connections, is slower for little.
func copyBytes(to, from net.Conn) {
	_, _ = io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, make([]byte, 64<<10)) // either end may close
	_ = to.Close()                                                                                 // by either direction
	_ = from.Close()
}
