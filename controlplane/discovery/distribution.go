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

// configTypes are the types of Envoy's configuration: xds.Types, and the extensions
// that listeners refer to.
var configTypes = append(slices.Clone(xds.Types), xds.TypeExtension)

// Distribution is the progress of all proxies with the snapshots at one moment. It is
// immutable.
type Distribution struct {
	// proxies are in the order of their ids.
	proxies []ProxyStanding
	// settled are their Settled sequences, sorted; rejecting are the indexes of
	// the proxies that rejected something.
	settled   []uint64
	rejecting []int
}

// ProxyStanding is the progress of one proxy.
type ProxyStanding struct {
	ID string // as the proxy claims
	// Identity is the authenticated identity, "" on a port without authentication.
	Identity string
	// Settled is the sequence of the newest snapshot whose changes the proxy has
	// all answered.
	Settled uint64
	// Rejections are the changes that it rejected, at most one for each type.
	Rejections []Rejection
}

// Rejection describes why a proxy rejected the last responses of a type. The rejected
// changes came with the snapshots whose sequences are above After, up to UpTo.
type Rejection struct {
	Type        string // short: cds, eds, lds, rds, vhds or ecds
	After, UpTo uint64
	Reason      string // Envoy's message
	// By is the proxy of the same identity that rejected it on behalf of this one,
	// or "".
	By string
	// Names are the rejected resources, for types that proxies reject one by one.
	Names []string
}

func (r Rejection) covers(sequence uint64) bool { return r.After < sequence && sequence <= r.UpTo }

// Progress counts the connected proxies by their progress with a snapshot. Connected
// is the sum of the others.
type Progress struct {
	Connected, Acknowledged, Behind, Rejected int
	// Proxy, Identity and Rejection describe the first proxy that rejected it.
	Proxy, Identity string
	Rejection       Rejection
}

// NewDistribution returns the distribution of proxies. It sorts and retains the slice.
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

// Of returns the progress of the proxies with the snapshot of a sequence and all
// snapshots before it.
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

// Missing returns the proxies that do not have a snapshot: those that have not
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

// Distribution returns the progress of the connected proxies. It leaves out streams
// that subscribe to nothing in a snapshot.
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

// noteProgress is called when the stream has sent what it can. It calls OnProgress
// once the proxy has answered everything.
func (s *stream) noteProgress() {
	if g := s.acks.gives.Load(); s.given.Sets != (quarantine.Sets{}) && (g == nil || *g != s.given.Sets) {
		gives := s.given.Sets
		s.acks.gives.Store(&gives)
	}
	if s.given.Open {
		return
	}
	for _, typeURL := range configTypes {
		if sub := s.subs[typeURL]; sub != nil && (sub.ack.waiting() || sub.answerDue) {
			return
		}
	}
	s.forgivePlugins()
	// Envoy subscribes to listeners once its clusters are warm: until then it
	// has not finished.
	if s.subs[xds.TypeCluster] != nil && s.subs[xds.TypeListener] == nil && len(s.generate(xds.TypeListener).Resources) > 0 {
		return
	}
	if s.acks.settle(s.mesh.Sequence) {
		s.server.progressed()
	}
}

// forgivePlugins clears the rejection of plugins once the rejected ones do not exist
// any more: the proxy receives no response that it could acknowledge.
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

// progressed calls OnProgress.
func (s *Server) progressed() {
	if s.onProgress != nil {
		s.onProgress()
	}
}

// withheld returns the rejections because of which generated resources are withheld
// from a proxy.
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
