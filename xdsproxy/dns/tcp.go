// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package dns

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	miekg "github.com/miekg/dns"

	"github.com/outrigger-mesh/outrigger/internal/connlimit"
)

const (
	// maxConns is the maximum number of TCP connections of a listener; a further one replaces the
	// one that has waited longest for a request. maxPending is the maximum number of requests of a
	// connection that wait for upstream; further requests are not read.
	maxConns   = 256
	maxPending = 16
	// idleTCP is how long a connection may take to send a request.
	idleTCP   = 10 * time.Second
	writeTime = 5 * time.Second
)

// serveTCP accepts connections.
func (s *Server) serveTCP(ctx context.Context, l net.Listener) error {
	l = connlimit.Listen(l, connlimit.Config{Total: maxConns, Evict: true, OnClose: func(string) {
		s.metrics.refused.WithLabelValues(reasonOverload).Inc()
	}})
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	for {
		conn, err := l.Accept()
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("accept DNS connections on %s: %w", l.Addr(), err)
		default:
			s.log.Warn("a DNS connection could not be accepted", "address", l.Addr().String(), "err", err)
			if !pause(ctx) {
				return nil
			}
			continue
		}
		s.running.Go(func() { s.serveConn(ctx, conn) })
	}
}

// tcpConn is a connection. Answers may be sent out of order.
type tcpConn struct {
	net.Conn
	mu sync.Mutex // guards writing

	using       sync.Mutex // guards outstanding
	outstanding int        // number of outstanding answers
}

// await changes the number of answers that the connection waits for.
func (c *tcpConn) await(change int) {
	limited := connlimit.Of(c.Conn)
	c.using.Lock()
	defer c.using.Unlock()
	if c.outstanding += change; limited == nil {
		return
	}
	if c.outstanding > 0 {
		limited.Use()
	} else {
		limited.Wait()
	}
}

// send writes an answer. A write error closes the connection.
func (c *tcpConn) send(reply []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.SetWriteDeadline(time.Now().Add(writeTime)); err != nil {
		return
	}
	if _, err := (&miekg.Conn{Conn: c}).Write(reply); err != nil {
		_ = c.Close() // this ends the reader
	}
}

// serveConn reads requests until the client has no more or is too slow. It waits for outstanding
// answers from upstream.
func (s *Server) serveConn(ctx context.Context, conn net.Conn) {
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	c := &tcpConn{Conn: conn}
	var outstanding sync.WaitGroup
	defer func() {
		outstanding.Wait()
		_ = conn.Close() // nothing remains to be written
	}()
	pending := make(chan struct{}, maxPending)
	in, q := make([]byte, maxRequest), new(query)
	var out []byte
	for {
		if err := conn.SetReadDeadline(time.Now().Add(idleTCP)); err != nil {
			return
		}
		if _, err := io.ReadFull(conn, in[:2]); err != nil {
			return
		}
		length := int(binary.BigEndian.Uint16(in))
		if length > len(in) {
			s.metrics.refused.WithLabelValues(reasonMalformed).Inc()
			return
		}
		if _, err := io.ReadFull(conn, in[:length]); err != nil {
			return
		}
		c.await(1)
		reply, forward := s.respond(out[:0], q, in[:length], true)
		switch {
		case reply != nil:
			out = reply
			c.send(reply)
			c.await(-1)
		case forward != nil:
			pending <- struct{}{} // released when upstream has responded or timed out
			outstanding.Add(1)
			s.waiting(ctx, forward, func(reply []byte) {
				if reply != nil {
					c.send(reply)
				}
				c.await(-1)
				<-pending
				outstanding.Done()
			})
		default:
			return // not a request
		}
	}
}
