// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package patch

import (
	"errors"
	"slices"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
)

// Routes applies the patches of route configurations, virtual hosts and routes.
func (p Patches) Routes(c *routev3.RouteConfiguration, place Place) Outcome[*routev3.RouteConfiguration] {
	if place.Context != networkingv1alpha3.EnvoyFilter_GATEWAY {
		place.Context = networkingv1alpha3.EnvoyFilter_SIDECAR_OUTBOUND
	}
	name := c.GetName()
	return apply(c, place, p, RouteKinds, func(r *run, c *routev3.RouteConfiguration) bool {
		r.routes(c, c.GetVhds() == nil)
		return true
	}, func(c *routev3.RouteConfiguration) error {
		if c.GetName() != name {
			return errors.New("it renames the route configuration, whose name listeners use: leave the name out")
		}
		return checkResource(c)
	})
}

// Hosts is like Routes for the virtual hosts of a route configuration that are separate resources.
func (p Patches) Hosts(c *routev3.RouteConfiguration, place Place) Outcome[*routev3.RouteConfiguration] {
	if place.Context != networkingv1alpha3.EnvoyFilter_GATEWAY {
		place.Context = networkingv1alpha3.EnvoyFilter_SIDECAR_OUTBOUND
	}
	return apply(c, place, p, HostKinds, func(r *run, c *routev3.RouteConfiguration) bool {
		r.hosts(c)
		return true
	}, checkResource[*routev3.RouteConfiguration])
}

// TouchesRoutes reports whether a patch may match a route configuration of the given name.
func (p Patches) TouchesRoutes(name string, place Place) bool {
	r := run{Place: place}
	if place.Context != networkingv1alpha3.EnvoyFilter_GATEWAY {
		r.Context = networkingv1alpha3.EnvoyFilter_SIDECAR_OUTBOUND
	}
	r.patches = p
	for _, kind := range RouteKinds {
		if slices.ContainsFunc(r.of(kind), func(one *Patch) bool { return r.matchesRoutes(one, name) }) {
			return true
		}
	}
	return false
}

// innerRoutes patches the routes in the connection managers of a listener.
func (r *run) innerRoutes(l *listenerv3.Listener) {
	if len(r.of(routes))+len(r.of(virtualHost))+len(r.of(httpRoute)) == 0 {
		return
	}
	for _, c := range append(slices.Clip(l.GetFilterChains()), l.GetDefaultFilterChain()) {
		for _, f := range c.GetFilters() {
			manager(f, func(h *hcmv3.HttpConnectionManager) bool {
				if h.GetRouteConfig() == nil {
					return false
				}
				r.routes(h.GetRouteConfig(), true)
				return true
			})
		}
	}
}

// routes patches a route configuration, and its virtual hosts if they are part of it.
func (r *run) routes(c *routev3.RouteConfiguration, hosts bool) {
	for _, p := range r.of(routes) {
		if r.matchesRoutes(p, c.GetName()) {
			r.hit(p)
			p.into(c)
		}
	}
	if hosts {
		r.hosts(c)
	}
}

func (r *run) hosts(c *routev3.RouteConfiguration) {
	var here []*Patch
	for _, p := range r.of(virtualHost) {
		if r.matchesRoutes(p, c.GetName()) {
			here = append(here, p)
		}
	}
	var inner []*Patch
	for _, p := range r.of(httpRoute) {
		if r.matchesRoutes(p, c.GetName()) {
			inner = append(inner, p)
		}
	}
	out := c.VirtualHosts[:0]
	for _, vh := range c.GetVirtualHosts() {
		if vh = r.host(vh, here); vh != nil {
			r.httpRoutes(vh, inner)
			out = append(out, vh)
		}
	}
	c.VirtualHosts = out
	for _, p := range here {
		if p.Operation == add {
			r.hit(p)
			c.VirtualHosts = append(c.VirtualHosts, proto.Clone(p.value).(*routev3.VirtualHost))
		}
	}
}

// host returns the patched virtual host, or nil if it is removed.
func (r *run) host(vh *routev3.VirtualHost, patches []*Patch) *routev3.VirtualHost {
	for _, p := range patches {
		if p.Operation == add || !p.matchesHost(vh) {
			continue
		}
		r.hit(p)
		switch p.Operation {
		case remove:
			return nil
		case replace:
			vh = proto.Clone(p.value).(*routev3.VirtualHost)
		default:
			p.into(vh)
		}
	}
	return vh
}

func (r *run) httpRoutes(vh *routev3.VirtualHost, patches []*Patch) {
	out := vh.Routes[:0]
	for _, route := range vh.GetRoutes() {
		keep := true
		for _, p := range patches {
			if !p.merges() && p.Operation != remove || !p.matchesHost(vh) || !p.matchesRoute(route) {
				continue
			}
			r.hit(p)
			if p.Operation == remove {
				keep = false
				break
			}
			p.into(route)
		}
		if keep {
			out = append(out, route)
		}
	}
	vh.Routes = out
	for _, p := range patches {
		if p.merges() || p.Operation == remove || !p.matchesHost(vh) {
			continue
		}
		anyone := p.match.GetRouteConfiguration().GetVhost().GetRoute() == nil
		if p.Operation == insertFirst && !anyone && !slices.ContainsFunc(vh.Routes, p.matchesRoute) {
			continue
		}
		var ok bool
		if vh.Routes, ok = edit(vh.Routes, p, anyone, p.matchesRoute); ok {
			r.hit(p)
		}
	}
}
