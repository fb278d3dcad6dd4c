// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"cmp"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/authentication"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/authorization"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/cluster"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/extension"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/telemetry"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// transparentMark marks packets to the application that carry the address of the caller as their
// source. The TPROXY rules route the responses back by this mark.
const transparentMark = 1337

// listener returns the listener of one port of the workload.
func (in *ingress) listener(e ingressEntry) ownListener {
	s, from := in.target, slices.Concat(e.from, in.peers)
	l := &listenerv3.Listener{
		Name:             e.bind + "_" + envoyconf.Number(e.port),
		Address:          envoyconf.SocketAddress(e.bind, e.port),
		TrafficDirection: corev3.TrafficDirection_INBOUND,
		FilterChains:     inboundChains(s, e, &from),
		AccessLog:        s.server.ListenerLog,
	}
	if path, ok := envoyconf.UnixPath(e.bind); ok {
		l.Name, l.Address = path, envoyconf.PipeAddress(path)
	}
	if e.mode == snapshot.MutualTLSPermissive || e.protocol.Sniffed() {
		l.ListenerFilters = append(l.ListenerFilters, envoyconf.TLSInspector())
	}
	if e.protocol.Sniffed() {
		l.ListenerFilters = append(l.ListenerFilters, httpInspector())
	}
	if len(l.ListenerFilters) > 0 {
		s.detection(l)
	}
	return ownListener{l, from}
}

// virtual returns the listener that receives all redirected inbound traffic. Connections to
// unknown ports are forwarded to their original destination.
func (in *ingress) virtual() ownListener {
	s, from := in.target, slices.Clone(in.peers)
	port := cmpPort(s.mesh.Config.GetProxyInboundListenPort(), inboundPort)
	l := &listenerv3.Listener{Name: "virtualInbound", TrafficDirection: corev3.TrafficDirection_INBOUND, AccessLog: s.server.ListenerLog}
	s.wildcard(l, port)
	l.FilterChains = append(l.FilterChains, blackHoleChain("virtualInbound-blackhole", port, s.server.ClosedLog))
	for _, f := range in.fallback {
		l.FilterChains = append(l.FilterChains, in.passthrough(f, &from)...)
	}
	if len(in.refused) > 0 {
		from.AddConfigs(in.sidecar().Config)
	}
	for _, port := range in.refused {
		l.FilterChains = append(l.FilterChains, blackHoleChain(listenerName(familiesOf(s.proxy).wildcards()[0], port), port, s.server.ClosedLog))
	}
	declared := []uint32{}
	for _, e := range in.entries {
		if e.bound {
			continue
		}
		if !e.protocol.Sniffed() {
			declared = append(declared, e.port)
		}
		from = append(from, e.from...)
		for _, chain := range inboundChains(s, e, &from) {
			atPort(chain, e.port)
			chain.Name = listenerName(familiesOf(s.proxy).wildcards()[0], e.port)
			l.FilterChains = append(l.FilterChains, chain)
		}
	}
	l.ListenerFilters = []*listenerv3.ListenerFilter{originalDst()}
	if s.proxy.Interception == model.InterceptionTProxy {
		l.Transparent = wrapperspb.Bool(true)
		l.ListenerFilters = append(l.ListenerFilters, originalSrc(transparentMark))
	}
	http := httpInspector()
	http.FilterDisabled = toPorts(declared)
	l.ListenerFilters = append(l.ListenerFilters, envoyconf.TLSInspector(), http)
	s.detection(l)
	return ownListener{l, from}
}

// toPorts returns a predicate that matches connections to the given ports. A nil list matches
// none.
func toPorts(ports []uint32) *listenerv3.ListenerFilterChainMatchPredicate {
	rules := make([]*listenerv3.ListenerFilterChainMatchPredicate, 0, len(ports))
	for _, p := range ports {
		rules = append(rules, &listenerv3.ListenerFilterChainMatchPredicate{Rule: &listenerv3.ListenerFilterChainMatchPredicate_DestinationPortRange{
			DestinationPortRange: &typev3.Int32Range{Start: int32(p), End: int32(p) + 1},
		}})
	}
	switch len(rules) {
	case 0:
		return nil
	case 1:
		return rules[0]
	}
	return &listenerv3.ListenerFilterChainMatchPredicate{Rule: &listenerv3.ListenerFilterChainMatchPredicate_OrMatch{
		OrMatch: &listenerv3.ListenerFilterChainMatchPredicate_MatchSet{Rules: rules},
	}}
}

// atPort restricts a chain to a port of the workload.
func atPort(chain *listenerv3.FilterChain, port uint32) {
	if chain.GetFilterChainMatch() == nil {
		chain.FilterChainMatch = &listenerv3.FilterChainMatch{}
	}
	chain.FilterChainMatch.DestinationPort = wrapperspb.UInt32(port)
}

// passthrough returns the chains for ports that have no entry.
func (in *ingress) passthrough(f portMode, from *xds.Sources) []*listenerv3.FilterChain {
	s := in.target
	var out []*listenerv3.FilterChain
	for _, wildcard := range familiesOf(s.proxy).wildcards() {
		to := inboundTarget{from: from, validated: s.validated, enforced: s.enforced, port: f.port, cluster: cluster.InboundPassthrough4, stat: cluster.InboundPassthrough4, route: inboundName(f.port)}
		if wildcard == "::" {
			to.cluster, to.stat = cluster.InboundPassthrough6, cluster.InboundPassthrough6
		}
		for _, chain := range modeChains(s, f.mode, model.ProtocolUnsupported, to) {
			chain.Name = "virtualInbound"
			if isHTTPChain(chain) {
				chain.Name = "virtualInbound-catchall-http"
			}
			if f.port != 0 {
				atPort(chain, f.port)
			}
			if chain.GetFilterChainMatch() == nil {
				chain.FilterChainMatch = &listenerv3.FilterChainMatch{}
			}
			chain.FilterChainMatch.PrefixRanges = []*corev3.CidrRange{{AddressPrefix: wildcard, PrefixLen: wrapperspb.UInt32(0)}}
			out = append(out, chain)
		}
	}
	return out
}

func isHTTPChain(chain *listenerv3.FilterChain) bool {
	filters := chain.GetFilters()
	return filters[len(filters)-1].GetName() == "envoy.filters.network.http_connection_manager"
}

// inboundTarget is the destination of inbound filter chains.
type inboundTarget struct {
	cluster string
	// clusterStat is the name of the cluster in the counters of connections; empty means cluster.
	clusterStat string
	port        uint32 // port of the workload; 0 means any unknown port
	// stat is a part of the counter names; route is the name of the routes.
	stat, route string
	// operation is the name of the spans of requests; servicePort is a part of the virtual host
	// name.
	operation   string
	servicePort uint32
	// protocol is that of the port; empty if unknown.
	protocol model.Protocol
	// validated are the filters that validate tokens, and enforced those that decide who may connect,
	// and which requests are accepted.
	validated *authentication.Filters
	enforced  *authorization.Filters
	// service is the service that is reached here; may be nil.
	service *model.Service
	// from collects the objects that the chains are built from.
	from *xds.Sources
}

// inboundChains returns the filter chains of a port according to its mutual TLS mode.
func inboundChains(s *target, e ingressEntry, from *xds.Sources) []*listenerv3.FilterChain {
	to := inboundTarget{
		from: from, validated: e.validated, enforced: e.enforced, port: e.port, cluster: inboundName(e.port), clusterStat: e.clusterStatName(s.mesh.Config), stat: e.statName(s), route: inboundName(e.port),
		operation: "inbound:" + envoyconf.Number(e.port) + "/*", servicePort: e.port,
	}
	if e.host != "" {
		to.operation, to.servicePort = envoyconf.HostPort(e.host, e.servicePort)+"/*", e.servicePort
	}
	to.protocol, to.service = e.protocol, e.service
	if to.service == nil {
		to.service = e.shown
	}
	protocol := e.protocol
	if e.tls != nil && protocol.Sniffed() {
		protocol = model.ProtocolTCP // the contents of the connection are not inspected
	}
	chains := modeChains(s, e.mode, protocol, to)
	if e.tls != nil {
		var alpn []string
		if e.protocol.IsHTTP() {
			alpn = []string{"h2", "http/1.1"}
		}
		// ServerTLS cannot fail here: the settings were checked when the port was read.
		chains[0].TransportSocket, _ = envoyconf.ServerTLS(s.mesh.Config, s.mesh.Compliance, e.tls, alpn)
	}
	return chains
}

// modeChains returns the filter chains of a mutual TLS mode and protocol. Envoy selects the chain
// with the most specific match, regardless of order.
func modeChains(s *target, mode snapshot.MutualTLS, protocol model.Protocol, to inboundTarget) []*listenerv3.FilterChain {
	if protocol.Sniffed() {
		return detectChains(s, mode, to)
	}
	secured := &listenerv3.FilterChain{Name: "mtls", Filters: to.filters(s, protocol.IsHTTP(), true), TransportSocket: envoyconf.DownstreamTLS(s.mesh.Config, s.mesh.Compliance, []string{"h2", "http/1.1"})}
	if !protocol.IsHTTP() {
		secured.TransportSocket = envoyconf.DownstreamTLS(s.mesh.Config, s.mesh.Compliance, nil)
	}
	clear := &listenerv3.FilterChain{Name: "plaintext", Filters: to.filters(s, protocol.IsHTTP(), false)}
	switch mode {
	case snapshot.MutualTLSStrict:
		return []*listenerv3.FilterChain{secured}
	case snapshot.MutualTLSDisabled:
		return []*listenerv3.FilterChain{clear}
	case snapshot.MutualTLSPermissive:
	}
	secured.FilterChainMatch = &listenerv3.FilterChainMatch{TransportProtocol: "tls"}
	clear.FilterChainMatch = &listenerv3.FilterChainMatch{TransportProtocol: "raw_buffer"}
	if protocol.IsHTTP() {
		return []*listenerv3.FilterChain{secured, clear}
	}
	// The application may use TLS itself. Only connections that announce the mesh's mutual TLS by
	// ALPN are terminated.
	secured.FilterChainMatch.ApplicationProtocols = envoyconf.MeshALPN()
	opaque := proto.Clone(clear).(*listenerv3.FilterChain)
	opaque.Name, opaque.FilterChainMatch.TransportProtocol = "tls-passthrough", "tls"
	return []*listenerv3.FilterChain{secured, opaque, clear}
}

// detectChains returns the filter chains of a port without a declared protocol. HTTP is detected
// by ALPN or by the first bytes.
func detectChains(s *target, mode snapshot.MutualTLS, to inboundTarget) []*listenerv3.FilterChain {
	chain := func(name string, http bool, transport string, alpn []string, tls bool) *listenerv3.FilterChain {
		c := &listenerv3.FilterChain{Name: name, Filters: to.filters(s, http, tls), FilterChainMatch: &listenerv3.FilterChainMatch{TransportProtocol: transport, ApplicationProtocols: alpn}}
		if tls && http {
			c.TransportSocket = envoyconf.DownstreamTLS(s.mesh.Config, s.mesh.Compliance, []string{"h2", "http/1.1"})
		} else if tls {
			c.TransportSocket = envoyconf.DownstreamTLS(s.mesh.Config, s.mesh.Compliance, nil)
		}
		return c
	}
	requests := meshHTTPALPN()
	streams := slices.DeleteFunc(envoyconf.MeshALPN(), func(name string) bool { return slices.Contains(requests, name) })
	switch mode {
	case snapshot.MutualTLSStrict:
		return []*listenerv3.FilterChain{
			chain("mtls", true, "tls", requests, true), chain("mtls-tcp", false, "tls", nil, true),
		}
	case snapshot.MutualTLSDisabled:
		return []*listenerv3.FilterChain{ // Envoy does not fall back from chains for raw_buffer to those for any transport
			chain("tls-passthrough", false, "tls", nil, false),
			chain("plaintext", true, "raw_buffer", plaintextHTTP(), false), chain("plaintext-tcp", false, "raw_buffer", nil, false),
		}
	case snapshot.MutualTLSPermissive:
	}
	return []*listenerv3.FilterChain{
		chain("mtls", true, "tls", requests, true), chain("mtls-tcp", false, "tls", streams, true),
		chain("tls-passthrough", false, "tls", nil, false),
		chain("plaintext", true, "raw_buffer", plaintextHTTP(), false), chain("plaintext-tcp", false, "raw_buffer", nil, false),
	}
}

// filters returns the network filters that forward connections to the application.
func (to inboundTarget) filters(s *target, http, mutualTLS bool) []*listenerv3.Filter {
	*to.from = slices.Concat(*to.from, to.enforced.Sources, s.recorded.ServerSources)
	observed := s.recorded.Observe(telemetry.Chain{Server: to.server(mutualTLS)})
	if http {
		*to.from = append(*to.from, to.validated.Sources...)
		hcm := envoyconf.InboundHTTP(s.mesh.Config, s.statName("inbound_"+to.stat), envoyconf.Filters{
			Plugins: s.plugins.HTTP(extension.Server, to.port, to.from), GRPCWeb: to.protocol == model.ProtocolGRPCWeb,
			Authentication: to.validated.HTTP, External: to.enforced.External, Authorization: to.enforced.HTTP,
			AccessLog: slices.Concat(to.enforced.HTTPLog, s.unknownKeys(to.validated)), NamesRules: s.settings.NamesRules(), Records: s.settings.Recorded(), Observed: observed,
		})
		hcm.RouteSpecifier = &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: inboundRoutes(to)}
		return []*listenerv3.Filter{envoyconf.HTTPFilter(hcm)}
	}
	// Servers of Redis also receive commands that Envoy does not know, such as those of replicas.
	read := envoyconf.Protocols{PlainMongo: s.protocols.PlainMongo}
	return append(slices.Clone(to.enforced.Stream), read.Forward(to.protocol, envoyconf.Stream{
		StatPrefix: cmp.Or(to.clusterStat, to.cluster), Targets: []envoyconf.Target{{Cluster: to.cluster, Weight: 1}},
		AccessLog: slices.Concat(observed.StreamLog, to.enforced.StreamLog, envoyconf.RecordConnections(s.settings.Recorded())),
	})...)
}

// server describes the chain for what is recorded about its requests.
func (to inboundTarget) server(mutualTLS bool) *telemetry.Server {
	out := &telemetry.Server{MutualTLS: mutualTLS}
	if to.service != nil {
		out.Host, out.Name, out.Namespace = to.service.Hostname, to.service.ShortName(), to.service.Namespace
	}
	return out
}

// inboundName returns the name of the cluster of an application port.
func inboundName(port uint32) string { return "inbound|" + envoyconf.Number(port) + "||" }
