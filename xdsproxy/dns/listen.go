// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package dns

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
)

const (
	// DefaultAddress is where the server listens when nothing else is said.
	DefaultAddress = "localhost:15053"

	resolvConf     = "/etc/resolv.conf"
	ownResolvConf  = "/var/lib/istio/resolv.conf"
	privilegedPort = "53"
	localhost      = "localhost"

	receiveBuffer = 1 << 20 // asked of the system, which may give less
	portAttempts  = 20      // at a port that both protocols have free
)

// Placement is where a server listens, and whose servers it asks.
type Placement struct {
	// Address is where it listens.
	Address string
	// ResolvConf are the files with upstream servers, the first that exists counts.
	ResolvConf []string
	// Moved tells that Address is not what was asked for: only root has port 53.
	Moved bool
}

// Place decides by the address that the agent was given. A server on port 53 is
// the one that resolv.conf names, as in a VM without capture: who comes after
// it has a file of its own.
func Place(address string, root bool) Placement {
	if address == "" {
		address = DefaultAddress
	}
	switch {
	case !strings.HasSuffix(address, ":"+privilegedPort):
		return Placement{Address: address, ResolvConf: []string{resolvConf}}
	case !root:
		return Placement{Address: DefaultAddress, ResolvConf: []string{resolvConf}, Moved: true}
	default:
		return Placement{Address: address, ResolvConf: []string{ownResolvConf, resolvConf}}
	}
}

// Socket is where the server listens: both have the same address.
type Socket struct {
	UDP *net.UDPConn
	TCP net.Listener
}

// Close closes a socket that no server runs on.
func (s Socket) Close() error { return errors.Join(s.UDP.Close(), s.TCP.Close()) }

// Listen binds an address for UDP and TCP. The host localhost means 127.0.0.1
// if there are upstream servers with IPv4 addresses and ::1 if there are some
// with IPv6 addresses: redirected requests arrive at either.
func Listen(address string, servers []string) ([]Socket, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("the address of the DNS server, %q, is not an address with a port: %w", address, err)
	}
	hosts := []string{host}
	if host == localhost {
		hosts = localhosts(servers)
	}
	var sockets []Socket
	for _, host := range hosts {
		socket, err := listen(host, port)
		if len(hosts) > 1 && (errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT)) {
			continue // the system has not got this family, so nobody can ask there
		}
		if err != nil {
			for _, bound := range sockets {
				err = errors.Join(err, bound.Close())
			}
			return nil, fmt.Errorf("listen for DNS requests on %s: %w", net.JoinHostPort(host, port), err)
		}
		sockets = append(sockets, socket)
	}
	if len(sockets) == 0 {
		return nil, fmt.Errorf("listen for DNS requests on %s: the system has no address of that name", address)
	}
	return sockets, nil
}

func localhosts(servers []string) (hosts []string) {
	var v4, v6 bool
	for _, server := range servers {
		if ip, err := netip.ParseAddrPort(server); err == nil {
			is4 := ip.Addr().Unmap().Is4()
			v4, v6 = v4 || is4, v6 || !is4
		}
	}
	if v4 || !v6 {
		hosts = append(hosts, "127.0.0.1")
	}
	if v6 {
		hosts = append(hosts, "::1")
	}
	return hosts
}

// listen binds both protocols to one port. Port 0 is one that both have free.
func listen(host, port string) (Socket, error) {
	for attempt := 1; ; attempt++ {
		packets, err := net.ListenPacket("udp", net.JoinHostPort(host, port))
		if err != nil {
			return Socket{}, err
		}
		l, err := net.Listen("tcp", packets.LocalAddr().String())
		if err == nil {
			conn := packets.(*net.UDPConn)
			_ = conn.SetReadBuffer(receiveBuffer) // what the system gives is enough
			return Socket{UDP: conn, TCP: l}, nil
		}
		if closed := packets.Close(); port != "0" || attempt == portAttempts || closed != nil {
			return Socket{}, errors.Join(err, closed)
		}
	}
}

// isOurs reports whether an upstream address is one of our sockets.
func isOurs(server string, sockets []Socket) bool {
	upstream, err := netip.ParseAddrPort(server)
	if err != nil {
		return false
	}
	for _, socket := range sockets {
		own := socket.UDP.LocalAddr().(*net.UDPAddr).AddrPort()
		if own.Port() != upstream.Port() {
			continue
		}
		ip := upstream.Addr().Unmap()
		if own.Addr().Unmap() == ip || (own.Addr().IsUnspecified() && (ip.IsUnspecified() || ip.IsLoopback() || isLocal(ip))) {
			return true
		}
	}
	return false
}

// isLocal reports whether an address is one of this machine's.
func isLocal(ip netip.Addr) bool {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	for _, a := range addresses {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil && prefix.Addr().Unmap() == ip {
			return true
		}
	}
	return false
}
