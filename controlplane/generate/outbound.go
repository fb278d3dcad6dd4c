// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"net/netip"
	"slices"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/cluster"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/extension"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// Default ports that receive redirected traffic, unless the mesh settings override them.
const (
	outboundPort = 15001
	inboundPort  = 15006
)

// plaintextHTTP returns the application protocols that Envoy detects in plaintext connections.
func plaintextHTTP() []string { return []string{"http/1.1", "h2c"} }

// unknownTraffic returns the cluster for traffic that matches no service: that of the egress proxy,
// passthrough or the black hole.
func (s *target) unknownTraffic() string {
	if p := s.sidecar.OutboundPolicy(); p != nil {
		if to := p.GetEgressProxy(); to.GetHost() != "" {
			host := s.mesh.ResolveHost(to.GetHost(), s.sidecar.Config.Namespace)
			return envoyconf.OutboundName(to.GetPort().GetNumber(), to.GetSubset(), host)
		}
		if p.GetMode() == networkingv1alpha3.OutboundTrafficPolicy_ALLOW_ANY {
			return cluster.PassthroughName
		}
		return envoyconf.BlackHoleCluster
	}
	if s.mesh.Config.GetOutboundTrafficPolicy().GetMode() == meshv1alpha1.MeshConfig_OutboundTrafficPolicy_REGISTRY_ONLY {
		return envoyconf.BlackHoleCluster
	}
	return cluster.PassthroughName
}

// seesUnknown reports whether traffic that matches no service reaches the proxy.
func (s *target) seesUnknown() bool { return s.intercepts() || httpProxyPort(s) != 0 }

// unknownBy returns the key of the Sidecar that sets the policy for unknown traffic, or the zero
// key if no Sidecar does.
func (s *target) unknownBy() model.Key {
	if !s.seesUnknown() || s.sidecar.OutboundPolicy() == nil {
		return model.Key{}
	}
	return s.sidecar.Config.Key
}

// unknownKey returns a key that is equal for proxies that treat unknown traffic alike.
func (s *target) unknownKey() string {
	if !s.seesUnknown() {
		return ""
	}
	return s.unknownTraffic()
}

// wildcard sets the addresses of a listener that accepts connections at all addresses.
func (s *target) wildcard(l *listenerv3.Listener, port uint32) {
	addresses := familiesOf(s.proxy).wildcards()
	l.Address = envoyconf.SocketAddress(addresses[0], port)
	for _, a := range addresses[1:] {
		l.AdditionalAddresses = append(l.AdditionalAddresses, &listenerv3.AdditionalAddress{Address: envoyconf.SocketAddress(a, port)})
	}
}

// listenerName returns the name of a listener, which consists of its address and port.
func listenerName(address string, port uint32) string {
	if ip, err := netip.ParseAddr(address); err == nil && ip.Is6() {
		address = "[" + address + "]"
	}
	return address + "_" + envoyconf.Number(port)
}

// outboundListener builds a listener of the plan. It adds the objects that the listener is built
// from to from.
func (s *target) outboundListener(in *outboundListener, from *xds.Sources) *listenerv3.Listener {
	*from = slices.Concat(*from, in.sources, s.recorded.ClientSources)
	l := &listenerv3.Listener{TrafficDirection: corev3.TrafficDirection_OUTBOUND, BindToPort: wrapperspb.Bool(in.bound), AccessLog: s.client.ListenerLog}
	path, unix := envoyconf.UnixPath(in.bind)
	switch {
	case unix:
		l.Name, l.Address = path, envoyconf.PipeAddress(path)
	case in.bind == anyAddress:
		s.wildcard(l, in.port)
		l.Name = listenerName(familiesOf(s.proxy).wildcards()[0], in.port)
	default:
		l.Name, l.Address = listenerName(in.bind, in.port), envoyconf.SocketAddress(in.bind, in.port)
	}
	var whole *listenerv3.FilterChain // matches every connection
	named := false
	for _, c := range in.chains {
		c.stream.AccessLog = s.client.StreamLog
		chain := &listenerv3.FilterChain{Filters: s.protocols.Forward(c.protocol, c.stream)}
		if c.byName {
			chain.Filters = slices.Insert(chain.Filters, 0, lookUp(cluster.NameCache(s.mesh.Config, s.viewer), in.port))
		}
		if len(c.serverNames) == 0 && len(c.prefixes) == 0 {
			whole = chain
			continue
		}
		chain.FilterChainMatch = &listenerv3.FilterChainMatch{ServerNames: c.serverNames, PrefixRanges: cidrs(c.prefixes)}
		named = named || len(c.serverNames) > 0
		l.FilterChains = append(l.FilterChains, chain)
	}
	if in.routes != "" {
		http := &listenerv3.FilterChain{Filters: []*listenerv3.Filter{s.outboundHTTP(in, l.Name, from)}}
		if in.bound && len(in.chains) == 0 {
			l.FilterChains = append(l.FilterChains, http) // no other connection can reach this listener
			return l
		}
		http.FilterChainMatch = &listenerv3.FilterChainMatch{TransportProtocol: "raw_buffer", ApplicationProtocols: plaintextHTTP()}
		l.FilterChains = append(l.FilterChains, http)
		for _, c := range in.chains {
			if c.detect && len(c.prefixes) > 0 {
				// Envoy matches the address first and does not fall back to the chain for requests
				// to all addresses.
				own := proto.Clone(http).(*listenerv3.FilterChain)
				own.FilterChainMatch.PrefixRanges = cidrs(c.prefixes)
				l.FilterChains = append(l.FilterChains, own)
			}
		}
	}
	if whole == nil && !in.bound {
		from.Add(s.unknownBy())
		whole = &listenerv3.FilterChain{
			Name:    "PassthroughFilterChain",
			Filters: []*listenerv3.Filter{s.unknownStream()},
		}
	}
	l.DefaultFilterChain = whole
	if in.routes != "" || named {
		l.ListenerFilters = append(l.ListenerFilters, envoyconf.TLSInspector())
	}
	if in.routes != "" {
		l.ListenerFilters = append(l.ListenerFilters, httpInspector())
	}
	if len(l.ListenerFilters) > 0 {
		s.detection(l)
	}
	if len(l.FilterChains) == 0 {
		// A listener must have at least one chain of its own.
		l.FilterChains, l.DefaultFilterChain = []*listenerv3.FilterChain{whole}, nil
	}
	return l
}

// detection sets how long a listener inspects the first bytes of a connection. After this timeout,
// connections in which the server speaks first use the chain for all other traffic.
func (s *target) detection(l *listenerv3.Listener) {
	l.ContinueOnListenerFiltersTimeout = true
	if d, ok := envoyconf.Positive(s.mesh.Config.GetProtocolDetectionTimeout()); ok {
		l.ListenerFiltersTimeout = d
	}
}

func cidrs(prefixes []netip.Prefix) []*corev3.CidrRange {
	out := make([]*corev3.CidrRange, 0, len(prefixes))
	for _, p := range prefixes {
		out = append(out, envoyconf.Range(p))
	}
	return out
}

// outboundHTTP returns the filter that serves the requests of a listener.
func (s *target) outboundHTTP(in *outboundListener, name string, from *xds.Sources) *listenerv3.Filter {
	hcm := envoyconf.OutboundHTTP(s.mesh.Config, s.statName("outbound_"+name), envoyconf.Filters{
		Plugins: s.plugins.HTTP(extension.Client, in.port, from), GRPCWeb: in.grpcWeb, OffersHTTP: in.host != "", Sessions: s.sessions, Records: s.settings.Recorded(), Observed: s.client,
	})
	hcm.RouteSpecifier = &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{ConfigSource: envoyconf.OverADS(), RouteConfigName: s.routesName(in)}}
	return envoyconf.HTTPFilter(hcm)
}

// virtualOutbound returns the listener that receives all redirected outbound connections and hands
// each to the listener of its original destination.
func (s *target) virtualOutbound() ownListener {
	from := slices.Clone(s.recorded.ClientSources)
	from.Add(s.unknownBy())
	port := cmpPort(s.mesh.Config.GetProxyListenPort(), outboundPort)
	l := &listenerv3.Listener{
		Name: "virtualOutbound", UseOriginalDst: wrapperspb.Bool(true), TrafficDirection: corev3.TrafficDirection_OUTBOUND, AccessLog: s.client.ListenerLog,
		FilterChains: []*listenerv3.FilterChain{
			blackHoleChain("virtualOutbound-blackhole", port, s.client.ClosedLog),
			{
				Name:    "virtualOutbound-catchall-tcp",
				Filters: []*listenerv3.Filter{s.unknownStream()},
			},
		},
	}
	s.wildcard(l, port)
	return ownListener{l, from}
}

// unknownStream returns the filter that forwards connections to unknown destinations.
func (s *target) unknownStream() *listenerv3.Filter {
	to := s.unknownTraffic()
	return envoyconf.TCPProxy(envoyconf.Stream{StatPrefix: to, Targets: []envoyconf.Target{{Cluster: to, Weight: 1}}, AccessLog: s.client.StreamLog})
}

// blackHoleChain closes connections to the proxy's own port, which would otherwise loop forever.
func blackHoleChain(name string, port uint32, logs []*accesslogv3.AccessLog) *listenerv3.FilterChain {
	return &listenerv3.FilterChain{
		Name:             name,
		FilterChainMatch: &listenerv3.FilterChainMatch{DestinationPort: wrapperspb.UInt32(port)},
		Filters:          []*listenerv3.Filter{envoyconf.TCPProxy(envoyconf.BlackHole(logs))},
	}
}

func cmpPort(set int32, otherwise uint32) uint32 {
	if set > 0 {
		return uint32(set)
	}
	return otherwise
}
