// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"unicode/utf8"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/authentication"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/authorization"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// ServerPrefix is the prefix of the listener names that servers request. The listen address,
// "host:port", follows. Istio's agent writes it into the gRPC bootstrap
// (server_listener_resource_name_template).
const ServerPrefix = "xds.istio.io/grpc/lds/inbound/"

// The label by which a workload declares that it supports mutual TLS of the mesh.
const (
	tlsModeLabel = "security.istio.io/tlsMode"
	tlsModeIstio = "istio"
)

// server is an address at which an application may listen.
type server struct {
	host string
	port uint32
	// secure is true if callers must use mutual TLS.
	secure bool
	peers  xds.Sources // the objects that decide this
	// policies and tokens are the policies for the port.
	policies authorization.Policies
	tokens   authentication.Tokens
}

// serversOf returns the addresses at which the application of a proxyless workload declares to
// listen. Every port is served, even if no service has it. Invalid addresses get no listener.
func serversOf(s *target) []server {
	var out []server
	var peers xds.Sources
	peers.AddConfigs(s.mesh.PeerAuthentications.Of(s.proxy.Namespace, s.proxy.OwnLabels())...)
	for _, address := range s.proxy.Listens {
		host, number, err := net.SplitHostPort(address)
		if err != nil || host == "" || !utf8.ValidString(host) {
			continue
		}
		port, err := strconv.ParseUint(number, 10, 16)
		if err != nil || port == 0 || envoyconf.HostPort(host, uint32(port)) != address {
			continue
		}
		services := s.services(uint32(port))
		out = append(out, server{
			host: host, port: uint32(port), secure: s.servesSecurely(uint32(port)), peers: peers, policies: s.policiesOf(services), tokens: s.tokensOf(services),
		})
	}
	return out
}

// servesSecurely reports whether callers of a port must use mutual TLS. A gRPC server cannot tell
// mutual TLS from plaintext and accepts only one of them. PERMISSIVE therefore means mutual TLS
// for workloads that declare to support it, because their callers then use it too, and plaintext
// otherwise.
func (s *target) servesSecurely(port uint32) bool {
	switch s.mesh.PeerAuthentications.Mode(s.proxy.Namespace, s.proxy.OwnLabels(), port) {
	case snapshot.MutualTLSStrict:
		return true
	case snapshot.MutualTLSDisabled:
		return false
	case snapshot.MutualTLSPermissive:
	}
	return s.proxy.OwnLabels()[tlsModeLabel] == tlsModeIstio
}

// serversKey returns the key of the servers' listeners.
func serversKey(servers []server) inboundKey {
	var key inboundKey
	for _, at := range servers {
		key.modes += fmt.Sprintf(";%q/%d/%t/%s/%x/%x", at.host, at.port, at.secure, at.peers, at.policies.Key, at.tokens.Key)
	}
	return key
}

// serverListeners adds the listeners of servers to p.
func (g *Generator) serverListeners(p *part, s *target, servers []server) {
	if len(servers) > 0 {
		services := s.services(0)
		p.problems = slices.Concat(p.problems, g.enforce(s.mesh, s.policiesOf(services)).Unsupported, g.validate(s.mesh, s.tokensOf(services)).Unsupported)
	}
	for _, at := range servers {
		enforced, validated := g.enforce(s.mesh, at.policies), g.validate(s.mesh, at.tokens)
		l := serverListener(at, envoyconf.Filters{
			Library: envoyconf.LibraryServer, Denied: g.deniedIn(s.mesh), Authentication: validated.Library, Authorization: enforced.Library,
		})
		r, err := g.table.Put(xds.TypeListener, l.GetName(), l, slices.Concat(at.peers, validated.Sources, enforced.Sources))
		if err != nil {
			p.problems = append(p.problems, envoyconf.Left(model.Key{Kind: model.Sidecar, Namespace: s.proxy.Namespace}, err))
			continue
		}
		p.resources = append(p.resources, r)
	}
}

// serverListener returns the listener of a server. The library compares its address byte by byte
// with that of the server, and passes every request to the application.
func serverListener(at server, filters envoyconf.Filters) *listenerv3.Listener {
	hcm := &hcmv3.HttpConnectionManager{
		StatPrefix:     "inbound_" + envoyconf.HostPort(at.host, at.port),
		RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: toApplication()},
	}
	if !at.secure {
		filters.Denied = nil
	}
	filters.Apply(hcm)
	chain := &listenerv3.FilterChain{Name: "inbound-plaintext", Filters: []*listenerv3.Filter{envoyconf.HTTPFilter(hcm)}}
	if at.secure {
		chain.Name, chain.TransportSocket = "inbound-mtls", serverTLS()
	}
	return &listenerv3.Listener{
		Name:             ServerPrefix + envoyconf.HostPort(at.host, at.port),
		Address:          envoyconf.SocketAddress(at.host, at.port),
		TrafficDirection: corev3.TrafficDirection_INBOUND,
		FilterChains:     []*listenerv3.FilterChain{chain},
	}
}

func toApplication() *routev3.RouteConfiguration {
	return &routev3.RouteConfiguration{Name: "inbound", VirtualHosts: []*routev3.VirtualHost{{
		Name: "inbound", Domains: []string{"*"},
		Routes: []*routev3.Route{{
			Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
			Action: &routev3.Route_NonForwardingAction{NonForwardingAction: &routev3.NonForwardingAction{}},
		}},
	}}}
}

// serverTLS requires a certificate of the mesh. It cannot restrict the names: gRPC rejects a
// server listener that does (gRFC A29) and verifies the roots only.
func serverTLS() *corev3.TransportSocket {
	return &corev3.TransportSocket{
		Name: "envoy.transport_sockets.tls",
		ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: envoyconf.Pack(&tlsv3.DownstreamTlsContext{
			CommonTlsContext:         proxylessTLS(nil),
			RequireClientCertificate: wrapperspb.Bool(true),
		})},
	}
}
