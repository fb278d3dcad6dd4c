// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package status

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/outrigger-mesh/outrigger/internal/localonly"
)

// HookSources are the addresses that may run the application's lifecycle hooks. The
// kubelet runs them, in most networks from an address of the node: HostIP, or the
// pod's default gateway. Loopback addresses and those of this network namespace may
// run hooks, too; in a pod of the host network the latter are the node's.
type HookSources struct {
	// Anybody lets every peer run hooks.
	Anybody bool
	// HostIP is the address of the node. The zero value means that it is unknown.
	HostIP netip.Addr
	// AfterGateway adds the address that follows that of the default gateway.
	// OVN-Kubernetes has its management port there, from which the kubelet calls.
	AfterGateway bool
	// More are further addresses.
	More []netip.Prefix
}

// anybody is the text for HookSources.Anybody.
const anybody = "any"

// ParseHookSources parses a comma-separated list of addresses and CIDRs, or "any".
func ParseHookSources(text string) (more []netip.Prefix, everybody bool, err error) {
	if strings.TrimSpace(text) == anybody {
		return nil, true, nil
	}
	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item == "" {
			continue
		}
		prefix, err := netip.ParsePrefix(item)
		if err != nil {
			var ip netip.Addr
			if ip, err = netip.ParseAddr(item); err != nil {
				return nil, false, fmt.Errorf("%q is neither an IP address nor a CIDR nor the word %s", item, anybody)
			}
			prefix = netip.PrefixFrom(ip.Unmap(), ip.Unmap().BitLen())
		}
		more = append(more, prefix.Masked())
	}
	return more, false, nil
}

// guesses reports whether the kubelet's address is not configured.
func (s HookSources) guesses() bool { return !s.Anybody && !s.HostIP.IsValid() && len(s.More) == 0 }

// allows reports whether the peer of a request may run hooks. It reads the routes each
// time, because a network may set them after the agent has started.
func (s HookSources) allows(r *http.Request) bool {
	if s.Anybody {
		return true
	}
	address, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return false
	}
	ip := address.Addr().Unmap().WithZone("")
	if localonly.Peer(r.RemoteAddr) {
		// A list that names loopback addresses trusts the proxies of this machine, too.
		return !localonly.Forwarded(r.Header) ||
			slices.ContainsFunc(s.More, func(p netip.Prefix) bool { return p.Addr().IsLoopback() && p.Contains(ip) })
	}
	return !ip.IsLoopback() && (s.isNode(ip, gateways(os.ReadFile)) || slices.Contains(ownAddresses(), ip) ||
		slices.ContainsFunc(s.More, func(p netip.Prefix) bool { return p.Contains(ip) }))
}

// isNode reports whether an address is known to belong to the node, given the gateways
// of the default routes.
func (s HookSources) isNode(ip netip.Addr, gateways []netip.Addr) bool {
	if ip == s.HostIP.Unmap() {
		return true
	}
	for _, gateway := range gateways {
		if ip == gateway || s.AfterGateway && ip == gateway.Next() {
			return true
		}
	}
	return false
}

// ownAddresses returns the addresses of this network namespace, without loopback.
func ownAddresses() (own []netip.Addr) {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return nil // the other sources remain
	}
	for _, a := range addresses {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil && !prefix.Addr().IsLoopback() {
			own = append(own, prefix.Addr().Unmap())
		}
	}
	return own
}

const (
	routesIPv4 = "/proc/net/route"
	routesIPv6 = "/proc/net/ipv6_route"
	// viaGateway is the flag of routes that have a gateway.
	viaGateway = 0x2
)

// gateways returns the gateways of the default routes of both families. It returns
// none if the files with the routes do not exist, as outside of Linux.
func gateways(read func(string) ([]byte, error)) (list []netip.Addr) {
	add := func(fields []string, destination, mask, gateway, flags int) {
		bits, err := strconv.ParseUint(fields[flags], 16, 32)
		if err != nil || bits&viaGateway == 0 || strings.Trim(fields[destination]+fields[mask], "0") != "" {
			return
		}
		raw, err := hex.DecodeString(fields[gateway])
		if err != nil {
			return
		}
		if len(raw) == net.IPv4len { // in the byte order of the machine
			binary.NativeEndian.PutUint32(raw, binary.BigEndian.Uint32(raw))
		}
		if ip, ok := netip.AddrFromSlice(raw); ok && !ip.IsUnspecified() {
			list = append(list, ip)
		}
	}
	for _, table := range []struct {
		path                                       string
		columns, destination, mask, gateway, flags int
	}{
		{path: routesIPv4, columns: 8, destination: 1, mask: 7, gateway: 2, flags: 3},
		{path: routesIPv6, columns: 10, destination: 0, mask: 1, gateway: 4, flags: 8},
	} {
		text, err := read(table.path)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			if fields := strings.Fields(line); len(fields) >= table.columns {
				add(fields, table.destination, table.mask, table.gateway, table.flags)
			}
		}
	}
	return list
}
