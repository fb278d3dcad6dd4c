// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"runtime"
)

// copyCommand as the first argument makes this program one that only copies
// bytes between a Unix socket and a TCP address: what a relay costs at least.
const copyCommand = "copy"

// copyBuffer is how much is read at once, in bytes.
const copyBuffer = 64 << 10

// runCopy serves until ctx ends. Like the agent, it uses one processor.
func runCopy(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet(copyCommand, flag.ContinueOnError)
	listen := fs.String("listen", "", "path of the Unix socket")
	to := fs.String("to", "", "TCP address that each connection is joined to")
	if err := fs.Parse(args); err != nil {
		return err
	}
	runtime.GOMAXPROCS(1)
	l, err := net.Listen("unix", *listen)
	if err != nil {
		return fmt.Errorf("listen for those whose bytes are copied: %w", err)
	}
	go func() {
		<-ctx.Done()
		_ = l.Close() // Accept tells
	}()
	for {
		near, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		far, err := net.Dial("tcp", *to)
		if err != nil {
			_ = near.Close() // the other end sees it
			return fmt.Errorf("join a connection: %w", err)
		}
		go copyBytes(near, far)
		go copyBytes(far, near)
	}
}

// copyBytes copies until either end closes, and closes both. It reads and
// writes: splicing, which io.Copy would do, is slower for little.
func copyBytes(to, from net.Conn) {
	defer func() {
		_ = to.Close() // by either direction
		_ = from.Close()
	}()
	b := make([]byte, copyBuffer)
	for {
		n, err := from.Read(b)
		if err != nil {
			return
		}
		if _, err := to.Write(b[:n]); err != nil {
			return
		}
	}
}

// startCopy runs the program that only copies.
func (b *bench) startCopy(socket, to string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	return b.start.run(spec{path: self, dir: b.dir, log: b.path("copy.log"), args: []string{copyCommand, "--listen", socket, "--to", to}})
}
