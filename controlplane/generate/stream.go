// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/parts"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// stream adds what becomes of connections to a port of a service: what its
// VirtualService says, otherwise they go to the service.
func (p *planner) stream(l *outboundListener, svc *model.Service, port model.Port, ranges []netip.Prefix) {
	byName := svc.Resolution == model.ResolutionDynamicDNS
	if byName && !port.Protocol.IsTLS() && !port.Protocol.Sniffed() {
		p.plan.problems = append(p.plan.problems, model.Problem{
			Object: svc.Source, Warning: true,
			Reason: fmt.Sprintf("spec.ports: port %d is of the protocol %s, whose connections name no host to resolve, so nothing is sent there: write TLS or HTTP, or another resolution", port.Number, port.Protocol),
		})
		return
	}
	var chains []streamChain
	if vs := p.mesh.VirtualServices.ForSidecar(svc.Hostname, p.proxy.Namespace, p.sidecar); vs != nil {
		chains = p.routed(vs, svc, port, ranges)
	}
	if len(chains) == 0 || !port.Protocol.IsTLS() && !takesEverything(chains, ranges) {
		chain := streamChain{
			prefixes: ranges, from: svc.Source,
			byName: byName, detect: port.Protocol.Sniffed(),
			stream: p.streamTo(parts.OutboundName(port.Number, "", svc.Hostname), p.target(svc, port.Number, "")),
		}
		ok := true
		if port.Protocol.IsTLS() && l.bind == anyAddress && len(ranges) == 0 {
			// Nothing but the name tells it from other services on the port.
			chain.serverNames, ok = serverNames([]string{svc.Hostname})
		}
		if ok {
			chains = append(chains, chain)
		}
	}
	for _, chain := range chains {
		if chain.byName && len(chain.serverNames) == 0 {
			continue // requests are told from others, which name nobody
		}
		p.add(l, chain)
	}
}

// takesEverything reports whether the last chain leaves no connection over.
func takesEverything(chains []streamChain, ranges []netip.Prefix) bool {
	last := chains[len(chains)-1]
	return len(last.serverNames) == 0 && slices.Equal(last.prefixes, ranges)
}

// conflict tells the author that connections cannot be told apart.
func (p *planner) conflict(l *outboundListener, lost, won streamChain) {
	if lost.from.Kind == model.KubernetesService && won.from.Kind == model.KubernetesService {
		return // nobody chose the addresses
	}
	where := cmp.Or(l.bind, "every address")
	p.plan.problems = append(p.plan.problems, model.Problem{
		Object: lost.from, Warning: true, Code: model.ConflictOutbound,
		Reason: "port " + parts.Number(l.port) + " of " + where + " already leads to what " + won.from.String() +
			" says, and connections to both look the same: give one of them an address of its own (spec.addresses) or another port",
	})
}

// routed makes the chains of the TLS and TCP routes of a VirtualService.
func (p *planner) routed(vs *snapshot.VirtualService, svc *model.Service, port model.Port, ranges []netip.Prefix) []streamChain {
	var out []streamChain
	if port.Protocol.IsTLS() || port.Protocol.Sniffed() {
		for _, route := range vs.Spec.GetTls() {
			for _, m := range route.GetMatch() {
				names, ok := serverNames(m.GetSniHosts())
				if !ok || !p.applies(m, port.Number) {
					continue
				}
				chain := streamChain{serverNames: names, prefixes: subnets(m.GetDestinationSubnets(), ranges)}
				out = p.routeTo(out, chain, vs, port.Number, route.GetRoute())
			}
		}
	}
	if len(out) > 0 && port.Protocol.IsTLS() {
		return out
	}
	for _, route := range vs.Spec.GetTcp() {
		matches := route.GetMatch()
		if len(matches) == 0 {
			return p.routeTo(out, streamChain{prefixes: ranges}, vs, port.Number, route.GetRoute())
		}
		for _, m := range matches {
			if !p.applies(m, port.Number) {
				continue
			}
			chain := streamChain{prefixes: subnets(m.GetDestinationSubnets(), ranges)}
			if out = p.routeTo(out, chain, vs, port.Number, route.GetRoute()); len(m.GetDestinationSubnets()) == 0 {
				return out
			}
		}
	}
	return out
}

// l4match is what TLS and TCP matches share.
type l4match interface {
	GetPort() uint32
	GetSourceLabels() map[string]string
	GetSourceNamespace() string
	GetGateways() []string
}

// applies evaluates what a match says about the caller and the port.
func (p *planner) applies(m l4match, port uint32) bool {
	if gateways := m.GetGateways(); len(gateways) > 0 && !slices.Contains(gateways, "mesh") {
		return false
	}
	return (m.GetPort() == 0 || m.GetPort() == port) &&
		(m.GetSourceNamespace() == "" || m.GetSourceNamespace() == p.proxy.Namespace) &&
		model.Selects(m.GetSourceLabels(), p.proxy.Labels)
}

// subnets reads destination subnets; without any those of the service count.
func subnets(list []string, otherwise []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		if prefix, err := netip.ParsePrefix(s); err == nil {
			out = append(out, prefix.Masked())
		} else if ip, err := netip.ParseAddr(s); err == nil {
			out = append(out, netip.PrefixFrom(ip, ip.BitLen()))
		}
	}
	if len(out) == 0 {
		return otherwise
	}
	return out
}

// routeTo appends a chain that leads to the destinations of a route.
func (p *planner) routeTo(chains []streamChain, chain streamChain, vs *snapshot.VirtualService, port uint32, dests []*networkingv1alpha3.RouteDestination) []streamChain {
	var targets []parts.Target
	for _, d := range dests {
		if d.GetWeight() <= 0 && len(dests) > 1 {
			continue
		}
		host := p.mesh.ResolveHost(d.GetDestination().GetHost(), vs.Config.Namespace)
		number := cmp.Or(d.GetDestination().GetPort().GetNumber(), port)
		if svc := p.view.byHost[host]; svc != nil && d.GetDestination().GetPort().GetNumber() == 0 && len(svc.Ports) == 1 {
			number = svc.Ports[0].Number
		}
		targets = append(targets, parts.Target{
			Cluster: parts.OutboundName(number, d.GetDestination().GetSubset(), host), Weight: uint32(max(d.GetWeight(), 1)),
		})
	}
	if len(targets) == 0 {
		targets = []parts.Target{{Cluster: parts.BlackHoleCluster}} // better than what nobody asked for
	}
	name := vs.Config.Name + "." + vs.Config.Namespace
	if len(targets) == 1 {
		name = targets[0].Cluster
	}
	chain.from, chain.stream = vs.Config.Key, p.streamTo(name, targets...)
	return append(chains, chain)
}

// target is the cluster of a port of a service.
func (p *planner) target(svc *model.Service, port uint32, subset string) parts.Target {
	return parts.Target{Cluster: parts.OutboundName(port, subset, svc.Hostname), Weight: 1}
}

// streamTo says how connections go to some targets. What the DestinationRule of
// the first one says about connections holds for all.
func (p *planner) streamTo(name string, targets ...parts.Target) parts.Stream {
	s := parts.Stream{StatPrefix: name, Targets: targets}
	i, ok := slices.BinarySearchFunc(p.view.clusters, targets[0].Cluster, func(c clusterRef, name string) int { return cmp.Compare(c.name, name) })
	if !ok {
		return s
	}
	policy := p.view.clusters[i].policy()
	s.Idle, s.Longest = policy.Pool.GetTcp().GetIdleTimeout(), policy.Pool.GetTcp().GetMaxConnectionDuration()
	s.BySource = policy.Balancer.GetConsistentHash().GetUseSourceIp()
	s.Tunnel = policy.Tunneling()
	return s
}
