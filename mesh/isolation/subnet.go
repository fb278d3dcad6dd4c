// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package isolation

import (
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// private are the networks in which the addresses of workloads may be, in the order of preference.
var private = []netip.Prefix{
	netip.MustParsePrefix("10.0.0.0/8"),
	netip.MustParsePrefix("100.64.0.0/10"),
	netip.MustParsePrefix("172.16.0.0/12"),
	netip.MustParsePrefix("198.18.0.0/15"),
	netip.MustParsePrefix("192.168.0.0/16"),
}

// inside returns the network of the namespaces for a loopback network of the machine: the same low
// bits in the first private network to a part of which the machine has no route. What the machine
// reaches there is out of reach for workloads, so if all are in use, it is the first one.
func inside(outside netip.Prefix, routes []netip.Prefix) netip.Prefix {
	var first netip.Prefix
	for _, p := range private {
		if p.Bits() > outside.Bits() {
			continue
		}
		subnet := netip.PrefixFrom(replace(p, outside.Addr()), outside.Bits()).Masked()
		if !first.IsValid() {
			first = subnet
		}
		if !overlaps(subnet, routes) {
			return subnet
		}
	}
	return first
}

// replace returns an address with its first bits replaced by those of a network.
func replace(network netip.Prefix, a netip.Addr) netip.Addr {
	out, low := network.Masked().Addr().As4(), a.As4()
	for i := range out {
		mask := byte(0xff) >> min(8, max(0, network.Bits()-8*i))
		out[i] |= low[i] & mask
	}
	return netip.AddrFrom4(out)
}

func overlaps(p netip.Prefix, all []netip.Prefix) bool {
	for _, o := range all {
		if p.Overlaps(o) {
			return true
		}
	}
	return false
}

// routes returns the networks to which this machine has routes, in all tables, except default routes
// and the halves and quarters of all addresses with which VPNs replace them. An error means that none
// is known.
func routes() []netip.Prefix {
	list, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil
	}
	var out []netip.Prefix
	for _, r := range list {
		if r.Dst == nil {
			continue
		}
		ip, ok := netip.AddrFromSlice(r.Dst.IP.To4())
		if bits, _ := r.Dst.Mask.Size(); ok && bits >= 8 {
			out = append(out, netip.PrefixFrom(ip, bits))
		}
	}
	return out
}
