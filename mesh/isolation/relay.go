// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package isolation

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxConns is the number of connections that all relays of a network have at once. Each workload
	// has an equal share for connections from it and one for those to it, so that none takes those of
	// others. Further ones are reset.
	maxConns = 8192
	minShare = 16
	// maxDials is the number of connections to workloads that are being made at once, each with a
	// thread.
	maxDials    = 64
	dialTimeout = 10 * time.Second
	// acceptPause is the pause after a connection could not be accepted.
	acceptPause = 50 * time.Millisecond
)

var loopback = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// dialer returns the other side of an accepted connection.
type dialer func(ctx context.Context, from *net.TCPConn) (net.Conn, error)

// published is a port of the machine that leads into the network.
type published struct {
	address  netip.AddrPort
	listener *net.TCPListener
	dial     dialer
	slots    chan struct{} // of the workload
}

// relays forward connections from listeners.
type relays struct {
	published []published
	dials     chan struct{}
	// in and out have a place for each connection to a workload, by name, and from one, by address.
	in  map[string]chan struct{}
	out map[netip.Addr]chan struct{}
}

// newRelays returns relays for workloads with addresses in the network.
func newRelays(workloads map[string]netip.Addr) relays {
	r := relays{dials: make(chan struct{}, maxDials), in: map[string]chan struct{}{}, out: map[netip.Addr]chan struct{}{}}
	share := max(minShare, maxConns/max(1, 2*len(workloads)))
	for name, address := range workloads {
		r.in[name], r.out[address] = make(chan struct{}, share), make(chan struct{}, share)
	}
	return r
}

// leaving returns the places for connections from the workload that has made one, or nil.
func (r *relays) leaving(c *net.TCPConn) chan struct{} {
	from, _ := c.RemoteAddr().(*net.TCPAddr)
	return r.out[from.AddrPort().Addr().Unmap()]
}

func (r *relays) publishes(address netip.AddrPort) bool {
	for _, p := range r.published {
		if p.address == address {
			return true
		}
	}
	return false
}

// Publish listens on an address of the machine and forwards connections to a port of a workload: as
// another machine does, so that they are redirected to Envoy, or with local as a process of the
// workload does, on its loopback address. It must be called before Run.
func (n *Network) Publish(address netip.AddrPort, workload string, port int, local bool) error {
	l, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(address))
	if err != nil {
		return fmt.Errorf("publish a port of workload %q: %w", workload, err)
	}
	ns, to := n.hub, netip.AddrPortFrom(n.Inside(n.cfg.Workloads[workload]), uint16(port))
	if local {
		ns, to = n.workloads[workload], netip.AddrPortFrom(loopback, uint16(port))
	}
	n.relays.published = append(n.relays.published, published{address: address, listener: l, slots: n.relays.in[workload], dial: func(ctx context.Context, _ *net.TCPConn) (net.Conn, error) {
		select {
		case n.relays.dials <- struct{}{}:
			defer func() { <-n.relays.dials }()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		return ns.dial(ctx, to.String())
	}})
	return nil
}

// run forwards the connections of a listener until ctx is done, and closes it. slots returns the
// places of which a connection takes one.
func (r *relays) run(ctx context.Context, l *net.TCPListener, slots func(*net.TCPConn) chan struct{}, dial dialer) error {
	var running sync.WaitGroup
	defer running.Wait()
	stop := context.AfterFunc(ctx, func() { _ = l.Close() }) // nothing is accepted any more
	defer stop()
	for {
		conn, err := l.AcceptTCP()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return nil
			}
			select {
			case <-time.After(acceptPause): // too many files are open
			case <-ctx.Done():
			}
			continue
		}
		places := slots(conn)
		select {
		case places <- struct{}{}:
			running.Go(func() {
				defer func() { <-places }()
				r.forward(ctx, conn, dial)
			})
		default: // nil for a connection of nobody
			reset(conn)
		}
	}
}

// forward makes the other connection and copies in both directions.
func (r *relays) forward(ctx context.Context, from *net.TCPConn, dial dialer) {
	to, err := within(ctx, from, dial)
	if err != nil {
		reset(from) // the closest to a refused connection
		return
	}
	other := to.(*net.TCPConn)
	stop := context.AfterFunc(ctx, func() { reset(from); reset(other) })
	defer stop()
	var copying sync.WaitGroup
	copying.Go(func() { pipe(other, from) })
	copying.Go(func() { pipe(from, other) })
	copying.Wait()
	_, _ = from.Close(), other.Close() // everything was copied
}

// within calls a dialer for at most dialTimeout.
func within(ctx context.Context, from *net.TCPConn, dial dialer) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	return dial(ctx, from)
}

// pipe copies until the source ends, and ends the destination in the same way: both connections are
// reset if one is.
func pipe(to, from *net.TCPConn) {
	if _, err := io.Copy(to, from); err != nil {
		reset(to)
		reset(from)
		return
	}
	_ = to.CloseWrite() // the peer may be gone
}

// reset closes a connection so that the peer sees an error.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0) // without it the peer sees a regular end
	_ = c.Close()      // it may be closed already
}

// originalAddress returns where a redirected connection was made to.
func originalAddress(c *net.TCPConn) (to netip.AddrPort, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return to, err
	}
	ctlErr := raw.Control(func(fd uintptr) {
		var request *unix.IPv6Mreq // begins with the address
		if request, err = unix.GetsockoptIPv6Mreq(int(fd), unix.SOL_IP, unix.SO_ORIGINAL_DST); err == nil {
			b := request.Multiaddr
			to = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), uint16(b[2])<<8|uint16(b[3]))
		}
	})
	return to, errors.Join(ctlErr, err)
}
