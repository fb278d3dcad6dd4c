// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"net/netip"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tlsinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/proto"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/parts"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// listeners gives the LDS resources of a proxy.
func (g *Generator) listeners(s *scope) *Set {
	in := ingressOf(s)
	key := setKey{typeURL: TypeListener, vhds: s.proxy.VHDS, inbound: in.listenerKey()}
	return g.sets.get(key, s.mesh.Sequence, sources{in.sidecar(), s.mesh.Config}, func(prev *Set) *Set {
		p := &part{}
		var all []*listenerv3.Listener
		if port := httpProxyPort(s); port != 0 {
			all = append(all, httpProxyListener(s, port))
		}
		for _, e := range in.entries {
			all = append(all, inboundListener(s, e))
		}
		for _, l := range all {
			r, err := g.table.put(TypeListener, l.GetName(), l)
			switch {
			case err == nil:
				p.resources = append(p.resources, r)
			case s.sidecar != nil:
				p.problems = append(p.problems, parts.Left(s.sidecar.Config.Key, err))
			}
		}
		return newSet(prev, p.resources, p.problems)
	})
}

// httpProxyPort is where the proxy takes requests as an HTTP proxy; 0 nowhere.
func httpProxyPort(s *scope) uint32 {
	if s.proxy.HTTPProxyPort != 0 {
		return s.proxy.HTTPProxyPort
	}
	return uint32(max(s.mesh.Config.GetProxyHttpPort(), 0))
}

// httpProxyAddress is the loopback address of the workload: its own when it
// has one of its own, as workloads that share a machine do.
func httpProxyAddress(s *scope) string {
	if ip, err := netip.ParseAddr(s.proxy.IPs[0]); err == nil && ip.IsLoopback() {
		return s.proxy.IPs[0]
	}
	return "127.0.0.1"
}

func httpProxyListener(s *scope, port uint32) *listenerv3.Listener {
	address := httpProxyAddress(s)
	name := address + "_" + parts.Number(port)
	hcm := parts.OutboundHTTP(s.mesh.Config, "outbound_"+name)
	hcm.RouteSpecifier = &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{ConfigSource: parts.OverADS(), RouteConfigName: httpProxyRoutes(s)}}
	return &listenerv3.Listener{
		Name:             name,
		Address:          parts.SocketAddress(address, port),
		TrafficDirection: corev3.TrafficDirection_OUTBOUND,
		FilterChains:     []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{parts.HTTPFilter(hcm)}}},
	}
}

// inboundListener takes the connections to one port of the workload.
func inboundListener(s *scope, e ingressEntry) *listenerv3.Listener {
	l := &listenerv3.Listener{
		Name:             e.bind + "_" + parts.Number(e.port),
		Address:          parts.SocketAddress(e.bind, e.port),
		TrafficDirection: corev3.TrafficDirection_INBOUND,
		FilterChains:     inboundChains(s, e),
	}
	if path, ok := parts.UnixPath(e.bind); ok {
		l.Name, l.Address = path, parts.PipeAddress(path)
	}
	if e.mode == snapshot.MutualTLSPermissive {
		l.ListenerFilters = []*listenerv3.ListenerFilter{{
			Name:       "envoy.filters.listener.tls_inspector",
			ConfigType: &listenerv3.ListenerFilter_TypedConfig{TypedConfig: parts.Pack(&tlsinspectorv3.TlsInspector{})},
		}}
		// Clients that wait for the server to speak first send no bytes to
		// look at: after the timeout they get the plaintext chain.
		l.ContinueOnListenerFiltersTimeout = true
		if d, ok := parts.Positive(s.mesh.Config.GetProtocolDetectionTimeout()); ok {
			l.ListenerFiltersTimeout = d
		}
	}
	return l
}

// inboundChains are the filter chains of a port, by mutual TLS mode. Envoy
// takes the chain with the most specific match, whatever the order.
func inboundChains(s *scope, e ingressEntry) []*listenerv3.FilterChain {
	filters := inboundFilters(s, e)
	secured := &listenerv3.FilterChain{Name: "mtls", Filters: filters, TransportSocket: parts.DownstreamTLS(s.mesh.Config, []string{"h2", "http/1.1"})}
	if !e.protocol.IsHTTP() {
		secured.TransportSocket = parts.DownstreamTLS(s.mesh.Config, nil)
	}
	clear := &listenerv3.FilterChain{Name: "plaintext", Filters: filters}
	switch e.mode {
	case snapshot.MutualTLSStrict:
		return []*listenerv3.FilterChain{secured}
	case snapshot.MutualTLSDisabled:
		return []*listenerv3.FilterChain{clear}
	case snapshot.MutualTLSPermissive:
	}
	secured.FilterChainMatch = &listenerv3.FilterChainMatch{TransportProtocol: "tls"}
	clear.FilterChainMatch = &listenerv3.FilterChainMatch{TransportProtocol: "raw_buffer"}
	if e.protocol.IsHTTP() {
		return []*listenerv3.FilterChain{secured, clear}
	}
	// The application may speak TLS itself; only what says that it is mutual
	// TLS of the mesh is terminated.
	secured.FilterChainMatch.ApplicationProtocols = parts.MeshALPN()
	opaque := proto.Clone(clear).(*listenerv3.FilterChain)
	opaque.Name, opaque.FilterChainMatch.TransportProtocol = "tls-passthrough", "tls"
	return []*listenerv3.FilterChain{secured, opaque, clear}
}

// inboundFilters lead the connections of a port to the application.
func inboundFilters(s *scope, e ingressEntry) []*listenerv3.Filter {
	to := parts.InboundName(e.port)
	if e.protocol.IsHTTP() {
		hcm := parts.InboundHTTP(s.mesh.Config, "inbound_"+e.bind+"_"+parts.Number(e.port))
		hcm.RouteSpecifier = &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: inboundRoutes(e.port)}
		return []*listenerv3.Filter{parts.HTTPFilter(hcm)}
	}
	return []*listenerv3.Filter{{
		Name: "envoy.filters.network.tcp_proxy",
		ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: parts.Pack(&tcpproxyv3.TcpProxy{
			StatPrefix:       to,
			ClusterSpecifier: &tcpproxyv3.TcpProxy_Cluster{Cluster: to},
		})},
	}}
}
