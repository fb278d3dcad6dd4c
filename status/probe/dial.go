// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package probe

import (
	"context"
	"fmt"
	"net"
)

// lingerSeconds is how long a closed connection may still deliver what was sent.
// The kubelet uses the same: many probes must not fill the machine with
// connections in TIME_WAIT.
const lingerSeconds = 1

// dialer returns a function that connects from sourceIP; empty leaves the choice
// of the source address to the kernel.
func dialer(sourceIP string) (func(ctx context.Context, network, address string) (net.Conn, error), error) {
	d := net.Dialer{}
	if sourceIP != "" {
		ip := net.ParseIP(sourceIP)
		if ip == nil {
			return nil, fmt.Errorf("the source address of probes, %q, is not an IP address", sourceIP)
		}
		d.LocalAddr = &net.TCPAddr{IP: ip}
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := d.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		if tcp, ok := conn.(*net.TCPConn); ok {
			// Without it the connection only lingers longer.
			_ = tcp.SetLinger(lingerSeconds)
		}
		return conn, nil
	}, nil
}

// TCP succeeds when a connection to address, a host and a port, can be opened.
func TCP(ctx context.Context, address, sourceIP string) error {
	dial, err := dialer(sourceIP)
	if err != nil {
		return err
	}
	conn, err := dial(ctx, "tcp", address)
	if err != nil {
		return err
	}
	_ = conn.Close() // it was opened: that is the answer
	return nil
}
