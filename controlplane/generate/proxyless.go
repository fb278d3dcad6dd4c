// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"slices"
	"strings"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// A proxyless client is an application that uses xDS through a gRPC library. Such libraries
// support only a part of what Envoy supports. The gRFCs A27 (names, listeners), A28 (routes), A29
// (TLS), A31 (timeouts), A32 (circuit breaking), A33 (faults), A36 (servers), A37 (aggregates and
// DNS), A42 (hash rings), A44 (retries) and A50 (outliers) define that part.
//
// For a target "xds:///host:port", the client requests the listener of that name. The listener
// leads to the routes of one port of one service; their name is that of the cluster. A server
// requests the listener of its address; see [ServerPrefix].

// proxyless returns the resources of a type for a proxyless client.
func (g *Generator) proxyless(s *target, typeURL string) *xds.Set {
	key := setKey{typeURL: typeURL, proxyless: true, outbound: s.outbound}
	mesh := s.mesh
	v := g.view(s)
	switch typeURL {
	case xds.TypeListener:
		servers := serversOf(s)
		key.route, key.inbound, key.policies = s.routeKey(), serversKey(servers), s.policies.Key
		return g.sets.get(key, mesh.Sequence, inputs{v, mesh.VirtualServices, mesh.Config, mesh.Denied}, func(prev *xds.Set) *xds.Set {
			p := g.proxylessListeners(s)
			g.serverListeners(p, s, servers)
			return xds.NewSet(prev, p.resources, p.problems)
		})
	case xds.TypeRoute:
		key.route = s.routeKey()
		from := inputs{v, mesh.VirtualServices, mesh.DestinationRules, mesh.Config}
		return g.sets.get(key, mesh.Sequence, from, func(prev *xds.Set) *xds.Set { return g.proxylessRoutes(s, prev) })
	case xds.TypeCluster:
		from := inputs{v, mesh.Accounts, mesh.NamedEndpoints, mesh.Config, mesh.Denied}
		return g.sets.get(key, mesh.Sequence, from, func(prev *xds.Set) *xds.Set { return g.proxylessClusters(s, prev) })
	case xds.TypeEndpoint:
		at := viewpointOf(s)
		key.outbound.rules += at.String()
		from := inputs{v, mesh.Endpoints, mesh.NamedEndpoints, mesh.Networks, mesh.Config}
		return g.sets.get(key, mesh.Sequence, from, func(prev *xds.Set) *xds.Set { return g.proxylessEndpoints(s, at, prev) })
	}
	return g.empty
}

// proxylessHosts returns the hosts and ports that a client may dial.
func proxylessHosts(b *routeBuilder) []*virtualHost {
	return slices.DeleteFunc(b.hosts(), func(h *virtualHost) bool {
		return strings.Contains(h.Name, "*") || h.Service != nil && !mayServeGRPC(h.Service, h.Port)
	})
}

// mayServeGRPC reports whether a port uses HTTP or does not declare its protocol.
func mayServeGRPC(svc *model.Service, port uint32) bool {
	return slices.ContainsFunc(svc.Ports, func(p model.Port) bool {
		return p.Number == port && (p.Protocol.IsHTTP() || p.Protocol.Sniffed())
	})
}

// proxylessListeners returns a listener for each name by which a client can dial a host and port.
func (g *Generator) proxylessListeners(s *target) *part {
	hosts := proxylessHosts(g.newRouteBuilder(s, g.view(s)))
	claimDomains(hosts, s, true)
	p := &part{}
	for _, h := range hosts {
		for _, name := range h.domains {
			r, err := g.table.Put(xds.TypeListener, name, apiListener(name, envoyconf.OutboundName(h.Port, "", h.Name)), h.named())
			p.take(h, r, err)
		}
	}
	return p
}

// named returns the object that defines the host.
func (h *virtualHost) named() xds.Sources {
	var from xds.Sources
	if h.Service != nil {
		from.Add(h.Service.Source)
	} else {
		from.AddConfigs(h.Rules.Config)
	}
	return from
}

// take appends a resource, or the problem of the object that defines the host.
func (p *part) take(h *virtualHost, r *xds.Resource, err error) {
	switch {
	case err == nil:
		p.resources = append(p.resources, r)
	case h.Service != nil:
		p.problems = append(p.problems, envoyconf.Left(h.Service.Source, err))
	default:
		p.problems = append(p.problems, envoyconf.Left(h.Rules.Config.Key, err))
	}
}

// apiListener returns a listener that leads a client to its routes.
func apiListener(name, routes string) *listenerv3.Listener {
	hcm := &hcmv3.HttpConnectionManager{
		StatPrefix:     routes,
		RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{ConfigSource: envoyconf.OverADS(), RouteConfigName: routes}},
	}
	envoyconf.Filters{Library: envoyconf.LibraryClient}.Apply(hcm)
	return &listenerv3.Listener{Name: name, ApiListener: &listenerv3.ApiListener{ApiListener: envoyconf.Pack(hcm)}}
}
