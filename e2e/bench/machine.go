// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"fmt"
	"net"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// newMachine returns a starter whose programs run in a network namespace of their
// own, which ends with them. It needs root.
func newMachine() (*starter, error) {
	s := &starter{work: make(chan func())}
	made := make(chan error, 1)
	go func() {
		// The thread is never given back: it ends with the goroutine.
		runtime.LockOSThread()
		ns, err := netns.New()
		if err == nil {
			defer func() { _ = ns.Close() }() // the thread and its programs are in it
			err = up("lo")
		}
		if made <- err; err != nil {
			return
		}
		for f := range s.work {
			f()
		}
	}()
	if err := <-made; err != nil {
		return nil, fmt.Errorf("make a network namespace, which needs root: %w", err)
	}
	s.dial = s.dialThere
	return s, nil
}

func up(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(link)
}

// dialThere connects to an address in the namespace: a socket belongs to the one
// of the thread that makes it.
func (s *starter) dialThere(ctx context.Context, network, address string) (conn net.Conn, err error) {
	done := make(chan struct{})
	s.work <- func() {
		defer close(done)
		conn, err = new(net.Dialer).DialContext(ctx, network, address)
	}
	<-done
	return conn, err
}
