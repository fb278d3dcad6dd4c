// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"time"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/authentication"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/authorization"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/gateway"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// Config configures a Generator. The zero value is valid.
type Config struct {
	// GatewaysOwnNamespace restricts Gateways to proxies in their own namespace.
	GatewaysOwnNamespace bool
	// FilterGatewayClusters omits from gateways the clusters of services that none of their routes
	// lead to.
	FilterGatewayClusters bool
	// HTTP10 makes all proxies accept HTTP/1.0 requests.
	HTTP10 bool
	// DeniedBy adds a header to requests that policies deny, which names the rule.
	DeniedBy bool
	// HTTP3 makes gateways also serve HTTP/3 at ports of HTTPS.
	HTTP3 bool
	// Protocols are the protocols of databases that Envoy reads.
	Protocols envoyconf.Protocols
	// Sessions makes the labels of services for persistent sessions effective.
	Sessions bool
	// RequestTimeout is the timeout of requests on routes that set none; 0 means no timeout.
	RequestTimeout time.Duration
}

// Generator builds resources and caches them. It is safe for concurrent use.
type Generator struct {
	cfg      Config
	table    *xds.Table
	targets  targets
	views    memo[outboundKey, *view]
	plans    memo[planKey, *plan]
	outbound memo[clusterKey, *part]
	outgoing memo[plannedKey, *[]madeListener]
	gateways memo[routerKey, *gateway.Merged]
	sets     memo[setKey, *xds.Set]
	denied   memo[struct{}, *envoyconf.Denied]
	enforced memo[string, *authorization.Filters]
	// validated are the filters of RequestAuthentications.
	validated memo[string, *authentication.Filters]
	empty     *xds.Set
	bootstrap *xds.Set // without patches
	// patchedSets and patchedResources are those that EnvoyFilters change.
	patchedSets      memo[patchedKey, *patchedSet]
	patchedResources memo[patchedResourceKey, *patchedResource]
}

// part is a part of the resources of a set.
type part struct {
	resources []*xds.Resource
	problems  []model.Problem
}

// setKey identifies the proxies that share a set.
type setKey struct {
	typeURL string
	vhds    bool
	denies  bool // see [model.Proxy]
	// proxyless is true for gRPC clients without an Envoy.
	proxyless bool
	outbound  outboundKey
	route     routeKey
	inbound   inboundKey
	router    routerKey
	unknown   model.Key // see [target.unknownBy]
	plugins   string    // the WasmPlugins and their positions
	recorded  string    // see [telemetry.Effective]
	policies  string    // the RequestAuthentications and AuthorizationPolicies, or the part that the type depends on
	settings  string    // of the proxy itself
	delimited bool      // see [model.ProxySettings]; in settings, too
	own       ownWorkload
}

// New returns a Generator with an empty cache.
func New(cfg Config) *Generator {
	g := &Generator{cfg: cfg, table: xds.NewTable(), empty: xds.NewSet(nil, nil, nil)}
	g.bootstrap = xds.NewSet(nil, []*xds.Resource{g.table.PutBytes(xds.TypeStruct, node.BootstrapPatch, nil)}, nil)
	return g
}

// Generate returns all resources of a type for a proxy. Proxies with the same view receive the
// same *Set. If no input of the set has changed, or the change has no effect, Generate returns the
// *Set of the last call.
func (g *Generator) Generate(mesh *snapshot.Mesh, proxy *model.Proxy, typeURL string) *xds.Set {
	set := g.generate(mesh, proxy, typeURL)
	if p := g.patched(mesh, proxy, typeURL, set); p != nil {
		return p.set
	}
	return set
}

// generate returns the resources without the patches of EnvoyFilters.
func (g *Generator) generate(mesh *snapshot.Mesh, proxy *model.Proxy, typeURL string) *xds.Set {
	if typeURL == xds.TypeProxyConfig {
		return g.trust(mesh)
	}
	if typeURL == xds.TypeBootstrap {
		return g.bootstrap
	}
	if proxy.Role == "router" && len(proxy.IPs) > 0 {
		return g.router(mesh, proxy, typeURL)
	}
	if proxy.Proxyless && proxy.Role == "sidecar" {
		return g.proxyless(g.target(mesh, proxy), typeURL)
	}
	if proxy.Role != "sidecar" || len(proxy.IPs) == 0 {
		return g.empty
	}
	s := g.target(mesh, proxy)
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

// deniedIn returns the filters that refuse the peers on the deny list of a snapshot, or nil if the
// list is empty.
func (g *Generator) deniedIn(mesh *snapshot.Mesh) *envoyconf.Denied {
	if mesh.Denied.Len() == 0 {
		return nil
	}
	return g.denied.get(struct{}{}, mesh.Sequence, inputs{mesh.Denied, mesh.Config}, func(*envoyconf.Denied) *envoyconf.Denied {
		return envoyconf.NewDenied(mesh.Denied, mesh.Config)
	})
}

// enforce returns the filters that enforce the policies of a workload.
func (g *Generator) enforce(mesh *snapshot.Mesh, policies authorization.Policies) *authorization.Filters {
	return g.enforced.get(policies.Key, mesh.Sequence, inputs{mesh.Config}, func(*authorization.Filters) *authorization.Filters {
		return policies.Filters(mesh.Config)
	})
}

// validate returns the filters that validate the tokens in requests to a workload.
func (g *Generator) validate(mesh *snapshot.Mesh, tokens authentication.Tokens) *authentication.Filters {
	return g.validated.get(tokens.Key, mesh.Sequence, inputs{}, func(*authentication.Filters) *authentication.Filters {
		return tokens.Filters()
	})
}

// view returns the services that a proxy sees.
func (g *Generator) view(s *target) *view {
	return g.views.get(s.outbound, s.mesh.Sequence, inputs{s.mesh.Services, s.mesh.DestinationRules}, func(*view) *view {
		return newView(s)
	})
}
