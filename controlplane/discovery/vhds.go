// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// Virtual hosts as separate resources (VHDS). Envoy subscribes to all of them once in
// a stream, after the first route configuration that names VHDS. It assigns each to
// the route configuration whose name precedes the last slash, and drops those of
// unknown route configurations, although it later claims to have them. Therefore:
//
//   - A proxy receives the virtual hosts of the route configurations that it has
//     subscribed to and answered, and all of them again when it resubscribes to one.
//   - When it unsubscribes from a route configuration, its virtual hosts are removed.
//   - Virtual hosts that vanish with their route configuration are kept as long as the
//     proxy subscribes to that: its listener is draining.

// takesVirtualHosts reports whether a proxy is an Envoy that supports VHDS over its
// ADS stream. Envoy 1.36 rejects route configurations that name VHDS with a source
// other than a separate gRPC stream; 1.37 is the first to accept ADS. Clients of other
// or unknown versions receive virtual hosts inside routes.
func takesVirtualHosts(n *corev3.Node) bool {
	v := n.GetUserAgentBuildVersion().GetVersion()
	return n.GetUserAgentName() == "envoy" && (v.GetMajorNumber() > 1 || v.GetMajorNumber() == 1 && v.GetMinorNumber() >= 37)
}

// routeOf returns the name of the route configuration of a virtual host.
func routeOf(name string) string { return name[:max(0, strings.LastIndexByte(name, '/'))] }

// waitsForRoutes reports whether virtual hosts would arrive before their routes.
func (s *stream) waitsForRoutes() bool {
	routes := s.subs[xds.TypeRoute]
	return routes == nil || routes.ack.waiting() || routes.answerDue
}

// resumeHosts corrects the virtual hosts that a reconnecting proxy claims to have: it
// has only those whose routes it claims, too.
func (s *stream) resumeHosts(q *request) {
	switch q.typeURL {
	case xds.TypeRoute:
		s.claimed = q.versions
	case xds.TypeVirtualHost:
		if s.subs[xds.TypeRoute] == nil {
			return // checked when it subscribes to routes
		}
		hosts := s.subs[q.typeURL]
		for name := range q.versions {
			if _, ok := s.claimed[routeOf(name)]; !ok {
				hosts.override(name, resourceState{has: true})
			}
		}
		s.claimed = nil
	}
}

// routesAsked makes the next diff compare the virtual hosts of the routes that the
// proxy subscribes to or unsubscribes from: it dropped the previous ones.
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
	hosts.recheck(func(name string) bool { return changed[routeOf(name)] })
	hosts.comparedWith = nil
}

// recheck makes the next diff contain the resources that the subscriber has and whose
// names match: the current version, or the removal.
func (s *subscription) recheck(matches func(name string) bool) {
	for name, w := range s.overrides {
		if w.has && matches(name) {
			s.override(name, resourceState{has: true})
		}
	}
	for _, res := range s.base.Resources {
		if _, ok := s.overrides[res.Name]; !ok && matches(res.Name) {
			s.override(res.Name, resourceState{has: true})
		}
	}
}

// diff returns the update that brings a subscriber to set.
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
