// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"context"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	grpcpeer "google.golang.org/grpc/peer"

	"github.com/outrigger-mesh/outrigger/controlplane/discovery"
)

// drainEach is the interval between closing two streams during a shutdown, so that the
// proxies do not all reconnect elsewhere at once. If there are many streams, it is
// shorter, so that they take half of the shutdown time; the other half is for calls in
// progress.
const drainEach = 5 * time.Millisecond

// movedGrace is how long the connection of a proxy that must move to another replica
// stays open for other calls in progress.
const movedGrace = time.Second

// drain tracks the open streams of a server, and ends them.
type drain struct {
	mu      sync.Mutex // guards the fields below
	streams map[*drained]struct{}
	over    bool // all streams have been ended
}

// drained is a stream that the server can end.
type drained struct {
	grpc.ServerStream
	ctx    context.Context //nolint:containedctx // returned by grpc.ServerStream
	cancel context.CancelFunc
}

// Context implements grpc.ServerStream.
func (s *drained) Context() context.Context { return s.ctx }

// intercept is a grpc.StreamServerInterceptor.
func (d *drain) intercept(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	s := &drained{ServerStream: ss}
	s.ctx, s.cancel = context.WithCancel(ss.Context())
	defer s.cancel()
	d.mu.Lock()
	if d.streams == nil {
		d.streams = map[*drained]struct{}{}
	}
	d.streams[s] = struct{}{}
	if d.over {
		s.cancel()
	}
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.streams, s)
	}()
	conn := connectionOf(ss.Context())
	conn.begin()
	defer conn.end()
	err := handle(srv, s)
	if discovery.Moved(err) {
		conn.moved.Store(true)
	}
	return err
}

// interceptCall is a grpc.UnaryServerInterceptor.
func (d *drain) interceptCall(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	conn := connectionOf(ctx)
	conn.begin()
	defer conn.end()
	return handle(ctx, req)
}

// end ends all streams within a time, in arbitrary order.
func (d *drain) end(within time.Duration) {
	d.mu.Lock()
	var open []*drained
	for s := range d.streams {
		open = append(open, s)
	}
	d.mu.Unlock()
	within = min(within, drainEach*time.Duration(len(open)))
	rand.Shuffle(len(open), func(i, j int) { open[i], open[j] = open[j], open[i] })
	began := time.Now()
	for i, s := range open {
		time.Sleep(time.Until(began.Add(within * time.Duration(i) / time.Duration(len(open)))))
		s.cancel()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.over = true
	for s := range d.streams {
		s.cancel()
	}
}

// stop stops a server within a time: it accepts no more connections and streams, ends
// its streams one after the other, and waits for its calls.
func (d *drain) stop(server *grpc.Server, within time.Duration) {
	late := time.NewTimer(within)
	defer late.Stop()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		server.GracefulStop()
	}()
	d.end(within / 2)
	select {
	case <-stopped:
	case <-late.C:
		server.Stop()
		<-stopped
	}
}

// tracked is a listener whose connections can be looked up by calls and closed, which
// gRPC does not support. An Envoy without an agent keeps its connection when its
// stream ends, and would reconnect to the same replica.
type tracked struct{ net.Listener }

// Accept implements net.Listener.
func (l tracked) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	conn := &connection{Conn: c}
	conn.address = connAddress{c.RemoteAddr(), conn}
	return conn, nil
}

// connection counts the calls in progress.
type connection struct {
	net.Conn
	address connAddress
	calls   atomic.Int64
	moved   atomic.Bool
}

// connAddress is the address of a peer with its connection.
type connAddress struct {
	net.Addr
	conn *connection
}

// Unwrap returns the address of the underlying listener; see connlimit.OfAddr.
func (a connAddress) Unwrap() net.Addr { return a.Addr }

// RemoteAddr implements net.Conn.
func (c *connection) RemoteAddr() net.Addr { return c.address }

// connectionOf returns the connection of a call, or a dummy if it is not tracked.
func connectionOf(ctx context.Context) *connection {
	if p, ok := grpcpeer.FromContext(ctx); ok {
		if a, ok := p.Addr.(connAddress); ok {
			return a.conn
		}
	}
	return &connection{}
}

func (c *connection) begin() {
	c.calls.Add(1)
	c.moved.Store(false) // it reconnected, or others use the connection, too
}

// end closes the connection of a proxy that must move, once it has been idle for
// movedGrace.
func (c *connection) end() {
	if c.calls.Add(-1) > 0 || !c.moved.Load() || c.Conn == nil {
		return
	}
	time.AfterFunc(movedGrace, func() {
		if c.calls.Load() == 0 {
			_ = c.Close() // the peer may have closed it before
		}
	})
}
