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

	"github.com/outrigger-mesh/outrigger/internal/handover"
)

const (
	// DefaultAddress is the default address of the server.
	DefaultAddress = "localhost:15053"

	resolvConf     = "/etc/resolv.conf"
	ownResolvConf  = "/var/lib/istio/resolv.conf"
	privilegedPort = "53"
	localhost      = "localhost"

	receiveBuffer = 1 << 20 // requested size, which the system may reduce
	portAttempts  = 20      // attempts to find a port that is free for both protocols
)

// Placement is the address of the server and the source of its upstream servers.
type Placement struct {
	// Address is the address to listen on.
	Address string
	// ResolvConf are files that list upstream servers; the first existing one is used.
	ResolvConf []string
	// Moved is true if Address is not the requested one, because only root can use port 53.
	Moved bool
}

// Place returns the placement for the address that the agent was configured with. On port 53, the
// server is the one that resolv.conf names, as on a VM without interception, so its upstream
// servers are in a separate file.
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

// Socket is a pair of UDP and TCP sockets with the same address.
type Socket struct {
	UDP *net.UDPConn
	TCP net.Listener
}

// Close closes a socket that is not used by a server.
func (s Socket) Close() error { return errors.Join(s.UDP.Close(), s.TCP.Close()) }

// Listen opens an address for UDP and TCP. The host localhost means 127.0.0.1 if there are upstream
// servers with IPv4 addresses, and ::1 if there are some with IPv6 addresses, because redirected
// requests arrive at either. Inherited sockets are used first.
func Listen(address string, servers []string, inherited *handover.Sockets) ([]Socket, error) {
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
		socket, err := listen(host, port, inherited)
		if len(hosts) > 1 && (errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT)) {
			continue // the system does not support this family, so no request can arrive there
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

// listen opens both protocols on one port. Port 0 selects a port that is free for both.
func listen(host, port string, inherited *handover.Sockets) (Socket, error) {
	for attempt := 1; ; attempt++ {
		packets, err := inherited.ListenPacket(net.JoinHostPort(host, port))
		if err != nil {
			return Socket{}, err
		}
		l, err := inherited.Listen(packets.LocalAddr().String())
		if err == nil {
			conn := packets.(*net.UDPConn)
			_ = conn.SetReadBuffer(receiveBuffer) // the system's default is sufficient
			return Socket{UDP: conn, TCP: l}, nil
		}
		if closed := packets.Close(); port != "0" || attempt == portAttempts || closed != nil {
			return Socket{}, errors.Join(err, closed)
		}
	}
}

// isOurs reports whether an upstream address is one of the server's sockets.
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

// isLocal reports whether an address belongs to this machine.
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
