// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package connlimit

import (
	"container/list"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// Classes of connections, used as indexes.
const (
	ordinary = iota
	exempt
)

// maxWrite is the number of bytes written at once. It is small enough to distinguish
// a slow reader from a peer that does not read.
const maxWrite = 64 << 10

// Conn is a connection of a [Listener].
type Conn struct {
	net.Conn
	listener *Listener
	address  net.Addr
	source   netip.Prefix
	reserved bool
	budget   atomic.Pointer[rate.Limiter] // nil without Config.Work
	trusted  atomic.Bool
	closed   chan struct{}

	// These are guarded by the listener's mu. waiting is nil while the connection is in use. unused
	// is nil without Config.Unused, and after the connection has been used.
	waiting  *list.Element
	unused   *time.Timer
	released bool
	place    *list.Element // in a list of the listener's all; nil without Config.Fair

	deadlines sync.Mutex // guards the field below, and the order of deadlines
	deadline  time.Time  // write deadline requested by the server
}

// Addr is the address of the peer of a [Conn]. It leads from the address to the connection, for
// code that has only the address.
type Addr struct {
	net.Addr
	Conn *Conn
}

func (l *Listener) wrap(raw net.Conn) *Conn {
	c := &Conn{Conn: raw, listener: l, closed: make(chan struct{})}
	var ip netip.Addr
	c.source, ip = l.sourceOf(raw.RemoteAddr())
	c.reserved = ip.IsValid() && l.cfg.Reserved(ip)
	c.address = Addr{raw.RemoteAddr(), c}
	c.budget.Store(l.firstBudget(c))
	if tcp, ok := raw.(*net.TCPConn); ok && l.cfg.SendBuffer > 0 {
		_ = tcp.SetWriteBuffer(l.cfg.SendBuffer) // if this fails, the kernel's default size is acceptable
	}
	return c
}

func (c *Conn) class() int {
	if c.reserved {
		return exempt
	}
	return ordinary
}

// Of returns the limited connection that conn wraps, for example below TLS, or nil.
func Of(conn net.Conn) *Conn {
	for conn != nil {
		switch c := conn.(type) {
		case *Conn:
			return c
		case interface{ NetConn() net.Conn }:
			conn = c.NetConn()
		default:
			return nil
		}
	}
	return nil
}

// OfAddr returns the connection whose peer has the address, or nil. It unwraps addresses that have
// a method Unwrap.
func OfAddr(addr net.Addr) *Conn {
	for {
		switch a := addr.(type) {
		case Addr:
			return a.Conn
		case interface{ Unwrap() net.Addr }:
			addr = a.Unwrap()
		default:
			return nil
		}
	}
}

// RemoteAddr implements net.Conn. The address is an [Addr].
func (c *Conn) RemoteAddr() net.Addr { return c.address }

// Use marks the connection as in use: Config.Unused no longer applies, and it cannot be evicted
// until Wait.
func (c *Conn) Use() {
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	c.stopUnused()
	if c.waiting != nil {
		c.listener.waiting[c.class()].Remove(c.waiting)
		c.waiting = nil
	}
}

// stopUnused stops the timer of Config.Unused. The caller holds the listener's mu.
func (c *Conn) stopUnused() {
	if c.unused != nil {
		c.unused.Stop()
		c.unused = nil
	}
}

// Wait marks the connection as waiting for its next request from now on.
func (c *Conn) Wait() {
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	if c.waiting == nil && !c.released {
		c.waiting = c.listener.waiting[c.class()].PushBack(c)
	}
}

// end closes the connection because of a limit.
func (c *Conn) end(reason string) {
	c.listener.cfg.OnClose(reason)
	_ = c.Close() // the peer may have closed it already
}

// Close implements net.Conn.
func (c *Conn) Close() error {
	c.listener.mu.Lock()
	c.listener.release(c)
	c.listener.mu.Unlock()
	return c.Conn.Close()
}

// SetDeadline implements net.Conn.
func (c *Conn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}

// SetWriteDeadline implements net.Conn.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	c.deadlines.Lock()
	defer c.deadlines.Unlock()
	c.deadline = t
	return c.Conn.SetWriteDeadline(t)
}

// Write implements net.Conn. It closes the connection if the peer reads nothing for Config.Stall.
func (c *Conn) Write(b []byte) (n int, err error) {
	if c.listener.cfg.Stall <= 0 {
		return c.Conn.Write(b)
	}
	for first := true; first || n < len(b); first = false {
		ours, err := c.patience()
		if err != nil {
			return n, err
		}
		m, err := c.Conn.Write(b[n:min(len(b), n+maxWrite)])
		n += m
		if ours && m == 0 && errors.Is(err, os.ErrDeadlineExceeded) {
			c.end(ReasonStalled)
		}
		// A part was written: the peer reads, although slowly.
		if err != nil && !(ours && m > 0 && errors.Is(err, os.ErrDeadlineExceeded)) {
			return n, err
		}
	}
	return n, nil
}

// patience sets the deadline of the next write. It returns true if the deadline comes from
// Config.Stall, and false if the server has set an earlier one.
func (c *Conn) patience() (ours bool, err error) {
	c.deadlines.Lock()
	defer c.deadlines.Unlock()
	at := time.Now().Add(c.listener.cfg.Stall)
	if !c.deadline.IsZero() && c.deadline.Before(at) {
		return false, c.Conn.SetWriteDeadline(c.deadline)
	}
	return true, c.Conn.SetWriteDeadline(at)
}
