// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package capture

import (
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Settings are what is captured, and how.
type Settings struct {
	// OutboundPort and InboundPort are the ports of Envoy; connections to TunnelPort bypass it.
	OutboundPort, InboundPort, TunnelPort uint16
	// UIDs and GIDs are the users and groups of agent and Envoy, whose connections are not captured.
	UIDs, GIDs []uint32
	// TProxy passes inbound connections to Envoy with their addresses unchanged. Their packets have
	// TProxyMark, by which RouteTable leads them to Envoy.
	TProxy                 bool
	TProxyMark, RouteTable uint32

	// InboundAll captures all inbound ports but ExcludeInboundPorts; otherwise InboundPorts.
	InboundAll                        bool
	InboundPorts, ExcludeInboundPorts []uint16

	// IncludeAll captures connections to all addresses but ExcludeRanges; otherwise to
	// IncludeRanges.
	IncludeAll                          bool
	IncludeRanges, ExcludeRanges        []netip.Prefix
	OutboundPorts, ExcludeOutboundPorts []uint16

	// GroupsAll captures connections of all groups but ExcludeGroups; otherwise of Groups.
	GroupsAll             bool
	Groups, ExcludeGroups []uint32

	// ExcludeInterfaces bypass Envoy. What comes in from VMInterfaces is outbound traffic of a
	// virtual machine.
	ExcludeInterfaces, VMInterfaces []string

	// DNS captures queries to Resolvers, with AllDNS to all addresses.
	DNS, AllDNS bool
	Resolvers   []netip.Addr

	// IPv6 captures IPv6, too.
	IPv6 bool
	// Loopback are the IPv4 addresses that the workload uses for itself.
	Loopback netip.Prefix
	// DropInvalid drops packets that belong to no connection, instead of resetting it.
	DropInvalid bool
	// Trace logs packets of important rules to NFLOG.
	Trace bool

	// Variant applies the rules with a variant of iptables instead of nftables.
	Variant string
	// Reconcile removes rules of other kinds.
	Reconcile bool
	// Remove removes the rules and does nothing else.
	Remove bool
	// DryRun prints the rules, and writes them to DryRunFile if it is not empty, instead of applying
	// them.
	DryRun     bool
	DryRunFile string
	// RestoreFormat prints input of iptables-restore, otherwise commands.
	RestoreFormat bool

	// SkipApply changes nothing. Validate checks that connections to ProbePort are redirected, with
	// ProbeIPv6 over IPv6, and fails after ProbeTimeout.
	SkipApply, Validate, ProbeIPv6 bool
	ProbePort                      uint16
	ProbeTimeout                   time.Duration
	// ProbeOnce fails when a connection is refused, instead of waiting for rules.
	ProbeOnce bool
}

// check checks what concerns several values.
func (s *Settings) check() error {
	switch {
	case s.OutboundPort == s.InboundPort:
		return fmt.Errorf("--envoy-port and --inbound-capture-port are both %d: Envoy needs two ports", s.OutboundPort)
	case s.TProxy && s.TProxyMark == 0:
		return fmt.Errorf("--istio-inbound-tproxy-mark is 0: it must be 1 or more, because packets have the mark 0 by default")
	case s.TProxy && s.TProxyMark == markOutbound:
		return fmt.Errorf("--istio-inbound-tproxy-mark is %d, which marks packets from Envoy: use another one, such as 1337", markOutbound)
	case s.TProxy && slices.Contains([]uint32{0, 253, 254, 255}, s.RouteTable):
		return fmt.Errorf("--istio-inbound-tproxy-route-table is %d, which the system uses: use another one, such as 133", s.RouteTable)
	case !slices.Contains([]string{"", iptablesNFT, iptablesLegacy}, s.Variant):
		return fmt.Errorf("--force-iptables-binary is %q: it must be %s or %s", s.Variant, iptablesLegacy, iptablesNFT)
	case s.Validate && s.ProbeTimeout <= 0:
		return fmt.Errorf("--probe-timeout is %s: it must be longer than 0", s.ProbeTimeout)
	case len(s.Groups) > maxGroups:
		return fmt.Errorf("%s has %d groups: %d are possible; exclude groups with %s instead", envGroups, len(s.Groups), maxGroups, envExcludeGroups)
	}
	return nil
}

// maxGroups is how many groups a rule can name.
const maxGroups = 64
