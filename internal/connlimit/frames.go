// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package connlimit

import (
	"context"
	"encoding/binary"
	"net"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/outrigger-mesh/outrigger/internal/ratelimit"
)

// Costs of HTTP/2 frames. HEADERS begin a request: the server decodes them, authenticates the
// caller and starts a handler. CONTINUATION continues the header.
const (
	costFrame   = 1
	costHeaders = 20
)

// DefaultWork is the budget of a peer: 200 requests or 4,000 other frames per second, with a burst
// of five times as many.
var DefaultWork = ratelimit.Limit{PerSecond: 4000, Burst: 20000}

// maxDebt is how far a peer may exceed its budget. Up to this, reading of its frames is delayed;
// beyond it, the connection is closed.
const maxDebt = 5 * time.Second

const (
	preface     = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	frameHead   = 9 // bytes
	typeOfFrame = 3 // index in the head
	// Types of frames.
	frameHeaders      = 1
	frameContinuation = 9
	// maxBlock is the maximum size of an encoded request header, in all its frames. A header may
	// decode to nothing and thus evade the limit on its fields.
	maxBlock = 128 << 10
)

// meter parses the HTTP/2 frames that a peer sends and counts their cost. Every kind of flood
// consists of frames: requests, resets, settings, pings or empty data.
type meter struct {
	skip  int // bytes until the next frame header
	head  [frameHead]byte
	have  int // bytes of the frame header read so far
	block int // size of the current request header
}

func newMeter() *meter { return &meter{skip: len(preface)} }

// count returns the cost of the frames that begin in b.
func (m *meter) count(b []byte) (cost int) {
	for len(b) > 0 {
		if m.skip > 0 {
			n := min(m.skip, len(b))
			m.skip -= n
			b = b[n:]
			continue
		}
		n := copy(m.head[m.have:], b)
		m.have += n
		b = b[n:]
		if m.have < frameHead {
			return cost
		}
		m.have = 0
		m.skip = int(binary.BigEndian.Uint32(m.head[:4]) >> 8)
		switch m.head[typeOfFrame] {
		case frameHeaders:
			m.block = m.skip
			cost += costHeaders
		case frameContinuation:
			m.block += m.skip
			cost += costHeaders
		default:
			cost += costFrame
		}
	}
	return cost
}

// tooLong reports whether the request header exceeds maxBlock.
func (m *meter) tooLong() bool { return m.block > maxBlock }

// meteredConn charges a peer for the frames it sends. It wraps the connection above TLS.
type meteredConn struct {
	net.Conn
	conn  *Conn
	meter *meter
}

// Read implements net.Conn.
func (c *meteredConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	cost := c.meter.count(b[:n])
	if c.meter.tooLong() {
		c.conn.end(ReasonFlood)
		return 0, net.ErrClosed
	}
	if cost > 0 {
		if late := c.conn.charge(cost); late != nil {
			return 0, late
		}
	}
	return n, err
}

// charge subtracts the cost of frames from the peer's budget and waits until the budget covers it.
// It closes the connection and returns net.ErrClosed if that would take longer than maxDebt.
func (c *Conn) charge(cost int) error {
	budget := c.budget.Load()
	if budget == nil {
		return nil
	}
	for cost > 0 {
		now, part := time.Now(), min(cost, budget.Burst())
		cost -= part
		r := budget.ReserveN(now, part)
		wait := r.DelayFrom(now)
		if wait > maxDebt {
			r.CancelAt(now)
			c.end(ReasonFlood)
			return net.ErrClosed
		}
		if wait <= 0 {
			continue
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-c.closed:
			timer.Stop()
			return net.ErrClosed
		}
	}
	return nil
}

// Trust marks the connection of a call as authenticated: it is in use, and has its own budget
// instead of sharing that of its source.
func Trust(ctx context.Context) {
	if c := ofCall(ctx); c != nil {
		c.Use()
		if !c.trusted.Swap(true) {
			c.budget.Store(c.listener.ownBudget())
		}
	}
}

// UseOf marks the connection of a call as in use.
func UseOf(ctx context.Context) {
	if c := ofCall(ctx); c != nil {
		c.Use()
	}
}

func ofCall(ctx context.Context) *Conn {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	return OfAddr(p.Addr)
}

// ownBudget returns a budget for a single connection, or nil without a limit.
func (l *Listener) ownBudget() *rate.Limiter {
	if l.cfg.Work.Burst == 0 {
		return nil
	}
	return rate.NewLimiter(rate.Limit(l.cfg.Work.PerSecond), l.cfg.Work.Burst)
}

// firstBudget returns the budget of a new connection, which it shares with its source. Connections
// of reserved sources, or without a source, have their own.
func (l *Listener) firstBudget(c *Conn) *rate.Limiter {
	if l.cfg.Work.Burst == 0 {
		return nil
	}
	if c.reserved || !c.source.IsValid() {
		return l.ownBudget()
	}
	return l.work.Bucket(c.source, l.times(c.source, l.cfg.Work))
}

// meteredCredentials wraps credentials and meters their connections.
type meteredCredentials struct {
	credentials.TransportCredentials
}

// ServerHandshake implements credentials.TransportCredentials.
func (m meteredCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secured, info, err := m.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	if c := OfAddr(raw.RemoteAddr()); c != nil {
		secured = &meteredConn{Conn: secured, conn: c, meter: newMeter()}
	}
	return secured, info, nil
}

// Clone implements credentials.TransportCredentials.
func (m meteredCredentials) Clone() credentials.TransportCredentials {
	return meteredCredentials{m.TransportCredentials.Clone()}
}
