// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"fmt"
	"maps"
	"slices"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/extension"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/gateway"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/telemetry"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// routerKey determines the listeners of a gateway, together with outboundKey.
type routerKey struct {
	labels    string // all labels, because Gateways and VirtualServices may select by any of them
	namespace string
	wildcard  string // bind address of servers that have none
	targets   string // service ports and their target ports
}

// router is a gateway in a snapshot.
type router struct {
	*target
	key    routerKey
	merged *gateway.Merged
	view   *view
	// timeout is the RequestTimeout of [Config].
	timeout time.Duration
	http3   bool // the HTTP3 of [Config]
}

// router returns the resources of a gateway.
func (g *Generator) router(mesh *snapshot.Mesh, proxy *model.Proxy, typeURL string) *xds.Set {
	r := g.newRouter(mesh, proxy)
	switch typeURL {
	case xds.TypeCluster:
		return g.routerClusters(r)
	case xds.TypeEndpoint:
		return g.routerEndpoints(r)
	case xds.TypeListener:
		return g.routerListeners(r)
	case xds.TypeRoute:
		return g.routerRoutes(r)
	case xds.TypeVirtualHost:
		return g.routerHosts(r)
	case xds.TypeExtension:
		return g.extensions(r.target)
	}
	return g.empty
}

func (g *Generator) newRouter(mesh *snapshot.Mesh, proxy *model.Proxy) *router {
	r := &router{target: g.target(mesh, proxy), timeout: g.cfg.RequestTimeout, http3: g.cfg.HTTP3}
	r.key = routerKey{
		labels: project(slices.Sorted(maps.Keys(proxy.Labels)), proxy.Labels), namespace: proxy.Namespace,
		wildcard: familiesOf(proxy).wildcards()[0],
	}
	targets := r.targets()
	for _, t := range targets {
		r.key.targets += fmt.Sprintf("%d=%d %s,", t.service, t.proxy, t.from)
	}
	r.view = g.view(r.target)
	r.merged = g.gateways.get(r.key, mesh.Sequence, inputs{mesh.Gateways, mesh.Config}, func(*gateway.Merged) *gateway.Merged {
		return gateway.Merge(mesh.Config, mesh.Gateways.For(proxy.Namespace, proxy.Labels, g.cfg.GatewaysOwnNamespace), r.key.wildcard, func(port uint32) (uint32, xds.Sources) {
			for _, t := range targets {
				if t.service == port {
					var from xds.Sources
					from.Add(t.from)
					return t.proxy, from
				}
			}
			return port, nil
		})
	})
	return r
}

// targetPort is a port of a service of the gateway and the port at which the gateway listens.
type targetPort struct {
	service, proxy uint32
	from           model.Key // the service
}

// targets returns the target ports of the gateway's services in its own namespace.
func (r *router) targets() []targetPort {
	var out []targetPort
	for _, i := range r.instances() {
		_, off := i.Service.Labels[model.NoPortTranslation]
		if off || i.Service.Namespace != r.proxy.Namespace || i.Endpoint.Port == 0 || i.Endpoint.Port == i.Endpoint.ServicePort {
			continue
		}
		out = append(out, targetPort{service: i.Endpoint.ServicePort, proxy: i.Endpoint.Port, from: i.Service.Source})
	}
	return out
}

// source returns the input of the gateway's listeners and routes.
func (r *router) source() *gateway.Source {
	in := &gateway.Source{
		Mesh: r.mesh, Proxy: r.proxy, Services: r.view.services,
		Service: func(host string) *model.Service { return r.view.byHost[host] },
		HTTP3:   r.http3,
		Timeout: r.timeout, Protocols: r.protocols, Sessions: r.sessions,
		Topology: r.settings.GatewayTopology(), NamesRules: r.settings.NamesRules(), Records: r.settings.Recorded(), DelimitedStats: r.settings.DelimitsStats(),
		Labelled: r.recorded.Labelled, LabelledBy: r.recorded.LabelledBy,
	}
	in.Plugins = func(port uint32, from *xds.Sources) envoyconf.Plugins {
		return r.plugins.HTTP(extension.Client, port, from)
	}
	if r.proxy.VHDS {
		in.RouteName = func(name string) string { return name + vhdsSuffix }
	}
	return in
}

// routerSet caches one set of a gateway. The set depends on everything that a [gateway.Source]
// provides.
func (g *Generator) routerSet(r *router, typeURL string, build func(prev *xds.Set) *xds.Set) *xds.Set {
	key := setKey{typeURL: typeURL, vhds: r.proxy.VHDS, outbound: r.outbound, router: r.key, route: routeKey{envoy: r.envoyKey()}, settings: r.settings.RouteKey()}
	if typeURL == xds.TypeListener {
		key.plugins, key.policies = r.plugins.Key, r.tokens.Key+r.policies.Key
		key.settings, key.recorded = r.settings.String(), r.recorded.Key
	}
	from := inputs{r.merged, r.view, r.mesh.VirtualServices, r.mesh.DestinationRules, r.mesh.Config}
	if typeURL == xds.TypeListener {
		from[5] = r.mesh.Denied
	}
	return g.sets.get(key, r.mesh.Sequence, from, build)
}

func (g *Generator) routerListeners(r *router) *xds.Set {
	return g.routerSet(r, xds.TypeListener, func(prev *xds.Set) *xds.Set {
		source := r.source()
		source.Authentication, source.Authorization = g.validate(r.mesh, r.tokens), g.enforce(r.mesh, r.policies)
		source.UnknownKeys = r.unknownKeys(source.Authentication)
		source.Observed, source.Recorded = r.recorded.Observe(telemetry.Chain{}), r.recorded.ClientSources
		listeners, problems := r.merged.Listeners(source)
		out := &part{problems: slices.Concat(r.merged.Problems, problems, source.Authorization.Problems, r.recorded.Problems)}
		for _, l := range listeners {
			if err := envoyconf.ApplyListener(l.Listener, r.settings, true); err != nil {
				out.problems = append(out.problems, envoyconf.Left(model.Key{}, fmt.Errorf("listener %s: %w", l.GetName(), err)))
				continue
			}
			g.deniedIn(r.mesh).Guard(l.Listener)
			g.putOrKeep(out, prev, xds.TypeListener, l.Listener, l.Sources)
		}
		return xds.NewSet(prev, out.resources, out.problems)
	})
}

func (g *Generator) routerRoutes(r *router) *xds.Set {
	return g.routerSet(r, xds.TypeRoute, func(prev *xds.Set) *xds.Set {
		out := &part{}
		if r.proxy.VHDS {
			for _, c := range r.merged.Frames(r.source()) {
				c.Vhds = &routev3.Vhds{ConfigSource: envoyconf.OverADS()}
				g.putOrKeep(out, prev, xds.TypeRoute, c.RouteConfiguration, c.Sources)
			}
			return xds.NewSet(prev, out.resources, out.problems)
		}
		configurations, problems := r.merged.Routes(r.source())
		for _, c := range configurations {
			envoyconf.ApplyHosts(c.GetVirtualHosts(), r.settings)
			g.putOrKeep(out, prev, xds.TypeRoute, c.RouteConfiguration, c.Sources)
		}
		return xds.NewSet(prev, out.resources, slices.Concat(problems, out.problems))
	})
}

// routerHosts returns the VHDS resources of a gateway.
func (g *Generator) routerHosts(r *router) *xds.Set {
	if !r.proxy.VHDS {
		return g.empty
	}
	return g.routerSet(r, xds.TypeVirtualHost, func(prev *xds.Set) *xds.Set {
		configurations, problems := r.merged.Routes(r.source())
		out := &part{problems: problems}
		for _, c := range configurations {
			envoyconf.ApplyHosts(c.GetVirtualHosts(), r.settings)
			for _, vh := range c.Hosts {
				vh.Name = c.GetName() + "/" + vh.GetName()
				g.putOrKeep(out, prev, xds.TypeVirtualHost, vh.VirtualHost, vh.Sources)
			}
		}
		return xds.NewSet(prev, out.resources, out.problems)
	})
}

// named is a message with a name.
type named interface {
	proto.Message
	GetName() string
}

// putOrKeep adds the resource of a message. If the message is invalid, it adds the last valid
// resource instead.
func (g *Generator) putOrKeep(out *part, prev *xds.Set, typeURL string, msg named, from xds.Sources) {
	res, err := g.table.Put(typeURL, msg.GetName(), msg, from)
	if err != nil {
		out.problems = append(out.problems, envoyconf.Left(model.Key{}, err))
		if prev != nil {
			res = prev.Get(msg.GetName())
		}
	}
	if res != nil {
		out.resources = append(out.resources, res)
	}
}

// routerClusters returns the clusters of all services that the gateway sees, and those for
// AUTO_PASSTHROUGH servers.
func (g *Generator) routerClusters(r *router) *xds.Set {
	outbound := g.outboundClusters(r.target)
	key := setKey{typeURL: xds.TypeCluster, outbound: r.outbound, router: r.key, policies: r.policies.Authorizers, delimited: r.settings.DelimitsStats()}
	from := inputs{r.merged, r.view, outbound, r.mesh.VirtualServices, r.mesh.DestinationRules, r.mesh.Config}
	return g.sets.get(key, r.mesh.Sequence, from, func(prev *xds.Set) *xds.Set {
		in := r.source()
		needed := g.needed(r)
		out := &part{problems: slices.Clone(outbound.problems)}
		byName := make(map[string]*xds.Resource)
		for _, res := range outbound.resources {
			byName[res.Name] = res
			if needed(res.Name) {
				out.resources = append(out.resources, res)
			}
		}
		for _, p := range r.merged.Passthroughs(in) {
			res := byName[envoyconf.OutboundName(p.Port.Number, p.Subset, p.Service.Hostname)]
			if res == nil {
				continue // no cluster can satisfy the TLS settings of the rule
			}
			opaque, err := g.renamed(res, xds.TypeCluster, p, func(m proto.Message) proto.Message { return p.Opaque(m.(*clusterv3.Cluster)) })
			if err != nil {
				out.problems = append(out.problems, envoyconf.Left(p.Service.Source, err))
				continue
			}
			out.resources = append(out.resources, opaque)
		}
		return xds.NewSet(prev, out.resources, out.problems)
	})
}

// renamedSource is the input of a resource that is a modified copy of another.
type renamedSource struct {
	from     *xds.Resource
	name     string
	gateways string
}

// renamed converts a resource to that of a passthrough.
func (g *Generator) renamed(from *xds.Resource, typeURL string, p gateway.Passthrough, change func(proto.Message) proto.Message) (*xds.Resource, error) {
	packed := &anypb.Any{}
	if err := proto.Unmarshal(from.Any, packed); err != nil {
		return nil, fmt.Errorf("read resource %s: %w", from.Name, err)
	}
	msg, err := packed.UnmarshalNew()
	if err != nil {
		return nil, fmt.Errorf("read resource %s: %w", from.Name, err)
	}
	return g.table.Get(renamedSource{from, p.Name, p.Gateways.String()}, typeURL, p.Name, func() (proto.Message, xds.Sources) {
		return change(msg), slices.Concat(from.Sources, p.Gateways)
	})
}

// routerEndpoints returns the endpoints of the gateway's clusters. Passthrough clusters have the
// same endpoints as the regular cluster of their port.
func (g *Generator) routerEndpoints(r *router) *xds.Set {
	all := g.endpoints(r.target)
	key := setKey{typeURL: xds.TypeEndpoint, outbound: r.outbound, router: r.key, policies: r.policies.Authorizers}
	from := inputs{r.merged, r.view, all, r.mesh.VirtualServices, r.mesh.DestinationRules}
	return g.sets.get(key, r.mesh.Sequence, from, func(prev *xds.Set) *xds.Set {
		needed := g.needed(r)
		out := &part{problems: slices.Clone(all.Problems)}
		for _, res := range all.Resources {
			if needed(res.Name) {
				out.resources = append(out.resources, res)
			}
		}
		for _, p := range r.merged.Passthroughs(r.source()) {
			res := all.Get(envoyconf.OutboundName(p.Port.Number, p.Subset, p.Service.Hostname))
			if res == nil {
				continue // resolved by Envoy
			}
			same, err := g.renamed(res, xds.TypeEndpoint, p, func(m proto.Message) proto.Message {
				cla := m.(*endpointv3.ClusterLoadAssignment)
				cla.ClusterName = p.Name
				return cla
			})
			if err != nil {
				out.problems = append(out.problems, envoyconf.Left(p.Service.Source, err))
				continue
			}
			out.resources = append(out.resources, same)
		}
		return xds.NewSet(prev, out.resources, out.problems)
	})
}

// needed returns a predicate that selects the clusters of a gateway: all, or only those that its
// routes lead to and those of its authorizers if FilterGatewayClusters is set.
func (g *Generator) needed(r *router) func(cluster string) bool {
	if !g.cfg.FilterGatewayClusters {
		return func(string) bool { return true }
	}
	hosts := r.merged.Destinations(r.source())
	return func(cluster string) bool {
		return gateway.Needs(hosts, cluster) || r.policies.Asks(cluster) || r.recorded.Sends(cluster)
	}
}
