// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package probe

import (
	"context"
	"fmt"
	"net"
)

// dialFunc opens a connection.
type dialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// dialer returns a function that connects from sourceIP; empty leaves the choice
// of the source address to the kernel. Unlike the kubelet it leaves SO_LINGER
// alone: on Linux that keeps no connection from TIME_WAIT, but has each close
// wait for the peer, and a thread with it.
func dialer(sourceIP string) (dialFunc, error) {
	var source net.IP
	if sourceIP != "" {
		if source = net.ParseIP(sourceIP); source == nil {
			return nil, fmt.Errorf("the source address of probes, %q, is not an IP address", sourceIP)
		}
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		d := net.Dialer{}
		if source != nil && sameFamily(source, address) {
			d.LocalAddr = &net.TCPAddr{IP: source}
			d.ControlContext = bindLate
		}
		return d.DialContext(ctx, network, address)
	}, nil
}

// sameFamily tells whether an address can be reached from source: a probe may
// name a host of the other version of IP. For a name, the resolver chooses.
func sameFamily(source net.IP, address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return true // dialing says what is wrong with it
	}
	ip := net.ParseIP(host)
	return ip == nil || (ip.To4() == nil) == (source.To4() == nil)
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
