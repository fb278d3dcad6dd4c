// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"cmp"
	"net/http"
	"slices"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/cluster"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/route"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

const (
	// httpProxyRoute is the name of the routes of the HTTP proxy listener.
	httpProxyRoute = "http_proxy"
	// vhdsSuffix is the suffix of the names of routes whose virtual hosts are separate resources.
	vhdsSuffix = ".vhds"
)

// anyRoute is the name of the routes of requests for unknown hosts.
const anyRoute = "allow_any"

// unknownHostBody is the response body for a request with an unknown host.
const unknownHostBody = "no service of the mesh answers for this host and port: " +
	"check the host, the port and the namespace of the request, or declare the service with a ServiceEntry\n"

// routes returns the RDS resources of a proxy: the routes of its outbound listeners and of its
// HTTP proxy.
func (g *Generator) routes(s *target) *xds.Set {
	p := g.planOf(s)
	if httpProxyPort(s) == 0 && p == &noPlan {
		return g.empty
	}
	key := setKey{typeURL: xds.TypeRoute, vhds: s.proxy.VHDS, outbound: s.outbound, route: s.routeKey(), inbound: inboundKey{port: httpProxyPort(s), modes: s.unknownKey()}, unknown: s.unknownBy(), settings: s.settings.RouteKey()}
	from := inputs{p, s.mesh.Services, s.mesh.VirtualServices, s.mesh.DestinationRules, s.mesh.Config}
	if s.proxy.VHDS {
		key.outbound, key.route, key.settings = outboundKey{}, routeKey{}, ""
		if p != &noPlan {
			key.outbound, key.route = s.outbound, s.routeKey()
		}
		from = inputs{p}
	}
	return g.sets.get(key, s.mesh.Sequence, from, func(prev *xds.Set) *xds.Set {
		b := g.newRouteBuilder(s, g.view(s))
		out := &part{}
		for _, c := range b.configurations(p) {
			config, from := c.message(s.proxy.VHDS), c.services()
			if !s.proxy.VHDS {
				from = nil
				for _, h := range c.hosts() {
					config.VirtualHosts, from = append(config.VirtualHosts, h.VirtualHost), append(from, h.from...)
				}
				envoyconf.ApplyHosts(config.VirtualHosts, s.settings)
			}
			r, err := g.table.Put(xds.TypeRoute, config.GetName(), config, from)
			if err != nil {
				out.problems = append(out.problems, envoyconf.Left(model.Key{}, err))
				if prev != nil {
					r = prev.Get(config.GetName()) // keep the last valid routes
				}
				if r == nil {
					continue
				}
			}
			out.resources = append(out.resources, r)
		}
		return xds.NewSet(prev, out.resources, slices.Concat(b.Problems, out.problems))
	})
}

// configuration is a route configuration without its virtual hosts.
type configuration struct {
	name string
	// withPorts is true if virtual hosts match the port in the host of a request.
	withPorts bool
	hosts     func() []madeHost
	// listener is the listener that uses the routes; nil for the HTTP proxy.
	listener *outboundListener
}

// services returns the objects that require the route configuration.
func (c configuration) services() xds.Sources {
	var from xds.Sources
	if c.listener != nil {
		for _, svc := range c.listener.services {
			from.Add(svc.Source)
		}
	}
	return from
}

// madeHost is a virtual host and the objects that it is built from.
type madeHost struct {
	*routev3.VirtualHost
	from xds.Sources
}

// configurations returns the route configurations of the outbound listeners and of the HTTP proxy.
func (b *routeBuilder) configurations(p *plan) []configuration {
	var out []configuration
	seen := map[string]bool{}
	if httpProxyPort(b.target) != 0 {
		seen[httpProxyRoute] = true
		out = append(out, configuration{name: httpProxyRoute, withPorts: true, hosts: b.httpProxy})
	}
	for _, l := range p.listeners {
		if l.routes == "" || seen[l.routes] {
			continue
		}
		seen[l.routes] = true
		out = append(out, configuration{name: l.routes, listener: l, hosts: func() []madeHost { return b.port(l) }})
	}
	return out
}

// message returns the route configuration without virtual hosts.
func (c configuration) message(vhds bool) *routev3.RouteConfiguration {
	out := &routev3.RouteConfiguration{
		Name:                           c.fullName(vhds),
		ValidateClusters:               wrapperspb.Bool(false),
		MaxDirectResponseBodySizeBytes: wrapperspb.UInt32(route.MaxBody),
		IgnorePortInHostMatching:       !c.withPorts,
	}
	if vhds {
		out.Vhds = &routev3.Vhds{ConfigSource: envoyconf.OverADS()}
	}
	return out
}

// fullName returns the name of the configuration. With VHDS it has another name, so that a
// listener that switches waits for the new configuration. Envoy would mix the virtual hosts of
// both under a single name.
func (c configuration) fullName(vhds bool) string {
	if vhds {
		return c.name + vhdsSuffix
	}
	return c.name
}

// routesName returns the name of the routes of a listener.
func (s *target) routesName(l *outboundListener) string {
	return configuration{name: l.routes}.fullName(s.proxy.VHDS)
}

// port builds the virtual hosts of an outbound listener: one for each service, and a catch-all.
func (b *routeBuilder) port(l *outboundListener) []madeHost {
	served := make(map[*model.Service]bool, len(l.services))
	for _, svc := range l.services {
		served[svc] = true
	}
	var hosts []*virtualHost
	for _, h := range b.hostsOf(l.port) {
		switch {
		case l.host != "":
			if h.Name == l.host {
				h.domains = []string{"*"}
				hosts = append(hosts, h)
			}
		case h.Service == nil || served[h.Service]:
			hosts = append(hosts, h)
		}
	}
	if l.host == "" {
		claimDomains(hosts, b.target, l.port == 0)
	}
	return b.virtualHosts(hosts, b.unknown())
}

// hostsOf returns the hosts with the given port, or all hosts for port 0. Their domains are not
// set.
func (b *routeBuilder) hostsOf(port uint32) []*virtualHost {
	if b.byPort == nil {
		b.byPort = map[uint32][]*virtualHost{}
		for _, h := range b.hosts() {
			b.byPort[0] = append(b.byPort[0], h)
			b.byPort[h.Port] = append(b.byPort[h.Port], h)
		}
	}
	out := make([]*virtualHost, 0, len(b.byPort[port]))
	for _, h := range b.byPort[port] {
		out = append(out, &virtualHost{Host: h.Host})
	}
	return out
}

// unknown returns the virtual host for unknown hosts, which forwards requests to their original
// destination or rejects them.
func (b *routeBuilder) unknown() madeHost {
	var from xds.Sources
	from.Add(b.target.unknownBy())
	to := b.target.unknownTraffic()
	if to == envoyconf.BlackHoleCluster {
		return madeHost{blockAll(), from}
	}
	vh := anyHost(to)
	return madeHost{vh, append(from, b.hidePeer(vh)...)}
}

// anyHost returns the virtual host that forwards requests for unknown hosts to a cluster.
func anyHost(to string) *routev3.VirtualHost {
	return &routev3.VirtualHost{
		Name: anyRoute, Domains: []string{"*"}, IncludeRequestAttemptCount: true,
		Routes: []*routev3.Route{{
			Name:  anyRoute,
			Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
			Action: &routev3.Route_Route{Route: &routev3.RouteAction{
				ClusterSpecifier:  &routev3.RouteAction_Cluster{Cluster: to},
				Timeout:           durationpb.New(0),
				MaxStreamDuration: &routev3.RouteAction_MaxStreamDuration{GrpcTimeoutHeaderMax: durationpb.New(0)},
			}},
		}},
	}
}

// hidePeer removes the headers about the workload from requests that leave the mesh.
func (b *routeBuilder) hidePeer(vh *routev3.VirtualHost) xds.Sources {
	if !b.target.recorded.Labelled {
		return nil
	}
	return envoyconf.HidePeer(vh.GetRoutes(), b.Service, b.target.recorded.LabelledBy)
}

// routeBuilder builds the routes of a proxy.
type routeBuilder struct {
	route.Builder
	target *target
	view   *view
	byPort map[uint32][]*virtualHost // see hostsOf
}

func (g *Generator) newRouteBuilder(s *target, v *view) *routeBuilder {
	return &routeBuilder{target: s, view: v, Builder: route.Builder{
		Mesh: s.mesh, Proxy: s.proxy, Gateway: route.Sidecars, Timeout: g.cfg.RequestTimeout, Sessions: g.cfg.Sessions, Service: func(host string) *model.Service { return v.byHost[host] },
	}}
}

// forwarded returns the cluster to which the HTTP proxy forwards requests for unknown hosts, and the
// object that determines it.
func (s *target) forwarded() (to string, from xds.Sources) {
	if httpProxyPort(s) == 0 {
		return envoyconf.BlackHoleCluster, nil
	}
	from.Add(s.unknownBy())
	if to = s.unknownTraffic(); to == cluster.PassthroughName {
		to = cluster.ForwardName // there is no original destination
	}
	return to, from
}

// unresolved returns the reply to requests for an unknown host that has no address.
func unresolved() *hcmv3.LocalReplyConfig {
	flags := &accesslogv3.ResponseFlagFilter{Flags: []string{"DF", "UH"}}
	return &hcmv3.LocalReplyConfig{Mappers: []*hcmv3.ResponseMapper{{
		Filter: &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_AndFilter{AndFilter: &accesslogv3.AndFilter{Filters: []*accesslogv3.AccessLogFilter{
			envoyconf.Selected(`xds.route_name == "` + anyRoute + `"`),
			{FilterSpecifier: &accesslogv3.AccessLogFilter_ResponseFlagFilter{ResponseFlagFilter: flags}},
		}}}},
		StatusCode: wrapperspb.UInt32(http.StatusBadGateway),
		Body:       &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: unknownHostBody}},
	}}}
}

// httpProxy builds the routes of the HTTP proxy: one virtual host for each service and port,
// sorted by name, followed by a catch-all.
func (b *routeBuilder) httpProxy() []madeHost {
	hosts := b.hostsOf(0)
	claimDomains(hosts, b.target, true)
	for _, h := range hosts {
		h.tunnel = h.Service != nil
	}
	to, from := b.target.forwarded()
	rest, tunnel := blockAll(), route.Connect()
	if tunnel.Action = rest.GetRoutes()[0].GetAction(); to != envoyconf.BlackHoleCluster {
		rest = anyHost(to)
		tunnel.Action = &routev3.Route_Route{Route: route.ConnectTo(envoyconf.Target{Cluster: to})}
	}
	tunnel.Name = rest.GetRoutes()[0].GetName()
	rest.Routes = append([]*routev3.Route{tunnel}, rest.Routes...)
	if to == cluster.ForwardName {
		rest.Routes = append(toItself(httpProxyPort(b.target)), rest.Routes...)
	}
	return b.virtualHosts(hosts, madeHost{rest, append(from, b.hidePeer(rest)...)})
}

// toItself returns the routes of requests for the port of the HTTP proxy at any unknown host. The
// proxy would receive the requests that it forwards to itself, without end.
func toItself(port uint32) []*routev3.Route {
	tunnel, request := route.Connect(), blockAll().GetRoutes()[0]
	tunnel.Action = request.GetAction()
	for _, r := range []*routev3.Route{tunnel, request} {
		r.Name = "block_itself"
		r.Match.Headers = []*routev3.HeaderMatcher{{
			Name: ":authority",
			HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: &matcherv3.StringMatcher{
				MatchPattern: &matcherv3.StringMatcher_Suffix{Suffix: ":" + envoyconf.Number(port)},
			}},
		}}
	}
	return []*routev3.Route{tunnel, request}
}

// blockAll returns the virtual host that rejects requests for unknown hosts.
func blockAll() *routev3.VirtualHost {
	return &routev3.VirtualHost{
		Name:    "block_all",
		Domains: []string{"*"},
		Routes: []*routev3.Route{{
			Name:   "block_all",
			Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
			Action: route.Respond(502, unknownHostBody),
		}},
	}
}

// inboundRoutes returns routes that forward all requests to the application. They remove the headers
// in which proxies tell each other about their workloads: some client may send them.
func inboundRoutes(to inboundTarget) *routev3.RouteConfiguration {
	return &routev3.RouteConfiguration{
		RequestHeadersToRemove: envoyconf.PeerHeaders(),
		Name:                   to.route,
		ValidateClusters:       wrapperspb.Bool(false),
		VirtualHosts: []*routev3.VirtualHost{{
			Name:    "inbound|http|" + envoyconf.Number(to.servicePort),
			Domains: []string{"*"},
			Routes: []*routev3.Route{{
				Name:      "default",
				Match:     &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
				Decorator: &routev3.Decorator{Operation: cmp.Or(to.operation, ":0/*")},
				Action: &routev3.Route_Route{Route: &routev3.RouteAction{
					ClusterSpecifier:  &routev3.RouteAction_Cluster{Cluster: to.cluster},
					Timeout:           durationpb.New(0),
					MaxStreamDuration: &routev3.RouteAction_MaxStreamDuration{GrpcTimeoutHeaderMax: durationpb.New(0)},
				}},
			}},
		}},
	}
}
