// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// stream adds the filter chains for a port of a service: those of its VirtualService, otherwise a
// chain that leads to the service.
func (p *planner) stream(l *outboundListener, svc *model.Service, port model.Port, ranges []netip.Prefix) {
	byName := svc.Resolution == model.ResolutionDynamicDNS
	if byName && !port.Protocol.IsTLS() && !port.Protocol.Sniffed() {
		p.plan.problems = append(p.plan.problems, model.Problem{
			Object: svc.Source, Warning: true,
			Reason: fmt.Sprintf("spec.ports: port %d is of the protocol %s, whose connections name no host to resolve, so nothing is sent to it: write TLS or HTTP, or another resolution", port.Number, port.Protocol),
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
		}
		chain.stream, chain.sources = p.routes.StreamTo(svc, port.Number), p.routes.TakeSources()
		ok := true
		if port.Protocol.IsTLS() && (l.bind == anyAddress || l.local) && len(ranges) == 0 {
			// Only the SNI distinguishes it from other services on the port.
			chain.serverNames, ok = serverNames([]string{svc.Hostname})
		}
		if ok {
			chains = append(chains, chain)
		}
	}
	for _, chain := range chains {
		if chain.byName && len(chain.serverNames) == 0 {
			continue // requests use separate chains
		}
		if fault := p.protocols.Fault(port.Protocol, chain.stream); fault != "" {
			p.plan.problems = append(p.plan.problems, model.Problem{Object: chain.from, Warning: true, Reason: fmt.Sprintf("port %d of %s: %s", port.Number, svc.Hostname, fault)})
		}
		chain.protocol = port.Protocol
		p.add(l, chain)
	}
}

// takesEverything reports whether the last chain matches every connection.
func takesEverything(chains []streamChain, ranges []netip.Prefix) bool {
	last := chains[len(chains)-1]
	return len(last.serverNames) == 0 && slices.Equal(last.prefixes, ranges)
}

// conflict reports that the filter chain of an object is omitted because its connections cannot be
// distinguished from those of another chain.
func (p *planner) conflict(l *outboundListener, lost, won streamChain) {
	if lost.from.Kind == model.KubernetesService && won.from.Kind == model.KubernetesService {
		return // the addresses were not chosen by a user
	}
	where, cure := cmp.Or(l.bind, "every address"), "give one of them its own address (spec.addresses) or another port"
	if l.local {
		where, cure = "the address of each workload", anotherNumber
	}
	p.plan.problems = append(p.plan.problems, model.Problem{
		Object: lost.from, Warning: true, Code: model.ConflictOutbound,
		Reason: "port " + envoyconf.Number(l.port) + " of " + where + " is already used by " + won.from.String() +
			", and connections to both are indistinguishable: " + cure,
	})
}

// routed builds the chains of the TLS and TCP routes of a VirtualService.
func (p *planner) routed(vs *snapshot.VirtualService, svc *model.Service, port model.Port, ranges []netip.Prefix) []streamChain {
	var out []streamChain
	if port.Protocol.IsTLS() || port.Protocol.Sniffed() {
		for _, route := range vs.Spec.GetTls() {
			for _, m := range route.GetMatch() {
				names, ok := serverNames(m.GetSniHosts())
				if !ok || !p.routes.TakesStream(m, port.Number, vs.Config.Namespace) {
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
			if !p.routes.TakesStream(m, port.Number, vs.Config.Namespace) {
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

// subnets parses destination subnets. For an empty list, it returns the addresses of the service.
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
	chain.from = vs.Config.Key
	chain.stream, _ = p.routes.Stream(vs, port, dests) // without a destination it closes connections
	chain.sources = p.routes.TakeSources()
	return append(chains, chain)
}
