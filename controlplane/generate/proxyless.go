// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"cmp"
	"slices"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/parts"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// A proxyless client is an application that reads xDS itself, through a gRPC
// library. What such libraries take is less than what Envoy takes: the gRFCs
// A27 (names, listeners), A28 (routes), A29 (TLS), A31 (timeouts), A37
// (aggregates and DNS) and A44 (retries) say what.
//
// A target "xds:///host:port" asks for the listener of that name. It leads to
// the routes of one port of one service, whose name is that of its cluster.

// certificateProvider is the plugin of the gRPC bootstrap that gives identity
// and roots; Istio's agent writes the bootstrap with this name.
const certificateProvider = "default"

// proxyless gives the resources of a type for a proxyless client.
func (g *Generator) proxyless(s *scope, typeURL string) *Set {
	key := setKey{typeURL: typeURL, proxyless: true, outbound: s.outbound}
	mesh := s.mesh
	v := g.view(s)
	switch typeURL {
	case TypeListener:
		key.route = s.routeKey()
		return g.sets.get(key, mesh.Sequence, sources{v, mesh.VirtualServices, mesh.Config}, func(prev *Set) *Set { return g.proxylessListeners(s, prev) })
	case TypeRoute:
		key.route = s.routeKey()
		return g.sets.get(key, mesh.Sequence, sources{v, mesh.VirtualServices, mesh.Config}, func(prev *Set) *Set { return g.proxylessRoutes(s, prev) })
	case TypeCluster:
		from := sources{v, mesh.Accounts, mesh.NamedEndpoints, mesh.Config}
		return g.sets.get(key, mesh.Sequence, from, func(prev *Set) *Set { return g.proxylessClusters(s, prev) })
	case TypeEndpoint:
		return g.sets.get(key, mesh.Sequence, sources{v, mesh.Endpoints}, func(prev *Set) *Set { return g.proxylessEndpoints(s, prev) })
	}
	return g.empty
}

// proxylessHosts are the hosts and ports that a client may dial.
func proxylessHosts(b *routeBuilder) []*virtualHost {
	return slices.DeleteFunc(b.hosts(), func(h *virtualHost) bool {
		return strings.Contains(h.Name, "*") || h.Service != nil && !servesHTTP(h.Service, h.Port)
	})
}

func servesHTTP(svc *model.Service, port uint32) bool {
	return slices.ContainsFunc(svc.Ports, func(p model.Port) bool { return p.Number == port && p.Protocol.IsHTTP() })
}

// proxylessListeners are one for each name by which a host and port can be
// dialed.
func (g *Generator) proxylessListeners(s *scope, prev *Set) *Set {
	hosts := proxylessHosts(newRouteBuilder(s, g.view(s)))
	claimDomains(hosts, s, true)
	p := &part{}
	for _, h := range hosts {
		for _, name := range h.domains {
			r, err := g.table.put(TypeListener, name, apiListener(name, parts.OutboundName(h.Port, "", h.Name)))
			p.take(h, r, err)
		}
	}
	return newSet(prev, p.resources, p.problems)
}

// take appends a resource, or the problem of the object behind a host.
func (p *part) take(h *virtualHost, r *Resource, err error) {
	switch {
	case err == nil:
		p.resources = append(p.resources, r)
	case h.Service != nil:
		p.problems = append(p.problems, parts.Left(h.Service.Source, err))
	default:
		p.problems = append(p.problems, parts.Left(h.Rules.Config.Key, err))
	}
}

// apiListener leads a client to its routes.
func apiListener(name, routes string) *listenerv3.Listener {
	return &listenerv3.Listener{Name: name, ApiListener: &listenerv3.ApiListener{ApiListener: parts.Pack(&hcmv3.HttpConnectionManager{
		StatPrefix:     routes,
		RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{ConfigSource: parts.OverADS(), RouteConfigName: routes}},
		HttpFilters: []*hcmv3.HttpFilter{{
			Name: "envoy.filters.http.router", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: parts.Pack(&routerv3.Router{})},
		}},
	})}}
}

// proxylessRoutes are one configuration for each host and port.
func (g *Generator) proxylessRoutes(s *scope, prev *Set) *Set {
	b := newRouteBuilder(s, g.view(s))
	p := &part{}
	for _, h := range proxylessHosts(b) {
		h.domains = []string{"*"} // whoever asks for these routes has dialed the host
		vh := b.build(h)
		if vh == nil {
			continue
		}
		name := parts.OutboundName(h.Port, "", h.Name)
		r, err := g.table.put(TypeRoute, name, &routev3.RouteConfiguration{Name: name, VirtualHosts: []*routev3.VirtualHost{vh}})
		p.take(h, r, err)
	}
	return newSet(prev, p.resources, slices.Concat(b.Problems, p.problems))
}

// proxylessSource is everything that a cluster or its endpoints are built from.
type proxylessSource struct {
	clusterSource
	typeURL string
}

// proxylessClusters are those of the services that a client sees. A service
// whose names the client would have to resolve has one if it has one name: gRPC
// takes no more in a cluster.
func (g *Generator) proxylessClusters(s *scope, prev *Set) *Set {
	p := &part{}
	for _, ref := range g.view(s).clusters {
		src := proxylessSource{typeURL: TypeCluster, clusterSource: clusterSource{Source: ref.source(s)}}
		if ref.service.Resolution == model.ResolutionDNS {
			src.endpoints = s.mesh.NamedEndpoints.Of(ref.service.ServiceKey)
			if len(dialed(src.endpoints, src.clusterSource)) != 1 {
				continue
			}
		}
		p.add(ref, func() (*Resource, error) {
			return g.table.get(src, TypeCluster, ref.name, func() proto.Message { return proxylessCluster(ref.name, src.clusterSource) })
		})
	}
	return newSet(prev, p.resources, p.problems)
}

// proxylessCluster balances in turn: the other ways are plugins that an
// application may lack, and its library would refuse the cluster.
func proxylessCluster(name string, src clusterSource) *clusterv3.Cluster {
	p := src.Policy()
	c := &clusterv3.Cluster{Name: name, LbPolicy: clusterv3.Cluster_ROUND_ROBIN, CircuitBreakers: p.CircuitBreakers()}
	if src.Service.Resolution == model.ResolutionDNS {
		c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_LOGICAL_DNS}
		c.LoadAssignment = dialable(name, src.Port.Number, dialed(src.endpoints, src))
	} else {
		c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS}
		c.EdsClusterConfig = &clusterv3.Cluster_EdsClusterConfig{EdsConfig: parts.OverADS(), ServiceName: name}
	}
	p.ApplyOutlier(c)
	c.CommonLbConfig = nil // no such threshold in gRPC
	if p.TLS.GetMode() == networkingv1alpha3.ClientTLSSettings_ISTIO_MUTUAL {
		names := p.TLS.GetSubjectAltNames()
		if len(names) == 0 {
			names = parts.Identities(src.Config, src.Service, src.Accounts)
		}
		c.TransportSocket = proxylessTLS(cmp.Or(p.TLS.GetSni(), parts.ServerName(src.Port.Number, src.Subset, src.Service.Hostname)), names)
	}
	return c
}

// proxylessTLS is mutual TLS with what the plugins of the gRPC bootstrap give.
func proxylessTLS(sni string, names []string) *corev3.TransportSocket {
	matchers := make([]*matcherv3.StringMatcher, 0, len(names))
	for _, name := range names {
		matchers = append(matchers, parts.Exactly(name))
	}
	plugin := func(certificate string) *tlsv3.CertificateProviderPluginInstance {
		return &tlsv3.CertificateProviderPluginInstance{InstanceName: certificateProvider, CertificateName: certificate}
	}
	return &corev3.TransportSocket{
		Name: "envoy.transport_sockets.tls",
		ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: parts.Pack(&tlsv3.UpstreamTlsContext{
			Sni: sni,
			CommonTlsContext: &tlsv3.CommonTlsContext{
				TlsCertificateProviderInstance: plugin(parts.SecretIdentity),
				ValidationContextType: &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{
					CaCertificateProviderInstance: plugin(parts.SecretRoots),
					//lint:ignore SA1019 gRPC reads this field and not the typed one (gRFC A29)
					MatchSubjectAltNames: matchers,
				}},
			},
		})},
	}
}

// proxylessEndpoints are those of the services with known endpoints.
func (g *Generator) proxylessEndpoints(s *scope, prev *Set) *Set {
	p := &part{}
	for _, ref := range g.view(s).clusters {
		if ref.service.Resolution != model.ResolutionStatic {
			continue
		}
		src := proxylessSource{typeURL: TypeEndpoint, clusterSource: clusterSource{Source: ref.source(s), endpoints: s.mesh.Endpoints.Of(ref.service.ServiceKey)}}
		p.add(ref, func() (*Resource, error) {
			return g.table.get(src, TypeEndpoint, ref.name, func() proto.Message {
				return dialable(ref.name, ref.port.Number, onlyIP(dialed(src.endpoints, src.clusterSource)))
			})
		})
	}
	return newSet(prev, p.resources, p.problems)
}

// dialed are the endpoints of a port that gRPC can dial: an address twice, or
// one that is a path, would make it refuse all of them.
func dialed(set *snapshot.EndpointSet, src clusterSource) []*model.Endpoint {
	seen := map[string]bool{}
	var out []*model.Endpoint
	for _, ep := range endpointsOf(set, src.Rule, src.Subset) {
		_, unix := parts.UnixPath(ep.Address)
		at := parts.HostPort(ep.Address, ep.Port)
		if unix || ep.ServicePort != src.Port.Number || seen[at] {
			continue
		}
		seen[at] = true
		plain := *ep
		plain.MutualTLS = false // there is nothing that it could be matched with
		out = append(out, &plain)
	}
	return out
}

// dialable groups endpoints as gRPC takes them: each locality is named, also
// the unknown one.
func dialable(name string, port uint32, list []*model.Endpoint) *endpointv3.ClusterLoadAssignment {
	cla := loadAssignment(name, port, list, nil)
	for _, group := range cla.GetEndpoints() {
		if group.GetLocality() == nil {
			group.Locality = &corev3.Locality{}
		}
	}
	return cla
}
