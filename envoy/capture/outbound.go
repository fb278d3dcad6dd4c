// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package capture

import (
	"net/netip"
	"slices"
)

// The ports of DNS: of resolvers, and of the agent.
const (
	portDNS      = 53
	portAgentDNS = 15053
)

// outbound captures the connections of the workload.
func (b *builder) outbound() {
	b.add(tableNAT, chainOutput, match{proto: protoTCP}, jump(chainOutbound), "JumpOutbound")
	for _, port := range b.ExcludeOutboundPorts {
		b.nat(chainOutbound, match{proto: protoTCP, dport: port}, action{})
	}
	b.nat(chainOutbound, match{out: "lo", src: b.passthrough}, action{})
	includesLoopback := slices.ContainsFunc(b.IncludeRanges, func(p netip.Prefix) bool { return p.Addr().IsLoopback() })
	b.eachProxy(func(owner string, id uint32) {
		ids := []uint32{id}
		// A workload that calls its own service passes Envoy twice, as client and as server.
		self := match{proto: protoTCP, out: "lo", dst: b.loopback, notDst: true, notDports: []uint16{b.TunnelPort}, owner: owner, ids: ids}
		if b.DNS && owner == ownerUser {
			self.notDports = []uint16{portDNS, b.TunnelPort}
		}
		b.nat(chainOutbound, self, jump(chainToInbound))
		if !includesLoopback {
			// A workload that calls its own address does not pass Envoy.
			own := match{out: "lo", owner: owner, ids: ids, notOwner: true}
			if b.DNS {
				own.proto, own.notDports = protoTCP, []uint16{portDNS}
			}
			b.nat(chainOutbound, own, action{})
		}
		b.nat(chainOutbound, match{owner: owner, ids: ids}, action{})
	})
	b.groups(chainOutbound, match{})
	if b.DNS {
		b.toResolvers(func(m match) {
			m.proto = protoTCP
			b.nat(chainOutbound, m, redirect(portAgentDNS))
		})
	}
	b.nat(chainOutbound, match{dst: b.loopback}, action{})
	for _, p := range b.exclude {
		b.nat(chainOutbound, match{dst: p}, action{})
	}
	for _, port := range b.OutboundPorts {
		b.nat(chainOutbound, match{proto: protoTCP, dport: port}, jump(chainToOutbound))
	}
	if b.IncludeAll {
		b.nat(chainOutbound, match{}, jump(chainToOutbound))
		return
	}
	for _, p := range b.include {
		b.nat(chainOutbound, match{dst: p}, jump(chainToOutbound))
	}
}

// groups lets pass what processes of certain groups send.
func (b *builder) groups(chain string, m match) {
	m.owner = ownerGroup
	if !b.GroupsAll {
		m.ids, m.notOwner = b.Groups, true
		b.nat(chain, m, action{})
		return
	}
	for _, id := range b.ExcludeGroups {
		m.ids = []uint32{id}
		b.nat(chain, m, action{})
	}
}

// toResolvers calls a function with a match of port 53: of each resolver of the system, or of all
// addresses.
func (b *builder) toResolvers(f func(match)) {
	if b.AllDNS {
		f(match{dport: portDNS})
		return
	}
	for _, a := range b.resolvers {
		f(match{dport: portDNS, dst: single(a)})
	}
}

// The connection tracking zones of DNS. A query of the application and the one that the agent sends
// for it to the same resolver can have the same addresses and ports.
const (
	zoneAgent       = 1 // between agent and resolver
	zoneApplication = 2 // between application and agent
)

// dns captures the queries of the workload.
func (b *builder) dns() {
	if slices.Contains(b.ExcludeOutboundPorts, portDNS) {
		b.nat(chainOutput, match{proto: protoUDP, dport: portDNS}, action{})
	}
	b.eachProxy(func(owner string, id uint32) {
		b.nat(chainOutput, match{proto: protoUDP, dport: portDNS, owner: owner, ids: []uint32{id}}, action{})
	})
	b.groups(chainOutput, match{proto: protoUDP, dport: portDNS})
	b.toResolvers(func(m match) {
		m.proto = protoUDP
		b.nat(chainOutput, m, redirect(portAgentDNS))
	})
	b.eachProxy(func(owner string, id uint32) {
		ids := []uint32{id}
		b.add(tableRaw, chainOutput, match{proto: protoUDP, dport: portDNS, owner: owner, ids: ids}, zone(zoneAgent), "")
		b.add(tableRaw, chainOutput, match{proto: protoUDP, sport: portAgentDNS, owner: owner, ids: ids}, zone(zoneApplication), "")
	})
	b.toResolvers(func(m match) {
		m.proto = protoUDP
		b.add(tableRaw, chainOutput, m, zone(zoneApplication), "")
		// The response of the resolver.
		response := match{proto: protoUDP, sport: portDNS, src: m.dst}
		b.add(tableRaw, chainPrerouting, response, zone(zoneAgent), "")
	})
}
