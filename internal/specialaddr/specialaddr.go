// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package specialaddr

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// Allowed are the special addresses that may be contacted. The zero value has none.
type Allowed struct {
	hosts    []string // host or host:port, as in URLs
	networks []netip.Prefix
}

// ParseHost parses an address as URLs have it: an IPv6 address can be in brackets.
func ParseHost(host string) (netip.Addr, error) {
	inner, open := strings.CutPrefix(host, "[")
	inner, closed := strings.CutSuffix(inner, "]")
	ip, err := netip.ParseAddr(inner)
	if err == nil && (open != closed || open && ip.Is4()) {
		err = fmt.Errorf("%q is not an address", host)
	}
	return ip, err
}

// ParseAllowed parses a list of hosts, host:port, addresses and networks.
func ParseAllowed(entries []string) (Allowed, error) {
	var a Allowed
	for _, e := range entries {
		e = strings.ToLower(strings.TrimSpace(e))
		if e == "" {
			continue
		}
		if strings.Contains(e, "/") {
			p, err := netip.ParsePrefix(e)
			if err != nil {
				return a, fmt.Errorf("%q is not a network such as 10.0.0.0/8", e)
			}
			a.networks = append(a.networks, p.Masked())
			continue
		}
		if ip, err := ParseHost(e); err == nil {
			ip = ip.Unmap()
			a.networks = append(a.networks, netip.PrefixFrom(ip, ip.BitLen()))
			continue
		}
		if strings.ContainsAny(e, "[]") {
			host, _, err := net.SplitHostPort(e)
			if _, ipErr := netip.ParseAddr(host); err != nil || ipErr != nil {
				return a, fmt.Errorf("%q is no host, host:port, address or network: brackets are for an IPv6 address, as in [::1]:443", e)
			}
		}
		a.hosts = append(a.hosts, e)
	}
	return a, nil
}

// Error says that a connection is not allowed.
type Error struct {
	Host string // as requested
	IP   netip.Addr
}

// Error implements error.
func (e *Error) Error() string {
	return fmt.Sprintf("%s is at %s, a loopback, link-local, multicast or metadata address", e.Host, e.IP)
}

// Check decides whether a connection is allowed. It returns an [*Error] if not. address is the
// requested address, resolved the address after name resolution.
func (a Allowed) Check(address, resolved string) error {
	to, err := netip.ParseAddrPort(resolved)
	if err != nil {
		return fmt.Errorf("%q is not an address", resolved)
	}
	ip := to.Addr().Unmap().WithZone("")
	if !Is(ip) {
		return nil
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%q is not an address", address)
	}
	if slices.Contains(a.hosts, strings.ToLower(address)) || slices.Contains(a.hosts, strings.ToLower(host)) {
		return nil
	}
	for _, p := range a.networks {
		if p.Contains(ip) {
			return nil
		}
	}
	return &Error{Host: host, IP: ip}
}

// specialNetworks are this host, this link, multicast, and the metadata services of clouds.
var specialNetworks = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),
	netip.MustParsePrefix("127.0.0.0/8"),
	netip.MustParsePrefix("169.254.0.0/16"),     // link-local; metadata in most clouds
	netip.MustParsePrefix("100.100.100.200/32"), // metadata, Alibaba
	netip.MustParsePrefix("168.63.129.16/32"),   // metadata, Azure
	netip.MustParsePrefix("192.0.0.192/32"),     // metadata, Oracle
	netip.MustParsePrefix("224.0.0.0/4"),
	netip.MustParsePrefix("240.0.0.0/4"),
	netip.MustParsePrefix("::/127"), // unspecified and loopback
	netip.MustParsePrefix("fe80::/10"),
	netip.MustParsePrefix("ff00::/8"),
	netip.MustParsePrefix("fd00:ec2::/32"),    // metadata, AWS
	netip.MustParsePrefix("fd20:ce::254/128"), // metadata, Google
	netip.MustParsePrefix("fd00:42::42/128"),  // metadata, Scaleway
}

// embedding are IPv6 networks whose addresses contain the IPv4 address to which packets are
// delivered, with the offset of its first byte.
var embedding = []struct {
	network netip.Prefix
	at      int
}{
	{netip.MustParsePrefix("64:ff9b::/96"), 12},    // NAT64
	{netip.MustParsePrefix("::ffff:0:0:0/96"), 12}, // translated by SIIT
	{netip.MustParsePrefix("2002::/16"), 2},        // 6to4
	{netip.MustParsePrefix("::/96"), 12},           // IPv4-compatible
}

// localNAT64 is the network from which a local NAT64 has its prefix (RFC 8215). The length of the
// prefix decides which bytes are the IPv4 address (RFC 6052, 2.2): inLocalNAT64 are their offsets
// for 48, 56, 64 and 96 bits. They skip byte 8.
var (
	localNAT64   = netip.MustParsePrefix("64:ff9b:1::/48")
	inLocalNAT64 = [][4]int{{6, 7, 9, 10}, {7, 9, 10, 11}, {9, 10, 11, 12}, {12, 13, 14, 15}}
	thisHost     = netip.MustParsePrefix("0.0.0.0/8")
)

// Is reports whether an address is special.
func Is(ip netip.Addr) bool {
	ip = ip.Unmap().WithZone("")
	for _, p := range specialNetworks {
		if p.Contains(ip) {
			return true
		}
	}
	b := ip.As16()
	if localNAT64.Contains(ip) {
		for _, at := range inLocalNAT64 {
			in := netip.AddrFrom4([4]byte{b[at[0]], b[at[1]], b[at[2]], b[at[3]]})
			// Of a prefix of another length, zeros are read, too. No NAT64 forwards to this host.
			if !thisHost.Contains(in) && Is(in) {
				return true
			}
		}
	}
	for _, e := range embedding {
		if e.network.Contains(ip) {
			return Is(netip.AddrFrom4([4]byte(b[e.at : e.at+4])))
		}
	}
	return false
}
