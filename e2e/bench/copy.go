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

// copyHelper is the name of the helper that only copies bytes between a Unix socket and a TCP
// address, which is the minimum cost of a relay.
const copyHelper = "copy"

// runCopy forwards connections on the socket args[0] to the address args[1] until ctx is done. Like
// the agent, it uses one processor.
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
			_ = near.Close() // the peer notices
			return fmt.Errorf("join a connection: %w", err)
		}
		go copyBytes(near, far)
		go copyBytes(far, near)
	}
}

// copyBytes copies until either end closes, and closes both. It uses read and write: splicing,
// which io.Copy uses for connections, is slower for small amounts.
func copyBytes(to, from net.Conn) {
	_, _ = io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, make([]byte, 64<<10)) // either end may close
	_ = to.Close()                                                                                 // may have been closed by the other direction
	_ = from.Close()
}
