// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"slices"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// send sends an update and records it.
func (s *stream) send(sub *subscription, set *xds.Set, u update) error {
	s.nonces++
	began := time.Now()
	resources, removed, common := u.changed, u.removed, u.common
	if !s.delta {
		removed = nil // a wildcard removes what a response does not contain
		switch {
		case sub.wildcard:
			resources, common = set.Resources, false // shared if it is long
		case wholeState(sub.typeURL):
			resources, common = sub.ofNames(set), false
		}
	}
	r := &response{
		typeURL: sub.typeURL, nonce: nonceOf(s.nonces), version: sub.version(set),
		body: sub.body(set, resources, common, s.delta), removed: removed,
	}
	out := r.frame()
	label := shortType(sub.typeURL)
	s.server.metrics.pushes.WithLabelValues(label).Inc()
	s.server.metrics.bytes.WithLabelValues(label).Add(float64(out.data.Len()))
	if s.verbose {
		s.log.Debug("sending", "type_url", sub.typeURL, "nonce", r.nonce, "version", r.version, "count", len(resources))
	}
	if err := s.sendMsg(out); err != nil {
		return err
	}
	s.server.metrics.sending.WithLabelValues(label).Observe(time.Since(began).Seconds())
	s.acks.sent(sub.ack, s.nonces, s.mesh.Sequence)
	u.mixed = s.wholeAnswers(sub) && s.given.SparesType(slices.Index(xds.Types, sub.typeURL))
	sub.sent(set, u)
	if sub.typeURL == xds.TypeExtension {
		s.plugins.Sent(r.nonce, resources)
	}
	if sub.typeURL == xds.TypeCluster {
		s.resendEndpoints(u.changed)
	}
	return nil
}

// resendEndpoints makes the next endpoint response contain the endpoints of changed
// clusters: Envoy needs one to finish warming a changed cluster, even if the endpoints
// are the same or, by then, gone. Until the clusters are warm, it does not acknowledge
// them.
func (s *stream) resendEndpoints(clusters []*xds.Resource) {
	eds := s.subs[xds.TypeEndpoint]
	if eds == nil || len(clusters) == 0 {
		return
	}
	set := s.generate(xds.TypeEndpoint)
	for _, c := range clusters {
		if res := set.Get(c.Name); res != nil && eds.names.contains(c.Name) || eds.state(c.Name).has {
			eds.override(c.Name, resourceState{due: res})
		}
	}
}
