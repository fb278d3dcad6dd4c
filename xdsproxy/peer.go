// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xdsproxy

import (
	"context"
	"net"

	"google.golang.org/grpc/peer"

	"github.com/outrigger-mesh/outrigger/internal/connlimit"
	"github.com/outrigger-mesh/outrigger/internal/localuser"
)

// peerListener determines the process at the other end of each connection.
type peerListener struct{ net.Listener }

func (l peerListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	pid, _, _ := localuser.Peer(conn) // 0 if the system does not report it
	return peerConn{Conn: conn, address: peerAddress{conn.RemoteAddr(), pid}}, nil
}

// peerConn has the process in its address, which gRPC makes available to streams.
type peerConn struct {
	net.Conn
	address peerAddress
}

func (c peerConn) RemoteAddr() net.Addr { return c.address }

type peerAddress struct {
	net.Addr
	pid int
}

// peerID returns the process id of the peer of a stream, or 0 if it is unknown. All
// unknown processes count as one.
func peerID(ctx context.Context) int {
	if p, ok := peer.FromContext(ctx); ok {
		addr := p.Addr
		if limited, ok := addr.(connlimit.Addr); ok {
			addr = limited.Addr
		}
		if address, ok := addr.(peerAddress); ok {
			return address.pid
		}
	}
	return 0
}
