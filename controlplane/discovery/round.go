// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"slices"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// namesClusters reports whether resources of a type refer to clusters, directly or
// through other resources.
func namesClusters(typeURL string) bool {
	return typeURL == xds.TypeListener || typeURL == xds.TypeRoute || typeURL == xds.TypeVirtualHost
}

// push sends the difference between the newest snapshot and what the proxy has. The
// order makes sure that no resource refers to one that the proxy does not have (make
// before break): routes and listeners wait until clusters and endpoints are answered,
// virtual hosts until routes are, and clusters are removed once no route names them.
// The answer to each response calls push again.
func (s *stream) push() error {
	if err := s.give(); err != nil {
		return err
	}
	return s.round()
}

// round sends the difference to the resources that were chosen for this round.
func (s *stream) round() error {
	settled := s.routesSettled()
	for _, typeURL := range s.types() {
		sub := s.subs[typeURL]
		if sub == nil || sub.ack.waiting() || s.waits(typeURL) {
			continue
		}
		set := s.generate(typeURL)
		if typeURL == xds.TypeCluster && !settled {
			set = sub.withoutRemovals(set)
		}
		if sub.comparedWith == set {
			continue // compared before
		}
		u := s.diff(sub, set)
		// The removal of a resource that was subscribed to by name is sent once
		// nothing refers to it; without delta it cannot be sent.
		later := typeURL == xds.TypeEndpoint && !sub.wildcard && !settled && len(u.removed) > 0
		if later || !sub.wildcard && !s.delta && !wholeState(typeURL) {
			u.kept, u.removed = slices.Concat(u.kept, u.removed), nil
		}
		if u.empty() && (!sub.answerDue || s.needsNoAnswer(sub)) {
			sub.answerDue = false
			sub.has(set, u)
			if sub.ack.sent == 0 && sub.hasSome() {
				s.acks.resumed(sub.ack)
			}
		} else if err := s.send(sub, set, u); err != nil {
			return err
		}
		if later {
			sub.comparedWith = nil
		}
	}
	if !settled && s.routesSettled() {
		return s.round() // no answer will follow that triggers the removals
	}
	s.noteProgress()
	if s.given.Trying && !s.waiting() {
		s.member.Confirm() // also what the proxy had before
	}
	if !s.waiting() && !s.given.Open && s.pushed != s.mesh.since {
		s.pushed = s.mesh.since
		s.server.metrics.convergence.Observe(time.Since(s.pushed).Seconds())
	}
	return nil
}

// routesSettled reports whether the proxy has accepted the newest listeners and
// routes. A reconnecting proxy may have old ones until it has subscribed to them on
// this stream.
func (s *stream) routesSettled() bool {
	for _, typeURL := range []string{xds.TypeListener, xds.TypeRoute, xds.TypeVirtualHost} {
		if typeURL == xds.TypeVirtualHost && s.subs[xds.TypeRoute] == nil {
			continue // no routes, so no virtual hosts
		}
		sub, set := s.subs[typeURL], s.generate(typeURL)
		if sub == nil && len(set.Resources) > 0 || sub != nil && (sub.ack.waiting() || sub.refused || sub.comparedWith != set) {
			return false
		}
	}
	return true
}

// waits reports whether a type must not be sent yet: because it may name clusters
// that the proxy does not have, or, for virtual hosts, because of their routes.
func (s *stream) waits(typeURL string) bool {
	switch typeURL {
	case xds.TypeListener, xds.TypeRoute:
	case xds.TypeVirtualHost:
		if s.waitsForRoutes() {
			return true
		}
	default:
		return false
	}
	for _, before := range []string{xds.TypeCluster, xds.TypeEndpoint, xds.TypeExtension} {
		if sub := s.subs[before]; sub != nil && sub.ack.waiting() {
			return true
		}
	}
	return false
}

// waiting reports whether any response is unanswered.
func (s *stream) waiting() bool {
	for _, sub := range s.subs {
		if sub.ack.waiting() {
			return true
		}
	}
	return false
}

func (s *stream) generate(typeURL string) *xds.Set {
	if s.objects != nil {
		return s.objects.Resources(s.mesh.Mesh, typeURL)
	}
	if typeURL == xds.TypeSecret {
		if sub := s.subs[typeURL]; sub != nil {
			return s.secrets.Set(sub.names.list, s.mesh.Mesh)
		}
		return noResources
	}
	if i := slices.Index(xds.Types, typeURL); i >= 0 && s.given.mesh == s.mesh {
		return s.given.Sets[i]
	}
	set, ok := s.server.tryGenerate(s.mesh.Mesh, s.view(), typeURL)
	if sub := s.subs[typeURL]; !ok && sub != nil {
		return sub.base // unchanged
	}
	if typeURL == xds.TypeExtension {
		return s.plugins.Set(set, s.mesh.Mesh)
	}
	return set
}
