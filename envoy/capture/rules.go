// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package capture

import "net/netip"

// The tables of netfilter, in the order in which packets pass them.
const (
	tableRaw    = "raw"
	tableMangle = "mangle"
	tableNAT    = "nat"
)

// The chains. Names in upper case without a prefix belong to the kernel.
const (
	chainPrerouting = "PREROUTING"
	chainOutput     = "OUTPUT"
	chainInbound    = "ISTIO_INBOUND"
	chainOutbound   = "ISTIO_OUTPUT"
	chainToOutbound = "ISTIO_REDIRECT"
	chainToInbound  = "ISTIO_IN_REDIRECT"
	chainDivert     = "ISTIO_DIVERT"
	chainTProxy     = "ISTIO_TPROXY"
)

// The protocols of matches.
const (
	protoTCP = "tcp"
	protoUDP = "udp"
)

// The owners of sockets that a rule matches.
const (
	ownerUser  = "uid"
	ownerGroup = "gid"
)

// The states of connections that a rule matches.
const (
	stateInvalid     = "INVALID"
	stateEstablished = "RELATED,ESTABLISHED"
)

// Rule is one rule of a chain, independent of the program that applies it.
type Rule struct {
	table, chain string
	match        match
	action       action
}

// match is the condition of a rule: all fields that are not zero must match.
type match struct {
	proto        string // protoTCP or protoUDP
	in, out      string // interface; a plus sign at the end matches all names that begin so
	src, dst     netip.Prefix
	notDst       bool
	sport, dport uint16
	notDports    []uint16
	owner        string   // ownerUser or ownerGroup, of ids
	ids          []uint32 // one, or several if notOwner
	notOwner     bool
	state        string // stateInvalid or stateEstablished
	mark         uint32
	notMark      bool
	connMark     uint32
}

// kind is what a rule does.
type kind int

const (
	doReturn kind = iota
	doAccept
	doDrop
	doJump
	doRedirect
	doTProxy
	doMark
	doSaveMark
	doRestoreMark
	doZone
	doLog
)

// action is what a rule does with a packet that matches.
type action struct {
	kind  kind
	chain string // of doJump
	port  uint16 // of doRedirect and doTProxy
	value uint32 // the mark of doMark and doTProxy, the zone of doZone
	text  string // the prefix of doLog
}

func jump(chain string) action         { return action{kind: doJump, chain: chain} }
func redirect(port uint16) action      { return action{kind: doRedirect, port: port} }
func setMark(value uint32) action      { return action{kind: doMark, value: value} }
func zone(value uint32) action         { return action{kind: doZone, value: value} }
func isBuiltin(chain string) bool      { return chain == chainPrerouting || chain == chainOutput }
func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// Family is the rules for one family of addresses.
type Family struct {
	// Six is true for IPv6.
	Six   bool
	Rules []Rule
}

// Rules returns the rules: those for IPv4, and those for IPv6 if it is captured.
func (s *Settings) Rules() []Family {
	families := []Family{{Rules: s.family(false)}}
	if s.IPv6 {
		families = append(families, Family{Six: true, Rules: s.family(true)})
	}
	return families
}

// builder collects the rules of one family.
type builder struct {
	*Settings
	rules []Rule
	// loopback is what applications use to reach themselves without Envoy.
	loopback netip.Prefix
	// passthrough is the source of connections from Envoy to the application.
	passthrough      netip.Prefix
	include, exclude []netip.Prefix
	resolvers        []netip.Addr
}

func (s *Settings) family(six bool) []Rule {
	b := &builder{Settings: s, loopback: s.Loopback, passthrough: netip.MustParsePrefix("127.0.0.6/32")}
	if six {
		b.loopback, b.passthrough = netip.MustParsePrefix("::1/128"), netip.MustParsePrefix("::6/128")
	}
	for _, p := range s.IncludeRanges {
		if p.Addr().Is6() == six {
			b.include = append(b.include, p)
		}
	}
	for _, p := range s.ExcludeRanges {
		if p.Addr().Is6() == six {
			b.exclude = append(b.exclude, p)
		}
	}
	for _, a := range s.Resolvers {
		if a.Is6() == six {
			b.resolvers = append(b.resolvers, a)
		}
	}
	b.interfaces()
	if s.DropInvalid {
		b.add(tableMangle, chainPrerouting, match{state: stateInvalid}, action{kind: doDrop}, "")
	}
	b.inbound()
	b.outbound()
	if s.TProxy {
		b.marks()
	}
	if s.DNS {
		b.dns()
	}
	return b.rules
}

// add adds a rule, and with tracing and a prefix another one before it that logs what matches.
func (b *builder) add(table, chain string, m match, a action, prefix string) {
	if b.Trace && prefix != "" {
		b.rules = append(b.rules, Rule{table, chain, m, action{kind: doLog, text: prefix}})
	}
	b.rules = append(b.rules, Rule{table, chain, m, a})
}

// nat adds a rule to a chain of the nat table.
func (b *builder) nat(chain string, m match, a action) { b.add(tableNAT, chain, m, a, "") }

// mangle adds a rule to a chain of the mangle table.
func (b *builder) mangle(chain string, m match, a action) { b.add(tableMangle, chain, m, a, "") }

// interfaces decides about packets by their interface alone.
func (b *builder) interfaces() {
	for _, name := range b.VMInterfaces {
		const prefix = "KubevirtCommand"
		switch {
		case b.IncludeAll:
			b.add(tableNAT, chainPrerouting, match{in: name}, jump(chainToOutbound), prefix)
		default:
			for _, p := range b.include {
				b.add(tableNAT, chainPrerouting, match{in: name, dst: p}, jump(chainToOutbound), prefix)
			}
		}
		b.add(tableNAT, chainPrerouting, match{in: name}, action{}, prefix)
	}
	for _, name := range b.ExcludeInterfaces {
		const prefix = "ExcludeInterfaceCommand"
		b.add(tableNAT, chainPrerouting, match{in: name}, action{}, prefix)
		b.add(tableNAT, chainOutput, match{out: name}, action{}, prefix)
		if b.TProxy {
			b.add(tableMangle, chainPrerouting, match{in: name}, action{}, prefix)
			b.add(tableMangle, chainOutput, match{out: name}, action{}, prefix)
		}
	}
}

// inbound captures the connections that come from elsewhere.
func (b *builder) inbound() {
	b.nat(chainInbound, match{proto: protoTCP, dport: b.TunnelPort}, action{})
	b.nat(chainToOutbound, match{proto: protoTCP}, redirect(b.OutboundPort))
	const captured = "InboundCapture"
	b.add(tableNAT, chainToInbound, match{proto: protoTCP}, redirect(b.InboundPort), captured)
	if b.TProxy {
		b.mangle(chainDivert, match{}, setMark(b.TProxyMark))
		b.mangle(chainDivert, match{}, action{kind: doAccept})
		b.add(tableMangle, chainTProxy, match{proto: protoTCP, dst: b.loopback, notDst: true}, action{kind: doTProxy, port: b.InboundPort, value: b.TProxyMark}, captured)
		// Packets with the mark come from Envoy or belong to its connections already.
		b.mangle(chainInbound, match{proto: protoTCP, mark: b.TProxyMark}, action{})
		b.mangle(chainInbound, match{proto: protoTCP, src: b.passthrough, in: "lo"}, action{})
		// On the loopback interface, only what Envoy sends to the own address is inbound.
		b.mangle(chainInbound, match{proto: protoTCP, in: "lo", mark: markOutbound, notMark: true}, action{})
	}
	if !b.InboundAll && len(b.InboundPorts) == 0 {
		return
	}
	table := tableNAT
	if b.TProxy {
		table = tableMangle
	}
	b.add(table, chainPrerouting, match{proto: protoTCP}, jump(chainInbound), "JumpInbound")
	if !b.InboundAll {
		for _, port := range b.InboundPorts {
			b.take(match{proto: protoTCP, dport: port}, "IncludeInboundPort")
		}
		return
	}
	for _, port := range b.ExcludeInboundPorts {
		b.add(table, chainInbound, match{proto: protoTCP, dport: port}, action{}, "ExcludeInboundPort")
	}
	b.take(match{proto: protoTCP}, "")
}

// take passes inbound packets to Envoy.
func (b *builder) take(m match, prefix string) {
	if !b.TProxy {
		b.add(tableNAT, chainInbound, m, jump(chainToInbound), prefix)
		return
	}
	established := m
	established.state = stateEstablished
	b.add(tableMangle, chainInbound, established, jump(chainDivert), prefix)
	b.add(tableMangle, chainInbound, m, jump(chainTProxy), prefix)
}

// markOutbound marks packets that Envoy sends to the address of its own workload, with TPROXY.
const markOutbound = 1338

// marks keeps the packets of one connection on one way, with TPROXY.
func (b *builder) marks() {
	b.mangle(chainPrerouting, match{proto: protoTCP, mark: b.TProxyMark}, action{kind: doSaveMark})
	b.mangle(chainOutput, match{proto: protoTCP, out: "lo", mark: b.TProxyMark}, action{})
	b.eachProxy(func(owner string, id uint32) {
		b.mangle(chainOutput, match{proto: protoTCP, out: "lo", dst: b.loopback, notDst: true, owner: owner, ids: []uint32{id}}, setMark(markOutbound))
	})
	b.mangle(chainOutput, match{proto: protoTCP, connMark: b.TProxyMark}, action{kind: doRestoreMark})
}

// eachProxy calls a function for each user and each group of agent and Envoy.
func (b *builder) eachProxy(f func(owner string, id uint32)) {
	for _, id := range b.UIDs {
		f(ownerUser, id)
	}
	for _, id := range b.GIDs {
		f(ownerGroup, id)
	}
}
