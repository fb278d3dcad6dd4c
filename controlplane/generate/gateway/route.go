// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package gateway

import (
	"slices"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/route"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// Configuration is a route configuration and the objects that it is built from.
type Configuration struct {
	*routev3.RouteConfiguration
	Sources xds.Sources
	// Hosts are the virtual hosts, which the configuration itself does not contain.
	Hosts []VirtualHost
}

// VirtualHost is a virtual host and the objects that it is built from.
type VirtualHost struct {
	*routev3.VirtualHost
	Sources xds.Sources
}

// Routes builds the routes of all listeners, sorted by name.
func (m *Merged) Routes(in *Source) ([]Configuration, []model.Problem) {
	var problems []model.Problem
	bound := make(map[*snapshot.Gateway][]*snapshot.VirtualService)
	out := m.configurations(in, func(group []*server) []VirtualHost {
		b := &routes{Source: in, hosts: make(map[string]*virtualHost), bound: bound}
		for _, s := range group {
			b.server(s)
		}
		hosts := b.virtualHosts(group[0].number())
		problems = append(problems, b.problems...)
		return hosts
	})
	return out, once(problems)
}

// Frames returns the routes of all listeners without their virtual hosts.
func (m *Merged) Frames(in *Source) []Configuration {
	return m.configurations(in, func([]*server) []VirtualHost { return nil })
}

func (m *Merged) configurations(in *Source, hosts func([]*server) []VirtualHost) []Configuration {
	var out []Configuration
	for _, l := range m.listeners {
		for _, group := range l.byRoutes() {
			c := Configuration{Hosts: hosts(group), RouteConfiguration: &routev3.RouteConfiguration{
				Name:                           in.routeName(group[0].route),
				ValidateClusters:               wrapperspb.Bool(false),
				MaxDirectResponseBodySizeBytes: wrapperspb.UInt32(route.MaxBody),
				IgnorePortInHostMatching:       true,
			}}
			for _, s := range group {
				c.Sources = append(c.Sources, s.sources...)
			}
			for _, h := range c.Hosts {
				c.VirtualHosts, c.Sources = append(c.VirtualHosts, h.VirtualHost), append(c.Sources, h.Sources...)
			}
			out = append(out, c)
		}
	}
	slices.SortFunc(out, func(a, b Configuration) int { return strings.Compare(a.GetName(), b.GetName()) })
	return out
}

// byRoutes returns the servers of the listener that accept requests, grouped by shared routes.
func (l *listener) byRoutes() [][]*server {
	if l.kind == plainHTTP {
		return [][]*server{l.servers}
	}
	var out [][]*server
	for _, s := range l.servers {
		if s.route != "" {
			out = append(out, []*server{s})
		}
	}
	return out
}

// routes builds the virtual hosts of one route configuration.
type routes struct {
	*Source
	hosts    map[string]*virtualHost
	bound    map[*snapshot.Gateway][]*snapshot.VirtualService // visible VirtualServices by the Gateway that they are bound to
	problems []model.Problem
}

type virtualHost struct {
	*routev3.VirtualHost
	from    []hostRules // what its routes are built from
	of      model.Key   // the first object that defines it
	sources xds.Sources
}

// hostRules is a VirtualService at a Gateway.
type hostRules struct {
	gateway *snapshot.Gateway
	rules   *snapshot.VirtualService
}

// server adds the hosts of one server.
func (b *routes) server(s *server) {
	redirects := s.spec.GetTls().GetHttpsRedirect()
	bound, ok := b.bound[s.gateway]
	if !ok {
		bound = b.virtualServices(s.gateway)
		b.bound[s.gateway] = bound
	}
	allowed := make(map[string][]string) // hosts of the server by the namespace that may use them
	for _, vs := range bound {
		if len(vs.Spec.GetHttp()) == 0 {
			continue
		}
		hosts, ok := allowed[vs.Config.Namespace]
		if !ok {
			hosts = s.gateway.ServerHosts(s.spec, vs.Config.Namespace)
			allowed[vs.Config.Namespace] = hosts
		}
		for _, host := range snapshot.IntersectHosts(hosts, vs.Hosts) {
			h := b.at(host, s, vs.Config)
			if redirects {
				h.RequireTls = routev3.VirtualHost_ALL
			}
			from := hostRules{s.gateway, vs}
			if slices.Contains(h.from, from) {
				continue
			}
			h.from = append(h.from, from)
			routes, used := b.routesOf(host, s, vs)
			h.Routes, h.sources = append(h.Routes, routes...), append(h.sources, used...)
		}
	}
	if redirects {
		for _, host := range plainHosts(s.spec.GetHosts()) {
			b.at(host, s, s.gateway.Config).RequireTls = routev3.VirtualHost_ALL
		}
	}
}

// at returns the virtual host of a host. It creates the virtual host if it does not exist.
func (b *routes) at(host string, s *server, of *model.Config) *virtualHost {
	h := b.hosts[host]
	if h == nil {
		h = &virtualHost{of: of.Key, VirtualHost: &routev3.VirtualHost{
			Name: envoyconf.HostPort(host, s.number()), Domains: []string{domain(host)}, IncludeRequestAttemptCount: true,
		}}
		if b.servesHTTP3(s) {
			offerHTTP3(h.VirtualHost, s.number())
		}
		b.hosts[host] = h
	}
	h.sources = append(h.sources, s.sources...)
	h.sources.AddConfigs(of)
	return h
}

// domain returns a host in the form that Envoy expects: IPv6 addresses are in brackets.
func domain(host string) string {
	if strings.Contains(host, ":") {
		return "[" + host + "]"
	}
	return host
}

// routesOf builds the routes of a VirtualService for one of its hosts.
func (b *routes) routesOf(host string, s *server, vs *snapshot.VirtualService) ([]*routev3.Route, xds.Sources) {
	builder := b.builder(s)
	out := builder.Routes(&route.Host{Name: host, Port: s.number(), Rules: vs})
	b.problems = append(b.problems, builder.Problems...)
	return out, builder.TakeSources()
}

// virtualHosts returns the valid virtual hosts, sorted by name. There is always at least one,
// because requests would otherwise wait for one.
func (b *routes) virtualHosts(port uint32) []VirtualHost {
	var out []VirtualHost
	for _, h := range b.hosts {
		h.Routes = catchAllLast(h.Routes)
		if b.Labelled {
			h.sources = append(h.sources, envoyconf.HidePeer(h.Routes, b.Service, b.LabelledBy)...)
		}
		err := route.CheckHost(h.VirtualHost)
		if err == nil {
			out = append(out, VirtualHost{h.VirtualHost, h.sources})
			continue
		}
		b.problems = append(b.problems, envoyconf.Left(h.of, err))
	}
	slices.SortFunc(out, func(x, y VirtualHost) int { return strings.Compare(x.GetName(), y.GetName()) })
	slices.SortFunc(b.problems, func(x, y model.Problem) int { return strings.Compare(x.String(), y.String()) })
	if len(out) == 0 {
		out = []VirtualHost{{VirtualHost: &routev3.VirtualHost{Name: envoyconf.HostPort("blackhole", port), Domains: []string{"*"}}}}
	}
	return out
}

// catchAllLast moves routes that match every request behind the others, also across
// VirtualServices, and removes unreachable routes.
func catchAllLast(list []*routev3.Route) []*routev3.Route {
	var rest, all []*routev3.Route
	for _, r := range list {
		if takesAll(r.GetMatch()) {
			all = append(all, r)
		} else {
			rest = append(rest, r)
		}
	}
	return append(rest, all[:min(len(all), 1)]...)
}

// takesAll reports whether a match matches every request.
func takesAll(m *routev3.RouteMatch) bool {
	everything := m.GetPrefix() == "/" || m.GetPathSeparatedPrefix() == "/" || m.GetSafeRegex().GetRegex() == ".*"
	return everything && len(m.GetHeaders())+len(m.GetQueryParameters())+len(m.GetDynamicMetadata()) == 0 && m.GetRuntimeFraction() == nil && m.GetGrpc() == nil
}
