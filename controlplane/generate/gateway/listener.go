// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package gateway

import (
	"fmt"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	proxyprotocolv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/proxy_protocol/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// clientALPN returns the ALPN names that gateways offer to clients.
func clientALPN() []string { return []string{"h2", "http/1.1"} }

// Listener is a listener message and the objects that it is built from.
type Listener struct {
	*listenerv3.Listener
	Sources xds.Sources
}

// Listeners builds the listeners of a proxy. If Envoy could not distinguish two filter chains, the
// listener contains the first one. The others, and chains that Envoy would reject, are reported as
// problems.
func (m *Merged) Listeners(in *Source) ([]Listener, []model.Problem) {
	var out []Listener
	var problems []model.Problem
	for _, l := range m.listeners {
		b := &chains{Source: in, listener: l, taken: make(map[string]owner)}
		b.build()
		problems = append(problems, b.problems...)
		if len(b.list) > 0 {
			out = append(out, Listener{b.message(), b.sources})
		}
		if len(b.quic) > 0 {
			out = append(out, Listener{b.udp(), b.sources})
		}
	}
	return out, once(problems)
}

// once removes duplicate problems: an object may be bound to several servers and hosts.
func once(problems []model.Problem) []model.Problem {
	seen := make(map[model.Problem]bool, len(problems))
	return slices.DeleteFunc(problems, func(p model.Problem) bool {
		was := seen[p]
		seen[p] = true
		return was
	})
}

// chains builds the filter chains of a listener.
type chains struct {
	*Source
	*listener
	list     []*listenerv3.FilterChain
	quic     []*listenerv3.FilterChain // of HTTP/3
	taken    map[string]owner          // by the match of a chain
	sources  xds.Sources
	problems []model.Problem
}

// owner is the object, and the position in it, that a chain is built for.
type owner struct {
	object *model.Config
	at     string
}

func (o owner) String() string { return o.object.Key.String() + " " + o.at }

func (o owner) problem(format string, args ...any) model.Problem {
	return model.Problem{Object: o.object.Key, Source: o.object.Source, Reason: o.at + ": " + fmt.Sprintf(format, args...)}
}

// message returns the listener without its chains.
func (b *chains) message() *listenerv3.Listener {
	out := &listenerv3.Listener{
		Name:             b.name(),
		Address:          envoyconf.SocketAddress(b.bind, b.port),
		TrafficDirection: corev3.TrafficDirection_OUTBOUND,
		FilterChains:     b.list,
		AccessLog:        b.Observed.ListenerLog,
	}
	if path, ok := envoyconf.UnixPath(b.bind); ok {
		out.Address = envoyconf.PipeAddress(path)
	}
	if b.Topology.GetProxyProtocol() != nil {
		out.ListenerFilters = append(out.ListenerFilters, envoyconf.ListenerFilter("envoy.filters.listener.proxy_protocol", &proxyprotocolv3.ProxyProtocol{})) // the header precedes the data of the client
	}
	if b.kind == tlsByName {
		out.ListenerFilters = append(out.ListenerFilters, envoyconf.TLSInspector())
	}
	return out
}

func (b *chains) build() {
	switch b.kind {
	case plainHTTP:
		filter, from := b.http(b.servers)
		b.add(&listenerv3.FilterChain{Filters: []*listenerv3.Filter{filter}}, b.servers[0].owner(), from)
	case plainTCP:
		b.tcp(b.servers[0], nil, nil)
	case tlsByName:
		// Servers that terminate TLS come first, because the Gateway assigns their names to them.
		for _, s := range b.servers {
			if s.terminates() {
				b.terminated(s)
			}
		}
		for _, s := range b.servers {
			switch {
			case s.automatic():
				b.automatic(s)
			case !s.terminates():
				b.passedThrough(s)
			}
		}
	}
}

func (s *server) owner() owner { return owner{s.gateway.Config, s.at()} }

// add appends a chain, unless it is invalid or another one has the same match. It reports whether
// it did.
func (b *chains) add(chain *listenerv3.FilterChain, of owner, from xds.Sources) bool {
	err := chain.Validate()
	if err == nil {
		_, err = proto.Marshal(chain)
	}
	if err != nil {
		p := envoyconf.Left(of.object.Key, fmt.Errorf("%s: %w", of.at, err))
		p.Source = of.object.Source
		b.problems = append(b.problems, p)
		return false
	}
	for _, key := range matchKeys(chain.GetFilterChainMatch()) {
		if first, ok := b.taken[key]; ok {
			b.problems = append(b.problems, of.problem("its connections to port %d are already routed by %s, which wins: %s; remove one of them",
				b.port, first, strings.ReplaceAll(key, "|", " ")))
			return false
		}
	}
	for _, key := range matchKeys(chain.GetFilterChainMatch()) {
		b.taken[key] = of
	}
	b.list, b.sources = append(b.list, chain), append(b.sources, from...)
	return true
}

// matchKeys returns each combination of values that a chain matches, as Envoy does to detect
// chains with equal matches.
func matchKeys(m *listenerv3.FilterChainMatch) []string {
	keys := []string{"connections"}
	multiply := func(what string, values []string) {
		if len(values) == 0 {
			return
		}
		var next []string
		for _, key := range keys {
			for _, v := range values {
				next = append(next, key+"|"+what+" "+v)
			}
		}
		keys = next
	}
	multiply("to the address", cidrs(m.GetPrefixRanges()))
	multiply("for the name", m.GetServerNames())
	multiply("with ALPN", m.GetApplicationProtocols())
	multiply("from the address", cidrs(m.GetSourcePrefixRanges()))
	return keys
}

func cidrs(ranges []*corev3.CidrRange) []string {
	var out []string
	for _, r := range ranges {
		out = append(out, r.GetAddressPrefix()+"/"+envoyconf.Number(r.GetPrefixLen().GetValue()))
	}
	return out
}

// http returns the filter that serves the requests of servers that share routes.
func (b *chains) http(servers []*server) (*listenerv3.Filter, xds.Sources) {
	hcm, from := b.manager(servers)
	return envoyconf.HTTPFilter(hcm), from
}

// manager returns the configuration of that filter.
func (b *chains) manager(servers []*server) (*hcmv3.HttpConnectionManager, xds.Sources) {
	from := slices.Concat(b.Authentication.Sources, b.Authorization.Sources, b.Recorded)
	for _, s := range servers {
		from = append(from, s.sources...)
	}
	first := servers[0]
	prefix := first.spec.GetName()
	if prefix == "" {
		prefix = envoyconf.StatName("outbound_"+b.name(), b.DelimitedStats)
	}
	grpcWeb := slices.ContainsFunc(servers, func(s *server) bool { return s.protocol == model.ProtocolGRPCWeb })
	hcm := envoyconf.GatewayHTTP(b.Mesh.Config, prefix, b.Topology, envoyconf.Filters{
		Plugins: b.Plugins(b.port, &from), GRPCWeb: grpcWeb, Sessions: b.Sessions,
		Authentication: b.Authentication.HTTP, External: b.Authorization.External, Authorization: b.Authorization.HTTP,
		AccessLog: slices.Concat(b.Authorization.HTTPLog, b.UnknownKeys), NamesRules: b.NamesRules, Records: b.Records, Observed: b.Observed,
	})
	hcm.RouteSpecifier = &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{ConfigSource: envoyconf.OverADS(), RouteConfigName: b.routeName(first.route)}}
	return hcm, from
}

func (in *Source) routeName(name string) string {
	if in.RouteName == nil {
		return name
	}
	return in.RouteName(name)
}

// terminated adds the chains of a server that terminates TLS.
func (b *chains) terminated(s *server) {
	socket, err := envoyconf.ServerTLS(b.Mesh.Config, b.Mesh.Compliance, s.spec.GetTls(), clientALPN())
	if err != nil {
		b.problems = append(b.problems, s.problem("%s", err))
		return
	}
	names := serverNames(plainHosts(s.spec.GetHosts()))
	if s.route == "" {
		b.tcp(s, names, socket)
		return
	}
	filter, from := b.http([]*server{s})
	chain := &listenerv3.FilterChain{Name: s.route, Filters: []*listenerv3.Filter{filter}, TransportSocket: socket}
	if len(names) > 0 {
		chain.FilterChainMatch = &listenerv3.FilterChainMatch{ServerNames: names}
	}
	if b.add(chain, s.owner(), from) && b.servesHTTP3(s) {
		b.addHTTP3(s, chain)
	}
}

// serverNames returns the names for a match. An empty result matches all names, as does "*".
func serverNames(hosts []string) []string {
	if slices.Contains(hosts, "*") {
		return nil
	}
	out := slices.Clone(hosts)
	slices.Sort(out)
	return slices.Compact(out)
}
