// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/controlplane/generate"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// maxListens is the maximum number of addresses of one proxyless server; requests for
// more are not answered.
const maxListens = 64

// listens records the addresses of a proxyless server, which only its subscriptions
// name. Addresses that it unsubscribes from stay recorded.
func (s *stream) listens(q *request) {
	if !s.proxy.Proxyless || q.typeURL != xds.TypeListener {
		return
	}
	names := q.subscribe
	if !s.delta {
		if sub := s.subs[q.typeURL]; sub != nil && sub.asked == q.asked && sub.named == q.named {
			return // unchanged, as in most acknowledgements
		}
		names = q.names()
	}
	known := s.view()
	all := slices.Clone(known.Listens)
	for _, name := range names {
		address, ok := strings.CutPrefix(name, generate.ServerPrefix)
		if ok && len(all) < maxListens && !slices.Contains(all, address) {
			all = append(all, strings.Clone(address))
		}
	}
	if len(all) == len(known.Listens) {
		return
	}
	slices.Sort(all)
	next := *known
	next.Listens = all
	s.labels.seen.Store(&next)
	s.given.Undecided = true // more is generated for it now
}
