// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package handover

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Sockets are sockets that the program before this one has left. A nil *Sockets has none.
type Sockets struct {
	listeners []net.Listener
	packets   []net.PacketConn
}

// firstFile is the descriptor of the first file that is not standard input, output or error.
const firstFile = 3

// Inherited returns the sockets that the program before this one has left: those that are not
// closed on exec, as all are that this program opens.
func Inherited() *Sockets {
	s := &Sockets{}
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return s // not Linux, where there are none
	}
	for _, file := range files {
		fd, err := strconv.Atoi(file.Name())
		if err != nil || fd < firstFile {
			continue
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC != 0 {
			continue
		}
		s.take(fd)
	}
	return s
}

// take adds a file if it is a socket of a server. It touches no other file.
func (s *Sockets) take(fd int) {
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil {
		return
	}
	listens, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	if err != nil || (kind == unix.SOCK_STREAM) != (listens == 1) {
		return
	}
	f := os.NewFile(uintptr(fd), "inherited")
	defer func() { _ = f.Close() }() // what follows has a copy
	switch kind {
	case unix.SOCK_STREAM:
		if l, err := net.FileListener(f); err == nil {
			s.listeners = append(s.listeners, l)
		}
	case unix.SOCK_DGRAM:
		if c, err := net.FilePacketConn(f); err == nil {
			s.packets = append(s.packets, c)
		}
	}
}

// Listen returns the inherited listener with a TCP address, or a new one.
func (s *Sockets) Listen(address string) (net.Listener, error) {
	if want, err := net.ResolveTCPAddr("tcp", address); err == nil && s != nil {
		for i, l := range s.listeners {
			if have, ok := addressOf(l).(*net.TCPAddr); ok && want.Port != 0 && have.Port == want.Port && sameHost(have.IP, want.IP) {
				s.listeners[i] = nil
				return l, nil
			}
		}
	}
	return net.Listen("tcp", address)
}

// ListenPacket returns the inherited socket with a UDP address, or a new one.
func (s *Sockets) ListenPacket(address string) (net.PacketConn, error) {
	if want, err := net.ResolveUDPAddr("udp", address); err == nil && s != nil {
		for i, c := range s.packets {
			if c == nil {
				continue
			}
			if have, ok := c.LocalAddr().(*net.UDPAddr); ok && want.Port != 0 && have.Port == want.Port && sameHost(have.IP, want.IP) {
				s.packets[i] = nil
				return c, nil
			}
		}
	}
	return net.ListenPacket("udp", address)
}

// Unix returns the inherited listener with the path of a Unix socket, or nil.
func (s *Sockets) Unix(path string) net.Listener {
	if s == nil {
		return nil
	}
	for i, l := range s.listeners {
		if l, ok := l.(*net.UnixListener); ok && l.Addr().String() == path {
			s.listeners[i] = nil
			l.SetUnlinkOnClose(true) // as one that this program has bound
			return l
		}
	}
	return nil
}

func addressOf(l net.Listener) net.Addr {
	if l == nil {
		return nil
	}
	return l.Addr()
}

// sameHost reports whether two addresses are the same, or both are all addresses.
func sameHost(a, b net.IP) bool {
	all := func(ip net.IP) bool { return len(ip) == 0 || ip.IsUnspecified() }
	return a.Equal(b) || all(a) && all(b)
}

// Close closes the sockets that nobody has taken.
func (s *Sockets) Close() {
	if s == nil {
		return
	}
	for _, l := range s.listeners {
		if l != nil {
			_ = l.Close() // nobody uses it
		}
	}
	for _, c := range s.packets {
		if c != nil {
			_ = c.Close() // nobody uses it
		}
	}
}

// Kept are copies of sockets for the next program.
type Kept []*os.File

// Keep copies sockets, each a *net.TCPListener, *net.UnixListener or *net.UDPConn. The sockets of the
// copies stay open when these are closed, and so do the files of Unix sockets.
func Keep(sockets ...any) (Kept, error) {
	var kept Kept
	for _, socket := range sockets {
		if l, ok := socket.(*net.UnixListener); ok {
			l.SetUnlinkOnClose(false)
		}
		s, ok := socket.(interface{ File() (*os.File, error) })
		if !ok {
			kept.Close()
			return nil, fmt.Errorf("a %T cannot be passed on", socket)
		}
		f, err := s.File()
		if err != nil {
			kept.Close()
			return nil, fmt.Errorf("copy a socket: %w", err)
		}
		kept = append(kept, f)
	}
	return kept, nil
}

// Pass makes the next program of this process inherit the sockets.
func (k Kept) Pass() error {
	var errs []error
	for _, f := range k {
		conn, err := f.SyscallConn()
		if err == nil {
			err = conn.Control(func(fd uintptr) {
				_, clearing := unix.FcntlInt(fd, unix.F_SETFD, 0)
				errs = append(errs, clearing)
			})
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Close closes the copies.
func (k Kept) Close() {
	for _, f := range k {
		_ = f.Close() // the sockets themselves are somebody else's
	}
}
