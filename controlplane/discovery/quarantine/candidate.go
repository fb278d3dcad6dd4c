// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package quarantine

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// verdict is the state of a resource.
type verdict int

const (
	// trying: one proxy tries the resource; the others wait until it is due.
	trying verdict = iota
	// suspected: it was in a rejected response with other resources.
	suspected
	// rejected: it is sent to no proxy.
	rejected
	// accepted: it is sent to all proxies.
	accepted
)

// candidate is the state of a resource, independent of the proxy's address in it. The Quarantine's
// mutex guards it.
type candidate struct {
	state verdict
	// due is the time until which other proxies wait. In the state accepted, it is the time until
	// which the state is remembered.
	due time.Time
	// example is the last good version for the proxy with the given address.
	example *xds.Resource
	address string
	// canary is the proxy that tries the resource for the others; nil if none does.
	canary *Member
	// The change came with a snapshot whose sequence is above after and at most upTo.
	after, upTo uint64
	// The remaining fields describe a rejection: Envoy's message, and the id, proven identity,
	// namespace and stream of the proxy.
	reason                     string
	proxy, identity, namespace string
	by                         *Member
	since                      time.Time
	against                    []string // ids of proxies that rejected it, at most two
	// unused is the time since which no proxy uses the resource; zero if one does.
	unused time.Time
}

// accused reports whether a proxy has rejected this resource explicitly.
func (t *candidate) accused() bool { return t.reason != "" && t.state != accepted }

// variant is a candidate with the address of specific proxies.
type variant struct {
	*candidate
	hash uint64 // of the version
	// good is the last good version of the first cohort with this variant. New proxies receive it.
	// unknown is that of the cohort's override.
	good    *xds.Resource
	unknown bool
}

// Results of the pushes to canaries, as values of the metric's label.
const (
	attemptAccepted   = "acknowledged"
	attemptRejected   = "rejected"
	attemptUnanswered = "unanswered"
	attemptGone       = "disconnected"
	attemptReplaced   = "replaced"
)

// variant returns the variant of a resource, or nil if there is none.
func (g *group) variant(it Item, res *xds.Resource, m *Member) *variant {
	key := Key{it, res.Hash}
	if v := g.variants[key]; v != nil || len(g.candidates) == 0 {
		return v
	}
	t := g.candidates[shapeOf(it, res, m.address)]
	if t == nil {
		return nil
	}
	v := &variant{candidate: t, hash: res.Hash, good: t.goodFor(m.address)}
	g.variants[key] = v
	return v
}

// goodFor returns the last good version with another proxy's address.
func (t *candidate) goodFor(address string) *xds.Resource {
	return withAddress(t.example, t.address, address)
}

// instead sets the last good version of a variant, unless it is set.
func (v *variant) instead(good *xds.Resource, unknown bool, m *Member) {
	if v.good == nil {
		v.good, v.unknown = good, unknown
	}
	if v.example == nil && good != nil {
		v.example, v.address = good, m.address
	}
}

// newCandidate adds a candidate for a resource.
func (g *group) newCandidate(it Item, res *xds.Resource, m *Member) *variant {
	v := &variant{candidate: &candidate{}, hash: res.Hash}
	g.variants[Key{it, res.Hash}], g.candidates[shapeOf(it, res, m.address)] = v, v.candidate
	return v
}

// assign makes a proxy try the candidates that no proxy tries yet, if it can.
func (g *group) assign(m *Member) {
	var free []Item
	suspects := 0
	overrides := m.cohort.overrides
	for it, h := range overrides {
		if h.variant == nil || h.variant.state > suspected {
			continue
		}
		switch by := h.variant.canary; {
		case by != nil && by != m:
			return // another proxy tries candidates of this cohort, which may depend on each other
		case by == nil && m.canTry(it, h):
			free = append(free, it)
		}
	}
	if len(free) == 0 || !m.mayTry() {
		return
	}
	slices.SortFunc(free, compareItems)
	for _, v := range m.tries {
		if v.state == suspected && v.canary == m {
			suspects++
		}
	}
	for _, it := range free {
		v := overrides[it].variant
		if v.state == suspected {
			if suspects++; suspects > g.atOnce {
				continue
			}
		}
		if m.tries == nil {
			m.tries, m.result = map[Item]*variant{}, ""
		}
		m.tries[it], v.canary = v, m
		m.due = time.Now().Add(g.q.cfg.Patience())
		g.arm(m.due)
		m.cohort.views = nil
	}
}

// canTry reports whether a proxy can try a resource: it requests the resource, has not rejected
// it, and does not receive it anyway.
func (m *Member) canTry(it Item, h *override) bool {
	return !slices.Contains(h.variant.against, m.proxy.ID) && m.stream.Requests(it, h.good != nil || !h.unknown)
}

func compareItems(a, b Item) int {
	return cmp.Or(cmp.Compare(a.Type, b.Type), strings.Compare(a.Name, b.Name))
}

// mayTry reports whether a proxy can be a canary: it stays connected, owes no answer, and is no
// outlier, unless all members are.
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
	// Base is the set that the response completed, from the snapshot with Sequence.
	Base     *xds.Set
	Sequence uint64
	// Changed are the resources in the response.
	Changed []*xds.Resource
	// Spared is true if the proxy was spared resources in this round.
	Spared bool
}

// State describes what a proxy has of the base of an answer.
type State interface {
	// Whole reports whether the proxy has the whole set, in the versions that other proxies have.
	Whole() bool
	// Has reports whether the proxy has a resource.
	Has(*xds.Resource) bool
}

// Accepted records an accepted response, and then calls Confirm.
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

// Confirm records which of its candidates the proxy has accepted. It must be called when nothing
// is left to send.
func (m *Member) Confirm() {
	m.q.mu.Lock()
	defer m.q.mu.Unlock()
	if m.cohort != nil {
		m.confirm()
	}
}

// confirm is Confirm for callers that hold mu.
func (m *Member) confirm() {
	q, g := m.q, m.group
	decided := false
	for it, v := range m.tries {
		if v.canary != m {
			delete(m.tries, it)
			continue
		}
		if !m.stream.Accepted(Key{it, v.hash}) {
			continue
		}
		if v.state == suspected {
			g.atOnce *= 2
		}
		v.take(q.cfg.Patience())
		delete(m.tries, it)
		decided = true
	}
	if decided {
		g.decided(false)
	}
	m.end(attemptAccepted)
}

// record records what a proxy has of a type after an accepted response. Resources from before its
// stream that are no longer made are known only by their hash, and cannot be sent to others. It
// reports whether the record changes what proxies receive.
func (sc *cohort) record(a Answer, s State, m *Member) bool {
	i := a.Type
	switch {
	case a.Spared:
		return false
	case a.Sequence < sc.ackedAt[i] || sc.acked[i] == a.Base:
	case i == typeEndpoint || s.Whole(): // endpoints are never candidates
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

// overrule withdraws rejections of resources that a proxy has accepted. From then on, the
// rejection applies only to the proxy that rejected them, which becomes an outlier.
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

// take sets the state to accepted and remembers it for a while, for proxies that receive the
// resource later.
func (t *candidate) take(remember time.Duration) {
	*t = candidate{state: accepted, due: time.Now().Add(remember)}
}

// decided makes streams call Place again: those that wait, or all.
func (g *group) decided(all bool) {
	g.epoch.Add(1)
	g.arm(time.Now().Add(g.q.cfg.Patience()))
	for m := range g.members {
		if all || m.open {
			m.stream.Notify()
		}
	}
}

// end counts an attempt that has nothing left to try.
func (m *Member) end(result string) {
	if m.tries == nil || len(m.tries) > 0 {
		return
	}
	m.tries = nil
	m.q.canaries.WithLabelValues(cmp.Or(m.result, result)).Inc()
}

// drop ends the attempt of a proxy. Other members may try what it leaves.
func (m *Member) drop(result string) {
	freed := false
	for it, v := range m.tries {
		if v.canary == m {
			v.canary, freed = nil, true
		}
		delete(m.tries, it)
	}
	m.end(result)
	if freed {
		m.group.decided(false)
	}
}

// arm makes the timer fire no later than the given time.
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

// expire ends attempts that took too long, and forgets accepted resources.
func (g *group) expire() {
	q := g.q
	defer func() {
		if cause := recover(); cause != nil { // a panic must not end the streams
			_ = q.cfg.Recovered(cause)
		}
	}()
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.groups[g.key] != g {
		return // the group was removed while the timer fired
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
			case t.canary == nil:
			case now.Before(t.canary.due):
				later(t.canary.due)
			default:
				t.canary.drop(attemptUnanswered)
			}
		case now.Before(t.due):
			later(t.due)
		case t.state == trying:
			if m := t.canary; m != nil {
				m.result = attemptUnanswered
				maps.DeleteFunc(m.tries, func(_ Item, v *variant) bool { return v.candidate == t })
				m.end(attemptUnanswered)
			}
			t.state, t.canary, decided = accepted, nil, true
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
