// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package capture

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/google/nftables"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
)

// InNamespace calls a function in the network namespace of a file, or without a path in that of the
// process. The function must not start goroutines that use the network.
func InNamespace(path string, f func() error) error {
	if path == "" {
		return f()
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("network namespace %q: %w", path, err)
	}
	defer func() { _ = unix.Close(fd) }() // only a handle
	result := make(chan error, 1)
	go func() {
		// The thread is never unlocked, so that it ends with the goroutine.
		runtime.LockOSThread()
		if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
			result <- explain(fmt.Errorf("network namespace %q: %w", path, err))
			return
		}
		result <- f()
	}()
	return <-result
}

// Captured reports whether the network namespace of a file has rules that redirect connections to
// Envoy. It needs the capability NET_ADMIN.
func Captured(path string) (captured bool, err error) {
	err = InNamespace(path, func() error {
		listed, rules := hasRules()
		if captured = rules; !listed && !rules {
			return errors.New("the rules cannot be listed; it needs the capability NET_ADMIN")
		}
		return nil
	})
	return captured, err
}

// Check returns nil if the connections of this network namespace are redirected to Envoy, which must
// not run yet, and an error that wraps ErrNotCaptured if they are not. Other errors say why it cannot
// find out. With the capability NET_ADMIN it looks for rules, without it for their effect on the user
// of the proxy.
func Check(ctx context.Context, environ []string) error {
	var f Flags
	f.Add(pflag.NewFlagSet("", pflag.ContinueOnError))
	env := environment(environ)
	if err := f.fromEnvironment(env); err != nil {
		return err
	}
	f.dns = false // the resolvers are of no interest
	s, _, err := f.settings(env, thisSystem())
	if err != nil {
		return err
	}
	listed, rules := hasRules()
	switch {
	case rules:
		return nil
	case slices.Contains(s.UIDs, uint32(os.Geteuid())):
		s.ProbeOnce = true
		return s.validate(ctx)
	case listed:
		return ErrNotCaptured
	}
	return fmt.Errorf("finding out whether connections are redirected to Envoy: user %d must be that of --proxy-uid, %d, or have the capability NET_ADMIN", os.Geteuid(), s.UIDs)
}

// hasRules reports whether rules can be listed, and whether there are some that redirect connections.
func hasRules() (listed, rules bool) {
	c, err := nftables.New()
	if err != nil {
		return false, false
	}
	own, err := ownTables(c)
	if err != nil {
		return false, false
	}
	others, err := findLeftovers()
	return err == nil, len(own) > 0 || others.String() != ""
}

// validate checks that a connection of this process to the loopback network reaches Envoy's port,
// as connections of the proxy to the own workload do. It listens there itself, so Envoy must not run
// yet.
func (s *Settings) validate(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.ProbeTimeout)
	defer cancel()
	loopback, target := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.6")
	if s.ProbeIPv6 {
		loopback, target = netip.IPv6Loopback(), netip.MustParseAddr("::6")
	}
	config := net.ListenConfig{Control: reuse}
	captured := make(chan struct{}, 1)
	for _, port := range []uint16{s.OutboundPort, s.InboundPort} {
		l, err := config.Listen(ctx, "tcp", netip.AddrPortFrom(loopback, port).String())
		if err != nil {
			return fmt.Errorf("listening on Envoy's port %d: %w", port, err)
		}
		defer func() { _ = l.Close() }() // ends the goroutine
		go s.accept(l.(*net.TCPListener), captured)
	}
	var last error
	for {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: loopback.AsSlice()}}
		c, err := dialer.DialContext(ctx, "tcp", netip.AddrPortFrom(target, s.ProbePort).String())
		if err == nil {
			_ = c.Close() // nothing was sent
		} else if ctx.Err() == nil {
			last = err
		}
		if s.ProbeOnce && errors.Is(err, unix.ECONNREFUSED) {
			return fmt.Errorf("%w: %w", ErrNotCaptured, err)
		}
		select {
		case <-captured:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ErrNotCaptured, errors.Join(last, ctx.Err()))
		case <-time.After(probeInterval):
		}
	}
}

// probeInterval is the time between two attempts.
const probeInterval = 100 * time.Millisecond

// reuse lets several processes listen on one port.
func reuse(_, _ string, c syscall.RawConn) (err error) {
	ctlErr := c.Control(func(fd uintptr) {
		err = errors.Join(unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1))
	})
	return errors.Join(ctlErr, err)
}

// accept reports a connection that was meant for the probe port, until the listener is closed.
func (s *Settings) accept(l *net.TCPListener, captured chan<- struct{}) {
	for {
		c, err := l.AcceptTCP()
		if err != nil {
			return
		}
		port, err := originalPort(c, strings.Contains(c.LocalAddr().String(), "["))
		_ = c.Close() // nothing was sent
		if err == nil && port == s.ProbePort {
			select {
			case captured <- struct{}{}:
			default:
			}
		}
	}
}

// originalPort returns the port that a connection was made to before it was redirected.
func originalPort(c *net.TCPConn, six bool) (port uint16, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	ctlErr := raw.Control(func(fd uintptr) {
		if six {
			var info *unix.IPv6MTUInfo // begins with the address
			if info, err = unix.GetsockoptIPv6MTUInfo(int(fd), unix.SOL_IPV6, unix.SO_ORIGINAL_DST); err == nil {
				port = binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, info.Addr.Port))
			}
			return
		}
		var request *unix.IPv6Mreq // begins with the address
		if request, err = unix.GetsockoptIPv6Mreq(int(fd), unix.SOL_IP, unix.SO_ORIGINAL_DST); err == nil {
			port = uint16(request.Multiaddr[2])<<8 | uint16(request.Multiaddr[3])
		}
	})
	return port, errors.Join(ctlErr, err)
}
