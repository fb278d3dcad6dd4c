// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/controlplane/generate"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// maxListens bounds the addresses of one proxyless server; it is not answered for
// more.
const maxListens = 64

// listens notes at which addresses a proxyless server listens: nobody else knows
// all of them, and it names each in what it asks for. One that it asks for no
// longer stays noted.
func (s *stream) listens(q *request) {
	if !s.proxy.Proxyless || q.typeURL != xds.TypeListener {
		return
	}
	names := q.subscribe
	if !s.delta {
		if sub := s.subs[q.typeURL]; sub != nil && sub.asked == q.asked && sub.named == q.named {
			return // the same again, as in most answers
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
	s.given.Undecided = true // it is given more than it was
}
