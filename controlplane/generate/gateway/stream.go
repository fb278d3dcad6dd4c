// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package gateway

import (
	"fmt"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/proto"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// tcp adds the chains of a server whose connections follow the TCP routes of its VirtualServices.
// The socket terminates TLS; nil means plaintext. If no route matches all connections, the
// remaining ones are closed.
func (b *chains) tcp(s *server, names []string, socket *corev3.TransportSocket) {
	for _, vs := range b.virtualServices(s.gateway) {
		if len(snapshot.IntersectHosts(s.gateway.ServerHosts(s.spec, vs.Config.Namespace), vs.Hosts)) == 0 {
			continue
		}
		for i, route := range vs.Spec.GetTcp() {
			matches := route.GetMatch()
			if len(matches) == 0 {
				matches = []*networkingv1alpha3.L4MatchAttributes{nil}
			}
			for j, m := range matches {
				if !b.builder(s).TakesStream(m, s.number(), vs.Config.Namespace) {
					continue
				}
				of := owner{vs.Config, fmt.Sprintf("spec.tcp[%d].match[%d]", i, j)}
				match, ok := b.match(of, names, m.GetDestinationSubnets(), m.GetSourceSubnet())
				if !ok {
					continue
				}
				filters, from := b.streamFilters(of, vs, s, route.GetRoute())
				b.add(&listenerv3.FilterChain{FilterChainMatch: match, Filters: filters, TransportSocket: socket}, of, from)
				if len(m.GetDestinationSubnets()) == 0 && m.GetSourceSubnet() == "" {
					return
				}
			}
		}
	}
	match, _ := b.match(s.owner(), names, nil, "")
	b.add(&listenerv3.FilterChain{
		FilterChainMatch: match, Filters: []*listenerv3.Filter{envoyconf.TCPProxy(envoyconf.BlackHole(b.Observed.ClosedLog))}, TransportSocket: socket,
	}, s.owner(), s.sources)
}

// streamFilters returns the filters that forward connections to the destinations of a route.
func (b *chains) streamFilters(of owner, vs *snapshot.VirtualService, s *server, dests []*networkingv1alpha3.RouteDestination) ([]*listenerv3.Filter, xds.Sources) {
	builder := b.builder(s)
	stream, ok := builder.Stream(vs, s.number(), dests)
	if !ok {
		b.problems = append(b.problems, of.problem("all destinations of the route have the weight 0, so connections are ended: give one of them a weight"))
	}
	if fault := b.Protocols.Fault(s.protocol, stream); fault != "" {
		problem := of.problem("%s", fault)
		problem.Warning = true
		b.problems = append(b.problems, problem)
	}
	return b.stream(s.protocol, stream), slices.Concat(s.sources, builder.TakeSources(), b.Authorization.Sources, b.Recorded)
}

// stream returns the filters that forward accepted connections of a protocol.
func (b *chains) stream(protocol model.Protocol, to envoyconf.Stream) []*listenerv3.Filter {
	to.AccessLog = slices.Concat(b.Observed.StreamLog, b.Authorization.StreamLog, envoyconf.RecordConnections(b.Records))
	return append(slices.Clone(b.Authorization.Stream), b.Protocols.Forward(protocol, to)...)
}

// match returns the match of a chain, or nil if it matches all connections. It returns false if
// the chain cannot match any.
func (b *chains) match(of owner, names, to []string, from string) (*listenerv3.FilterChainMatch, bool) {
	m := &listenerv3.FilterChainMatch{ServerNames: names}
	read := func(text string) (*corev3.CidrRange, bool) {
		r := envoyconf.ParseRange(text)
		if r == nil {
			b.problems = append(b.problems, of.problem("%q is not an address or subnet: write one such as 10.0.0.0/8", text))
		}
		return r, r != nil
	}
	for _, text := range to {
		r, ok := read(text)
		if !ok {
			return nil, false // a partial or empty list of subnets would match other connections
		}
		if !slices.Contains(cidrs(m.GetPrefixRanges()), cidrs([]*corev3.CidrRange{r})[0]) {
			m.PrefixRanges = append(m.PrefixRanges, r)
		}
	}
	if from != "" {
		r, ok := read(from)
		if !ok {
			return nil, false
		}
		m.SourcePrefixRanges = []*corev3.CidrRange{r}
	}
	if len(m.GetServerNames())+len(m.GetPrefixRanges())+len(m.GetSourcePrefixRanges()) == 0 {
		return nil, true
	}
	return m, true
}

// passedThrough adds the chains of a server that does not terminate TLS: one for each match of the
// TLS routes of its VirtualServices, restricted to the hosts of the server. Exact names take
// precedence over names that only match a wildcard.
func (b *chains) passedThrough(s *server) {
	for _, spelled := range []bool{true, false} {
		for _, vs := range b.virtualServices(s.gateway) {
			hosts := snapshot.IntersectHosts(s.gateway.ServerHosts(s.spec, vs.Config.Namespace), vs.Hosts)
			if len(hosts) == 0 {
				continue
			}
			for i, route := range vs.Spec.GetTls() {
				for j, m := range route.GetMatch() {
					if b.builder(s).TakesStream(m, s.number(), vs.Config.Namespace) {
						of := owner{vs.Config, fmt.Sprintf("spec.tls[%d].match[%d]", i, j)}
						b.sniMatch(of, s, tlsMatch{vs, m, route.GetRoute(), hosts}, spelled)
					}
				}
			}
		}
	}
}

// tlsMatch is one match of a TLS route.
type tlsMatch struct {
	vs    *snapshot.VirtualService
	spec  *networkingv1alpha3.TLSMatchAttributes
	dests []*networkingv1alpha3.RouteDestination
	hosts []string // of the server and the VirtualService
}

// sniMatch adds the chain of a match, either for the names that sniHosts contains literally or for
// the others.
func (b *chains) sniMatch(of owner, s *server, m tlsMatch, spelled bool) {
	written := plainHosts(m.spec.GetSniHosts())
	all := snapshot.IntersectHosts(m.hosts, written)
	if len(all) == 0 && spelled {
		b.problems = append(b.problems, of.problem("no name of sniHosts is both in %s of the Gateway %s and in spec.hosts, so the route has no effect there; correct the names",
			s.at(), s.gateway.Name))
		return
	}
	var names []string
	for _, name := range all {
		if slices.Contains(written, name) != spelled {
			continue
		}
		if fault := serverNameFault(name); fault != "" {
			b.problems = append(b.problems, of.problem("%s", fault))
			continue
		}
		names = append(names, name)
	}
	match, ok := b.match(of, nil, m.spec.GetDestinationSubnets(), "")
	if !ok {
		return
	}
	if match == nil {
		match = &listenerv3.FilterChainMatch{}
	}
	if !spelled { // names that another match lists literally belong to it
		names = slices.DeleteFunc(names, func(name string) bool {
			match.ServerNames = serverNames([]string{name})
			return slices.ContainsFunc(matchKeys(match), func(key string) bool { _, taken := b.taken[key]; return taken })
		})
	}
	if len(names) == 0 {
		return
	}
	if match.ServerNames = serverNames(names); proto.Equal(match, &listenerv3.FilterChainMatch{}) {
		match = nil
	}
	filters, from := b.streamFilters(of, m.vs, s, m.dests)
	b.add(&listenerv3.FilterChain{FilterChainMatch: match, Filters: filters}, of, from)
}

// automatic adds a chain for each port that mutual TLS of the mesh can reach through the gateway.
func (b *chains) automatic(s *server) {
	for _, p := range s.passthroughs(b.Source) {
		if serverNameFault(p.Name) != "" {
			continue
		}
		b.add(&listenerv3.FilterChain{
			FilterChainMatch: &listenerv3.FilterChainMatch{ServerNames: []string{p.Name}, ApplicationProtocols: envoyconf.MeshALPN()},
			Filters:          b.stream(model.ProtocolTLS, envoyconf.Stream{StatPrefix: p.statName(b.Mesh.Config), Targets: []envoyconf.Target{{Cluster: p.Name, Weight: 1}}}),
		}, s.owner(), slices.Concat(p.sources(), s.sources, b.Authorization.Sources))
	}
}
