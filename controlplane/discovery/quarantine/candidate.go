// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package quarantine

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// verdict is what is known of a resource.
type verdict int

const (
	// trying: one proxy tries it, the others wait until it is due.
	trying verdict = iota
	// suspected: it came with others in a response that was rejected.
	suspected
	// rejected: nobody gets it.
	rejected
	// accepted: everybody gets it.
	accepted
)

// candidate is what is found out about a resource, whatever the address of the proxy
// in it. The Quarantine's mutex guards it.
type candidate struct {
	state verdict
	// due is when the others wait no longer; when it is accepted, when that is
	// forgotten.
	due time.Time
	// example is what is good in its place for the proxy with address.
	example *xds.Resource
	address string
	// attempt is who tries it, nil for nobody.
	attempt *attempt
	// The snapshots with sequences above after, up to upTo, brought it.
	after, upTo uint64
	// What follows is of a rejection: Envoy's words, the proxy's id, proven
	// identity, namespace and stream.
	reason                     string
	proxy, identity, namespace string
	by                         *Member
	since                      time.Time
	against                    []string // ids of those that rejected it, at most two
	// unused is since when it is made for nobody.
	unused time.Time
}

// accused reports whether a proxy says that this resource is bad.
func (t *candidate) accused() bool { return t.reason != "" && t.state != accepted }

// variant is a resource under trial as some proxies have it.
type variant struct {
	*candidate
	// good is what was last good for the cohort that met it first, which is what
	// new proxies are given; unknown is that of its override.
	good    *xds.Resource
	unknown bool
}

// attempt are the resources that one proxy tries for the others.
type attempt struct {
	by     *Member
	due    time.Time // when suspects are for another to try
	items  map[Item]*attempted
	result string
}

type attempted struct {
	candidate *candidate
	hash      uint64
}

// How the pushes to canaries end, in the metric.
const (
	attemptAccepted   = "acknowledged"
	attemptRejected   = "rejected"
	attemptUnanswered = "unanswered"
	attemptGone       = "disconnected"
	attemptReplaced   = "replaced"
)

// variant returns what is known of a resource, nil for nothing.
func (g *group) variant(it Item, res *xds.Resource, m *Member) *variant {
	key := Key{it, res.Hash}
	if v := g.variants[key]; v != nil || len(g.candidates) == 0 {
		return v
	}
	t := g.candidates[shapeOf(it, res, m.address)]
	if t == nil {
		return nil
	}
	v := &variant{candidate: t, good: t.goodFor(m.address)}
	g.variants[key] = v
	return v
}

// goodFor returns what is good in the place of a resource that differs from proxy
// to proxy in their address alone.
func (t *candidate) goodFor(address string) *xds.Resource {
	return withAddress(t.example, t.address, address)
}

// instead notes what is good in the place of a variant.
func (v *variant) instead(good *xds.Resource, unknown bool, m *Member) {
	if v.good == nil {
		v.good, v.unknown = good, unknown
	}
	if v.example == nil && good != nil {
		v.example, v.address = good, m.address
	}
}

// newCandidate enters a resource of which nothing is known.
func (g *group) newCandidate(it Item, res *xds.Resource, m *Member) *variant {
	v := &variant{candidate: &candidate{}}
	g.variants[Key{it, res.Hash}], g.candidates[shapeOf(it, res, m.address)] = v, v.candidate
	return v
}

// assign has a proxy try what nobody tries yet, if it can.
func (g *group) assign(m *Member) {
	var free []Item
	suspects := 0
	overrides := m.cohort.overrides
	for it, h := range overrides {
		if h.variant == nil || h.variant.state > suspected {
			continue
		}
		switch by := h.variant.attempt; {
		case by != nil && by.by != m:
			return // it comes from another, and what it names may, too
		case by == nil && m.canTry(it, h):
			free = append(free, it)
		}
	}
	if len(free) == 0 || !m.mayTry() {
		return
	}
	slices.SortFunc(free, compareItems)
	if cl := m.attempt; cl != nil {
		for _, a := range cl.items {
			if a.candidate.state == suspected && a.candidate.attempt == cl {
				suspects++
			}
		}
	}
	for _, it := range free {
		t := overrides[it].variant.candidate
		if t.state == suspected {
			if suspects++; suspects > g.atOnce {
				continue
			}
		}
		cl := m.attempt
		if cl == nil {
			cl = &attempt{by: m, items: map[Item]*attempted{}}
			m.attempt = cl
		}
		cl.due = time.Now().Add(g.q.cfg.Patience())
		cl.items[it], t.attempt = &attempted{candidate: t, hash: overrides[it].hash}, cl
		g.arm(cl.due)
		m.cohort.views = nil
	}
}

// canTry reports whether a proxy can try a resource: it requests it, did not reject
// it before, and does not receive it in any case.
func (m *Member) canTry(it Item, h *override) bool {
	return !slices.Contains(h.variant.against, m.proxy.ID) && m.stream.Requests(it, h.good != nil || !h.unknown)
}

func compareItems(a, b Item) int {
	return cmp.Or(cmp.Compare(a.Type, b.Type), strings.Compare(a.Name, b.Name))
}

// mayTry reports whether a proxy can be a canary: it stays, owes no answer, and did
// not reject what others accept, unless all did.
func (m *Member) mayTry() bool {
	if !m.stream.Idle() {
		return false
	}
	if !m.outlier {
		return true
	}
	for other := range m.group.members {
		if !other.outlier {
			return false
		}
	}
	return true
}

// Answer is an accepted response.
type Answer struct {
	Type int // index of xds.Types
	// Base is the set to which the response brought the proxy, of the snapshot with
	// Sequence.
	Base     *xds.Set
	Sequence uint64
	// Changed are the resources of the response.
	Changed []*xds.Resource
	// Spared is true if the proxy was spared resources in this round.
	Spared bool
}

// State says what a proxy has of the base of an answer.
type State interface {
	// Whole reports whether it has all of it, which is what others have.
	Whole() bool
	// Has reports whether it has a resource.
	Has(*xds.Resource) bool
}

// Accepted takes an accepted response, and then does what Confirm does.
func (m *Member) Accepted(a Answer, s State) {
	m.q.mu.Lock()
	defer m.q.mu.Unlock()
	if m.cohort == nil {
		return
	}
	if m.cohort.record(a, s, m) {
		m.group.decided(true)
	}
	m.group.overrule(m, a.Type, a.Changed)
	m.confirm()
}

// Confirm looks which of its candidates the proxy has accepted. It is called when
// there is nothing left to send.
func (m *Member) Confirm() {
	m.q.mu.Lock()
	defer m.q.mu.Unlock()
	if m.cohort != nil {
		m.confirm()
	}
}

// confirm is Confirm for a caller that holds mu.
func (m *Member) confirm() {
	q, g := m.q, m.group
	cl := m.attempt
	if cl == nil {
		return
	}
	decided := false
	for it, a := range cl.items {
		if a.candidate.attempt != cl {
			delete(cl.items, it)
			continue
		}
		if !m.stream.Accepted(Key{it, a.hash}) {
			continue
		}
		if a.candidate.state == suspected {
			g.atOnce *= 2
		}
		a.candidate.take(q.cfg.Patience())
		delete(cl.items, it)
		decided = true
	}
	if decided {
		g.decided(false)
	}
	g.end(cl, attemptAccepted)
}

// record records what a proxy has of a type after an accepted response. What it
// had before its stream and is gone since is known by its hash alone: that cannot be
// sent to others. It reports whether that changes what proxies receive.
func (sc *cohort) record(a Answer, s State, m *Member) bool {
	i := a.Type
	switch {
	case a.Spared:
		return false
	case a.Sequence < sc.ackedAt[i] || sc.acked[i] == a.Base:
	case i == typeEndpoint || s.Whole(): // endpoints are no candidates
		sc.acked[i], sc.ackedAt[i] = a.Base, a.Sequence
	case sc.ackedPart[i] != a.Base:
		part := &xds.Set{}
		for _, res := range a.Base.Resources {
			if s.Has(res) && len(res.Any) > 0 {
				part.Resources = append(part.Resources, res)
			}
		}
		sc.acked[i], sc.ackedPart[i], sc.ackedAt[i] = part, a.Base, a.Sequence
	}
	return sc.fill(a, s.Has, m)
}

// overrule takes back rejections of what a proxy has accepted: the word of the one
// that rejected it counts for itself alone from then on.
func (g *group) overrule(m *Member, i int, accepted []*xds.Resource) {
	if len(g.variants) == 0 {
		return
	}
	decided := false
	for _, res := range accepted {
		v := g.variants[Key{Item{i, res.Name}, res.Hash}]
		if v == nil || !v.accused() || v.by == m {
			continue
		}
		if v.by != nil && v.by.group == g {
			v.by.outlier = true
		}
		g.q.log.Info("a resource that a proxy rejected is accepted by another", "type_url", xds.Types[i], "resource", res.Name, "proxy", m.proxy.ID, "identity", m.identity)
		v.take(g.q.cfg.Patience())
		decided = true
	}
	if decided {
		g.decided(true)
	}
}

// take notes that a resource is good; that is known for a moment, for those
// that come to it later.
func (t *candidate) take(remember time.Duration) {
	*t = candidate{state: accepted, due: time.Now().Add(remember)}
}

// decided has streams look at what they are given anew: those that wait, or all.
func (g *group) decided(all bool) {
	g.epoch.Add(1)
	g.arm(time.Now().Add(g.q.cfg.Patience()))
	for m := range g.members {
		if all || m.open {
			m.stream.Notify()
		}
	}
}

// end counts an attempt that is over.
func (g *group) end(cl *attempt, result string) {
	if cl == nil || len(cl.items) > 0 || cl.by.attempt != cl {
		return
	}
	cl.by.attempt = nil
	if cl.result == "" {
		cl.result = result
	}
	g.q.canaries.WithLabelValues(cl.result).Inc()
}

// drop ends an attempt: others may try what is left of it.
func (g *group) drop(cl *attempt, result string) {
	if cl == nil {
		return
	}
	freed := false
	for it, a := range cl.items {
		if a.candidate.attempt == cl {
			a.candidate.attempt, freed = nil, true
		}
		delete(cl.items, it)
	}
	g.end(cl, result)
	if freed {
		g.decided(false)
	}
}

// arm has the timer fire by a time.
func (g *group) arm(due time.Time) {
	if !g.due.IsZero() && !due.Before(g.due) {
		return
	}
	g.due = due
	if g.timer == nil {
		g.timer = time.AfterFunc(time.Until(due), g.expire)
		return
	}
	g.timer.Reset(time.Until(due))
}

// expire ends what took too long, and forgets what was found good.
func (g *group) expire() {
	q := g.q
	defer func() {
		if cause := recover(); cause != nil { // it must not end the streams
			_ = q.cfg.Recovered(cause)
		}
	}()
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.groups[g.key] != g {
		return // it was removed while the timer fired
	}
	now, next, decided := time.Now(), time.Time{}, false
	later := func(due time.Time) {
		if next.IsZero() || due.Before(next) {
			next = due
		}
	}
	for key, v := range g.variants {
		t := v.candidate
		switch {
		case t.state == rejected:
		case t.state == suspected:
			switch {
			case t.attempt == nil:
			case now.Before(t.attempt.due):
				later(t.attempt.due)
			default:
				g.drop(t.attempt, attemptUnanswered)
			}
		case now.Before(t.due):
			later(t.due)
		case t.state == trying:
			if cl := t.attempt; cl != nil {
				cl.result = attemptUnanswered
				for it, a := range cl.items {
					if a.candidate == t {
						delete(cl.items, it)
					}
				}
				g.end(cl, attemptUnanswered)
			}
			t.state, t.attempt, decided = accepted, nil, true
			delete(g.variants, key)
		default:
			delete(g.variants, key)
		}
	}
	g.clean()
	g.due = time.Time{}
	if decided {
		g.decided(false)
	}
	if !next.IsZero() {
		g.arm(next)
	}
	q.forget(g, now)
}
