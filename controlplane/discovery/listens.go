// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"cmp"
	"net/netip"
	"regexp"
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

// unbound matches the address at which Envoy could not listen, in its message about a listener.
var unbound = regexp.MustCompile(`cannot bind '([^']+)'`)

// occupied records the ports of the proxy's own loopback address at which it could not listen, so that
// listeners of TCP services at them are omitted: an Envoy whose first response has one is never ready.
// It reports whether there are new ones.
func (s *stream) occupied(q *request) bool {
	known := s.view()
	own, err := netip.ParseAddr(known.IPs[0])
	if q.typeURL != xds.TypeListener || err != nil || !own.IsLoopback() {
		return false
	}
	all := slices.Clone(known.Occupied)
	for _, m := range unbound.FindAllStringSubmatch(cmp.Or(q.message, q.rejected), maxListens) {
		at, err := netip.ParseAddrPort(m[1])
		if err == nil && at.Addr() == own && len(all) < maxListens && !slices.Contains(all, uint32(at.Port())) {
			all = append(all, uint32(at.Port()))
		}
	}
	if len(all) == len(known.Occupied) {
		return false
	}
	slices.Sort(all)
	next := *known
	next.Occupied = all
	s.labels.seen.Store(&next)
	s.given.Undecided = true // less is generated for it now
	return true
}
