// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package isolation

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// namespace is a network namespace. It exists as long as its file is open or a process is in it.
type namespace struct{ file *os.File }

// onThread calls a function on a thread of its own, which ends afterwards. The function may enter
// namespaces.
func onThread(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the thread ends with the goroutine
		result <- f()
	}()
	return <-result
}

func newNamespace() (ns namespace, err error) {
	err = onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make a network namespace: %w", err)
		}
		ns.file, err = os.Open("/proc/thread-self/ns/net")
		return err
	})
	return ns, err
}

// enter moves the calling thread into the namespace.
func (ns namespace) enter() error {
	if err := unix.Setns(int(ns.file.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter a network namespace: %w", err)
	}
	return nil
}

// do calls a function in the namespace. Sockets that it opens remain there.
func (ns namespace) do(f func() error) error {
	return onThread(func() error {
		if err := ns.enter(); err != nil {
			return err
		}
		return f()
	})
}

func (ns namespace) dial(ctx context.Context, address string) (conn net.Conn, err error) {
	err = ns.do(func() error {
		conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", address)
		return err
	})
	return conn, err
}

// path returns a path of the namespace that is valid while the file is open.
func (ns namespace) path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.file.Fd()) }

// setting changes a setting of the network namespace of the calling thread. A kernel without it
// lacks what it is about.
func setting(name, value string) error {
	err := os.WriteFile("/proc/sys/net/"+name, []byte(value), 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// begin configures what every namespace of a mesh needs.
func begin() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("enable lo: %w", err)
	}
	// The interfaces have IPv4 only: their link-local addresses would lead around Envoy.
	if err := setting("ipv6/conf/default/disable_ipv6", "1"); err != nil {
		return fmt.Errorf("disable IPv6: %w", err)
	}
	return nil
}
