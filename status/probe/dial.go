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

// dialer returns a function that connects from sourceIP. If sourceIP is empty, the kernel chooses
// the source address. Unlike the kubelet, it does not set SO_LINGER: on Linux, that does not avoid
// TIME_WAIT, but makes each close wait for the peer and block a thread.
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

// sameFamily reports whether an address has the same IP version as source. A probe may name a host
// of the other version. For a name, the resolver chooses.
func sameFamily(source net.IP, address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return true // dialing reports the error
	}
	ip := net.ParseIP(host)
	return ip == nil || (ip.To4() == nil) == (source.To4() == nil)
}

// TCP succeeds if a connection to address, a host and a port, can be opened.
func TCP(ctx context.Context, address, sourceIP string) error {
	dial, err := dialer(sourceIP)
	if err != nil {
		return err
	}
	conn, err := dial(ctx, "tcp", address)
	if err != nil {
		return err
	}
	_ = conn.Close() // opening it was sufficient
	return nil
}
