// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package dns

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
)

// serveUDP reads requests and sequentially answers those that need no upstream, which is faster
// than handing them to another goroutine.
func (s *Server) serveUDP(ctx context.Context, conn *net.UDPConn) error {
	// Closing the socket drops pending writes, which is acceptable: requests in progress are
	// abandoned anyway.
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	in, out := make([]byte, maxRequest), make([]byte, 0, maxUDP)
	oob := make([]byte, controlSize(conn)) // determines the source address of the answer
	q := new(query)
	for {
		n, oobn, _, peer, err := conn.ReadMsgUDPAddrPort(in, oob)
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("read DNS requests on %s: %w", conn.LocalAddr(), err)
		default:
			s.log.Warn("a DNS request could not be read", "address", conn.LocalAddr().String(), "err", err)
			if !pause(ctx) {
				return nil
			}
			continue
		}
		reply, forward := s.respond(out, q, in[:n], false)
		local := oob[:oobn]
		switch {
		case reply != nil:
			// If the answer is lost, the client retries.
			_, _, _ = conn.WriteMsgUDPAddrPort(reply, local, peer)
		case forward != nil:
			local = bytes.Clone(local)
			s.waiting(ctx, forward, func(reply []byte) {
				if reply != nil {
					_, _, _ = conn.WriteMsgUDPAddrPort(reply, local, peer)
				}
			})
		}
	}
}
