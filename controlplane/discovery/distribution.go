// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"cmp"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/controlplane/discovery/quarantine"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// configTypes are the types of Envoy's configuration: those of sets, and then
// what listeners ask for.
var configTypes = append(slices.Clone(xds.Types), xds.TypeExtension)

// Distribution is how far the proxies were with the snapshots at one moment. It
// is never written to.
type Distribution struct {
	// proxies are in the order of their ids.
	proxies []ProxyStanding
	// settled are their numbers, in order; rejecting are the proxies that
	// rejected something, by their place in proxies.
	settled   []uint64
	rejecting []int
}

// ProxyStanding is how far one proxy is.
type ProxyStanding struct {
	ID string // as the proxy says
	// Identity is the proven one; empty on a port that asks for none.
	Identity string
	// Settled is the sequence of the newest snapshot of which nothing is on its
	// way to the proxy: it has answered all that differs for it.
	Settled uint64
	// Rejections are what it does not have because it rejected it, at most one
	// for each type.
	Rejections []Rejection
}

// Rejection is what a proxy says of the last responses of a type. The snapshots
// with sequences above After, up to UpTo, brought what it rejected.
type Rejection struct {
	Type        string // short: cds, eds, lds, rds, vhds or ecds
	After, UpTo uint64
	Reason      string // Envoy's words
	// By is the proxy of the same identity that rejected it for others, empty for
	// this one.
	By string
	// Names are the resources, of types that proxies reject one by one.
	Names []string
}

func (r Rejection) covers(sequence uint64) bool { return r.After < sequence && sequence <= r.UpTo }

// Progress is how many of the connected proxies are how far with a snapshot.
// Connected is the sum of the others.
type Progress struct {
	Connected, Acknowledged, Behind, Rejected int
	// Proxy, Identity and Rejection are those of the first proxy that rejected it.
	Proxy, Identity string
	Rejection       Rejection
}

// NewDistribution puts proxies in order. It keeps the slice.
func NewDistribution(proxies []ProxyStanding) *Distribution {
	slices.SortFunc(proxies, func(a, b ProxyStanding) int {
		return cmp.Or(strings.Compare(a.ID, b.ID), cmp.Compare(a.Settled, b.Settled))
	})
	d := &Distribution{proxies: proxies, settled: make([]uint64, len(proxies))}
	for i, p := range proxies {
		d.settled[i] = p.Settled
		if len(p.Rejections) > 0 {
			d.rejecting = append(d.rejecting, i)
		}
	}
	slices.Sort(d.settled)
	return d
}

// Of tells how far the proxies are with the snapshot of a sequence, and with
// that all before it.
func (d *Distribution) Of(sequence uint64) Progress {
	behind, _ := slices.BinarySearch(d.settled, sequence)
	p := Progress{Connected: len(d.proxies), Behind: behind}
	for _, i := range d.rejecting {
		proxy := &d.proxies[i]
		r := slices.IndexFunc(proxy.Rejections, func(r Rejection) bool { return r.covers(sequence) })
		if r < 0 {
			continue
		}
		if p.Rejected++; p.Rejected == 1 {
			p.Proxy, p.Identity, p.Rejection = cmp.Or(proxy.Rejections[r].By, proxy.ID), proxy.Identity, proxy.Rejections[r]
		}
		if proxy.Settled < sequence {
			p.Behind--
		}
	}
	p.Acknowledged = p.Connected - p.Behind - p.Rejected
	return p
}

// Missing lists the proxies that do not have a snapshot: those that have not
// answered yet, and those that rejected it.
func (d *Distribution) Missing(sequence uint64) []ProxyStanding {
	var out []ProxyStanding
	for _, p := range d.proxies {
		if p.Settled < sequence || slices.ContainsFunc(p.Rejections, func(r Rejection) bool { return r.covers(sequence) }) {
			out = append(out, p)
		}
	}
	return out
}

// Distribution tells how far the connected proxies are. Streams that ask for
// nothing that snapshots hold are no proxies here.
func (s *Server) Distribution() *Distribution {
	s.mu.Lock()
	defer s.mu.Unlock()
	proxies := make([]ProxyStanding, 0, len(s.streams))
	for st := range s.streams {
		if p, follows := st.acks.standing(); follows {
			p.ID, p.Identity = st.proxy.ID, st.identity()
			p.Rejections = append(p.Rejections, st.withheld()...)
			proxies = append(proxies, p)
		}
	}
	return NewDistribution(proxies)
}

// noteProgress is called when the stream has sent what it can: it tells those
// who follow the distribution when the proxy has answered all of it.
func (s *stream) noteProgress() {
	if g := s.acks.gives.Load(); s.given.Sets != (quarantine.Sets{}) && (g == nil || *g != s.given.Sets) {
		gives := s.given.Sets
		s.acks.gives.Store(&gives)
	}
	if s.given.Open {
		return
	}
	for _, typeURL := range configTypes {
		if sub := s.subs[typeURL]; sub != nil && (sub.ack.waiting() || sub.owed) {
			return
		}
	}
	s.forgivePlugins()
	// Envoy asks for listeners when its clusters are warm: until then it is
	// not done.
	if s.subs[xds.TypeCluster] != nil && s.subs[xds.TypeListener] == nil && len(s.generate(xds.TypeListener).Resources) > 0 {
		return
	}
	if s.acks.settle(s.mesh.Sequence) {
		s.server.progressed()
	}
}

// forgivePlugins notes that a proxy has rejected nothing any more because what it
// rejected is gone: it receives no response to which it could answer.
func (s *stream) forgivePlugins() {
	sub := s.subs[xds.TypeExtension]
	if sub == nil || !sub.ack.failing() {
		return
	}
	if rejected, _ := s.plugins.Rejected(); len(rejected) > 0 {
		return
	}
	s.acks.answered(sub.ack, "", nil)
	s.server.progressed()
}

// progressed tells that the distribution has changed.
func (s *Server) progressed() {
	if s.onProgress != nil {
		s.onProgress()
	}
}

// withheld returns the rejections that withhold from a proxy what was made for it.
func (s *stream) withheld() []Rejection {
	list, _ := s.member.Withheld()
	out := make([]Rejection, len(list))
	for i, w := range list {
		out[i] = Rejection{Type: shortType(xds.Types[w.Type]), After: w.After, UpTo: w.UpTo, Reason: w.Reason, By: w.By}
	}
	slices.SortFunc(out, func(a, b Rejection) int {
		return cmp.Or(strings.Compare(a.Type, b.Type), cmp.Compare(a.UpTo, b.UpTo), strings.Compare(a.Reason, b.Reason))
	})
	return out
}

// Rejected returns the resources that are withheld because a proxy rejected them.
func (s *Server) Rejected() []quarantine.Resource { return s.quarantine.Rejected() }
