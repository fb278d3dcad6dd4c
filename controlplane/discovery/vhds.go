// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// Virtual hosts as resources of their own (VHDS), as Envoy takes them: it asks
// for all of them once in a stream, when it has the first route configuration
// that names VHDS, and never again, and it gives each to the route configuration
// whose name stands before the last slash. What comes for one that it does not
// have is lost, though it says later that it has it. So a proxy gets the virtual
// hosts of the route configurations that it has asked for and answered; all of
// them, when it asks for one again; and those of one that it wants no longer are
// taken back. What is gone from the mesh with its route configuration stays for
// as long as the proxy asks for that: its listener is draining.

// takesVirtualHosts reports whether a proxy is an Envoy that takes virtual hosts
// over its ADS stream. Envoy 1.36 rejects every route configuration that names
// VHDS with another source than a gRPC stream of its own; 1.37 was the first to
// take ADS. Clients of other or unknown versions get virtual hosts inside routes.
func takesVirtualHosts(n *corev3.Node) bool {
	v := n.GetUserAgentBuildVersion().GetVersion()
	return n.GetUserAgentName() == "envoy" && (v.GetMajorNumber() > 1 || v.GetMajorNumber() == 1 && v.GetMinorNumber() >= 37)
}

// routeOf gives the route configuration of a virtual host.
func routeOf(name string) string { return name[:max(0, strings.LastIndexByte(name, '/'))] }

// waitsForRoutes reports whether virtual hosts would come before their routes.
func (s *stream) waitsForRoutes() bool {
	routes := s.subs[xds.TypeRoute]
	return routes == nil || routes.ack.waiting() || routes.owed
}

// resumeHosts looks at what a proxy that comes back says it has: virtual hosts
// count only if it has their routes, too.
func (s *stream) resumeHosts(q *request) {
	switch q.typeURL {
	case xds.TypeRoute:
		s.claimed = q.versions
	case xds.TypeVirtualHost:
		if s.subs[xds.TypeRoute] == nil {
			return // they are looked at when it asks for routes
		}
		hosts := s.subs[q.typeURL]
		for name := range q.versions {
			if _, ok := s.claimed[routeOf(name)]; !ok {
				hosts.differ(name, want{has: true})
			}
		}
		s.claimed = nil
	}
}

// routesAsked has the virtual hosts of routes compared again that the proxy
// begins, or ceases, to ask for: its own were lost in between.
func (s *stream) routesAsked(q *request) {
	hosts := s.subs[xds.TypeVirtualHost]
	if q.typeURL != xds.TypeRoute || hosts == nil || len(q.subscribe)+len(q.unsubscribe) == 0 {
		return
	}
	changed := make(map[string]bool, len(q.subscribe)+len(q.unsubscribe))
	for _, name := range q.unsubscribe {
		changed[name] = true
	}
	for _, name := range q.subscribe {
		if _, has := q.versions[name]; !has {
			changed[name] = true
		}
	}
	hosts.doubt(func(name string) bool { return changed[routeOf(name)] })
	hosts.at = nil
}

// doubt makes the next diff tell again of what the subscriber has, as far as the
// names are meant: whether it is still there, and if so in which version.
func (s *subscription) doubt(meant func(name string) bool) {
	for name, w := range s.over {
		if w.has && meant(name) {
			s.differ(name, want{has: true})
		}
	}
	for _, res := range s.base.Resources {
		if _, ok := s.over[res.Name]; !ok && meant(res.Name) {
			s.differ(res.Name, want{has: true})
		}
	}
}

// diff gives what a subscriber has to be told to be brought to set.
func (s *stream) diff(sub *subscription, set *xds.Set) update {
	s.withdraw(sub, set)
	u := s.spare(sub, sub.diff(set))
	if sub.typeURL != xds.TypeVirtualHost || !sub.wildcard || u.empty() {
		return u
	}
	routes, current := s.subs[xds.TypeRoute], s.generate(xds.TypeRoute)
	out := update{kept: u.kept}
	for _, res := range u.changed {
		switch {
		case routes.names.contains(routeOf(res.Name)):
			out.changed = append(out.changed, res)
		case sub.state(res.Name).has:
			out.removed = append(out.removed, res.Name)
		default:
			out.kept = append(out.kept, res.Name)
		}
	}
	for _, name := range u.removed {
		if route := routeOf(name); routes.names.contains(route) && current.Get(route) == nil {
			out.kept = append(out.kept, name)
		} else {
			out.removed = append(out.removed, name)
		}
	}
	if len(out.changed) == len(u.changed) && len(out.removed) == len(u.removed) {
		return u
	}
	slices.Sort(out.removed)
	return out
}
