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

// What frames of HTTP/2 cost. HEADERS begin a request: they are decoded, the
// caller is authenticated, and a handler starts. CONTINUATION goes on with them.
const (
	costFrame   = 1
	costHeaders = 20
)

// DefaultWork is the budget of a peer: 200 requests or 4,000 other frames a
// second, and five times as many at once.
var DefaultWork = ratelimit.Limit{PerSecond: 4000, Burst: 20000}

// maxDebt is how far a peer may be beyond its budget. Until then its frames are
// read late; beyond, its connection is closed.
const maxDebt = 5 * time.Second

const (
	preface     = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	frameHead   = 9 // bytes
	typeOfFrame = 3 // index in the head
	// Types of frames.
	frameHeaders      = 1
	frameContinuation = 9
	// maxBlock is the longest header of a request as it is sent, over all its
	// frames. It may decode to nothing, which the limit of its fields allows.
	maxBlock = 128 << 10
)

// meter follows the frames of HTTP/2 in what a peer sends, and counts their cost.
// Whatever a peer floods a server with, of requests, resets, settings, pings or
// empty data, is frames.
type meter struct {
	skip  int // bytes until the next head
	head  [frameHead]byte
	have  int // bytes of head
	block int // bytes of the last header of a request
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

// tooLong reports whether the header of a request is.
func (m *meter) tooLong() bool { return m.block > maxBlock }

// meteredConn charges a peer for its frames. It is above TLS.
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

// charge takes the cost of frames from the budget of a peer, and waits until it
// has as much.
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

// Trust marks the connection of a call as one whose peer has proved who it is: it
// is in use, and has a budget of its own instead of that of its source.
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

// ownBudget returns the budget of one connection, or nil without a limit.
func (l *Listener) ownBudget() *rate.Limiter {
	if l.cfg.Work.Burst == 0 {
		return nil
	}
	return rate.NewLimiter(rate.Limit(l.cfg.Work.PerSecond), l.cfg.Work.Burst)
}

// firstBudget returns the budget of a new connection: that of its source. Those
// of reserved sources have their own, as have those without a source.
func (l *Listener) firstBudget(c *Conn) *rate.Limiter {
	if l.cfg.Work.Burst == 0 {
		return nil
	}
	if c.reserved || !c.source.IsValid() {
		return l.ownBudget()
	}
	return l.work.Bucket(c.source, l.times(c.source, l.cfg.Work))
}

// meteredCredentials are others whose connections are metered.
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
