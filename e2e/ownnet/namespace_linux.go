// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ownnet

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// inNamespace returns the attributes of a process that starts in a new network namespace. As root
// it is created directly; otherwise it is inside a user namespace, in which the process keeps its
// user and may configure the network.
func inNamespace() (*syscall.SysProcAttr, error) {
	attributes := &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if uid, gid := os.Getuid(), os.Getgid(); uid != 0 {
		attributes.Cloneflags |= unix.CLONE_NEWUSER
		attributes.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}}
		attributes.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}}
		attributes.AmbientCaps = []uintptr{unix.CAP_NET_ADMIN}
	}
	return attributes, nil
}

// holdThread locks the calling goroutine to its thread: Pdeathsig refers to the thread that started
// a process.
func holdThread() (release func()) {
	runtime.LockOSThread()
	return runtime.UnlockOSThread
}

// addresses are additional addresses of the loopback interface. With only 127.0.0.1 and ::1, the C
// library assumes that there is no network and does not resolve names.
var addresses = []string{"10.255.255.254/32", "fdff:ffff::fffe/128"}

// loopbackUp enables the loopback interface of the namespace.
func loopbackUp() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("finding lo: %w", err)
	}
	if lo.Attrs().Flags&net.FlagUp != 0 {
		return nil
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("switching on lo: %w", err)
	}
	for _, text := range addresses {
		address, err := netlink.ParseAddr(text)
		if err != nil {
			return err
		}
		address.Flags = unix.IFA_F_NODAD
		if err := netlink.AddrAdd(lo, address); err != nil && address.IP.To4() != nil { // IPv6 may be disabled
			return fmt.Errorf("adding %s to lo: %w", text, err)
		}
	}
	return nil
}

// reserve binds an abstract Unix socket, whose name is unique in the network namespace, until the
// process exits.
func reserve(name string) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err = unix.Bind(fd, &unix.SockaddrUnix{Name: name}); err != nil {
		_ = unix.Close(fd) // it was not bound
	}
	return err
}
