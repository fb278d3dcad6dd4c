// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/gateway"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// Config is what a Generator needs; the zero value is complete.
type Config struct {
	// GatewaysOwnNamespace restricts Gateways to proxies in their own namespace.
	GatewaysOwnNamespace bool
	// FilterGatewayClusters leaves proxies at the edge without the clusters of
	// services that none of their routes leads to.
	FilterGatewayClusters bool
	// HTTP10 has all proxies take requests in HTTP/1.0.
	HTTP10 bool
	// RequestTimeout bounds requests of routes that set no timeout; 0 does not.
	RequestTimeout time.Duration
}

// Generator makes resources and remembers them. It is safe for concurrent use.
type Generator struct {
	cfg      Config
	table    *xds.Table
	views    memo[outboundKey, *view]
	plans    memo[planKey, *plan]
	outbound memo[outboundKey, *part]
	outgoing memo[plannedKey, *[]madeListener]
	gateways memo[routerKey, *gateway.Merged]
	sets     memo[setKey, *xds.Set]
	denied   memo[struct{}, *envoyconf.Denied]
	empty    *xds.Set
}

// part are some of the resources of a set.
type part struct {
	resources []*xds.Resource
	problems  []model.Problem
}

// setKey says which proxies share a set: those with an equal key.
type setKey struct {
	typeURL string
	vhds    bool
	// proxyless is of the clients that are no Envoy.
	proxyless bool
	outbound  outboundKey
	route     routeKey
	inbound   inboundKey
	router    routerKey
	unknown   model.Key // see [target.unknownBy]
	plugins   string    // which WasmPlugins, and where they stand
	settings  string    // of the proxy alone
}

// New makes a Generator that remembers nothing yet.
func New(cfg Config) *Generator {
	return &Generator{cfg: cfg, table: xds.NewTable(), empty: xds.NewSet(nil, nil, nil)}
}

// Generate returns all resources of a type for a proxy. Proxies that see the
// same get the same *Set; as long as nothing changed that the set depends on,
// or the change made no difference, it is the *Set of the last call.
func (g *Generator) Generate(mesh *snapshot.Mesh, proxy *model.Proxy, typeURL string) *xds.Set {
	if typeURL == xds.TypeProxyConfig {
		return g.trust(mesh)
	}
	if proxy.Role == "router" && len(proxy.IPs) > 0 {
		return g.router(mesh, proxy, typeURL)
	}
	if proxy.Proxyless && proxy.Role == "sidecar" {
		return g.proxyless(newTarget(mesh, proxy), typeURL)
	}
	if proxy.Role != "sidecar" || len(proxy.IPs) == 0 {
		return g.empty
	}
	s := newTarget(mesh, proxy)
	s.settings = g.over(s.settings)
	switch typeURL {
	case xds.TypeCluster:
		return g.clusters(s)
	case xds.TypeEndpoint:
		return g.endpoints(s)
	case xds.TypeListener:
		return g.listeners(s)
	case xds.TypeRoute:
		return g.routes(s)
	case xds.TypeVirtualHost:
		return g.virtualHosts(s)
	case xds.TypeNameTable:
		return g.nameTable(s)
	case xds.TypeExtension:
		return g.extensions(s)
	}
	return g.empty
}

// deniedIn returns what refuses the peers that a snapshot denies; nil for none.
func (g *Generator) deniedIn(mesh *snapshot.Mesh) *envoyconf.Denied {
	if mesh.Denied.Len() == 0 {
		return nil
	}
	return g.denied.get(struct{}{}, mesh.Sequence, inputs{mesh.Denied, mesh.Config}, func(*envoyconf.Denied) *envoyconf.Denied {
		return envoyconf.NewDenied(mesh.Denied, mesh.Config)
	})
}

// view returns the services that a proxy sees.
func (g *Generator) view(s *target) *view {
	return g.views.get(s.outbound, s.mesh.Sequence, inputs{s.mesh.Services, s.mesh.DestinationRules}, func(*view) *view {
		return newView(s)
	})
}
