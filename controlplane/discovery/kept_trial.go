// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"bytes"
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"

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
	// taken: everybody gets it.
	taken
)

// trial is what is found out about a resource, whatever the address of the proxy
// in it. The keeper's mutex guards it.
type trial struct {
	state verdict
	// due is when the others wait no longer; when it is taken, when that is
	// forgotten.
	due time.Time
	// example is what is good in its place for the proxy with address.
	example *xds.Resource
	address string
	// claim is who tries it, nil for nobody.
	claim *claim
	// The snapshots with sequences above after, up to upTo, brought it.
	after, upTo uint64
	// What follows is of a rejection: Envoy's words, the proxy's id, proven
	// identity, namespace and stream.
	reason                     string
	proxy, identity, namespace string
	by                         *stream
	since                      time.Time
	against                    []string // ids of those that rejected it, at most two
	// unused is since when it is made for nobody.
	unused time.Time
}

// accused reports whether a proxy says that this resource is bad.
func (t *trial) accused() bool { return t.reason != "" && t.state != taken }

// variant is a resource on trial as some proxies have it.
type variant struct {
	*trial
	// good is what was last good for the scope that met it first, which is what
	// new proxies are given; unknown is that of its hold.
	good    *xds.Resource
	unknown bool
}

// claim are the resources that one proxy tries for the others.
type claim struct {
	by     *stream
	due    time.Time // when suspects are for another to try
	items  map[item]*claimed
	result string
}

type claimed struct {
	trial *trial
	hash  uint64
}

// How the pushes to canaries end, in the metric.
const (
	claimTaken      = "acknowledged"
	claimRejected   = "rejected"
	claimUnanswered = "unanswered"
	claimGone       = "disconnected"
	claimReplaced   = "replaced"
)

// variant gives what is known of a resource, nil for nothing.
func (c *circle) variant(it item, res *xds.Resource, st *stream) *variant {
	key := resourceKey{it, res.Hash}
	if v := c.variants[key]; v != nil || len(c.trials) == 0 {
		return v
	}
	t := c.trials[shapeOf(it, res, addressOf(st))]
	if t == nil {
		return nil
	}
	v := &variant{trial: t, good: t.goodFor(addressOf(st))}
	c.variants[key] = v
	return v
}

// goodFor gives what is good in the place of a resource that differs from proxy
// to proxy in their address alone.
func (t *trial) goodFor(address string) *xds.Resource {
	if t.example == nil || len(address) != len(t.address) { // lengths are part of a message
		return nil
	}
	res := &xds.Resource{
		Name: strings.ReplaceAll(t.example.Name, t.address, address),
		Any:  bytes.ReplaceAll(t.example.Any, []byte(t.address), []byte(address)),
	}
	res.Hash = xxhash.Sum64(res.Any)
	return res
}

// instead notes what is good in the place of a variant.
func (v *variant) instead(good *xds.Resource, unknown bool, st *stream) {
	if v.good == nil {
		v.good, v.unknown = good, unknown
	}
	if v.example == nil && good != nil {
		v.example, v.address = good, addressOf(st)
	}
}

// newTrial enters a resource of which nothing is known.
func (c *circle) newTrial(it item, res *xds.Resource, st *stream) *variant {
	v := &variant{trial: &trial{}}
	c.variants[resourceKey{it, res.Hash}], c.trials[shapeOf(it, res, addressOf(st))] = v, v.trial
	return v
}

// claim has a stream try what nobody tries yet, if it can.
func (c *circle) claim(st *stream) {
	var free []item
	suspects := 0
	holds := st.place.scope.holds
	for it, h := range holds {
		if h.variant == nil || h.variant.state > suspected {
			continue
		}
		switch by := h.variant.claim; {
		case by != nil && by.by != st:
			return // it comes from another, and what it names may, too
		case by == nil && st.takes(it, h):
			free = append(free, it)
		}
	}
	if len(free) == 0 || !st.mayTry() {
		return
	}
	slices.SortFunc(free, compareItems)
	if cl := st.place.claim; cl != nil {
		for _, m := range cl.items {
			if m.trial.state == suspected && m.trial.claim == cl {
				suspects++
			}
		}
	}
	for _, it := range free {
		t := holds[it].variant.trial
		if t.state == suspected {
			if suspects++; suspects > c.atOnce {
				continue
			}
		}
		cl := st.place.claim
		if cl == nil {
			cl = &claim{by: st, items: map[item]*claimed{}}
			st.place.claim = cl
		}
		cl.due = time.Now().Add(c.keeper.patience)
		cl.items[it], t.claim = &claimed{trial: t, hash: holds[it].hash}, cl
		c.arm(cl.due)
		st.place.scope.views = nil
	}
}

// takes reports whether a proxy can try a resource: it asks for it, did not
// reject it before, and is not given it anyhow.
func (s *stream) takes(it item, h *hold) bool {
	sub := s.subs[xds.Types[it.typ]]
	if sub == nil || !sub.wildcard && !sub.names.contains(it.name) || slices.Contains(h.variant.against, s.proxy.ID) {
		return false
	}
	return !s.returned || !s.wholeAnswers(sub) || h.good != nil || !h.unknown
}

func compareItems(a, b item) int {
	return cmp.Or(cmp.Compare(a.typ, b.typ), strings.Compare(a.name, b.name))
}

// mayTry reports whether a stream can be a canary: it stays, owes no answer, and
// did not reject what others take, unless all did.
func (s *stream) mayTry() bool {
	if s.leaving.Load() {
		return false
	}
	for _, typeURL := range xds.Types {
		if sub := s.subs[typeURL]; sub != nil && sub.waiting {
			return false
		}
	}
	if !s.place.odd {
		return true
	}
	for st := range s.place.circle.streams {
		if !st.place.odd {
			return false
		}
	}
	return true
}

// confirm looks which of the resources that a stream tries it has taken, and
// notes what it has in whole. It is called after answers and when there is
// nothing left to send.
func (k *keeper) confirm(st *stream, answered *subscription) {
	k.mu.Lock()
	defer k.mu.Unlock()
	c, sc := st.place.circle, st.place.scope
	if c == nil || sc == nil {
		return
	}
	if i := slices.Index(xds.Types, typeOf(answered)); i >= 0 {
		sc.took(i, answered, len(st.given.spared) > 0)
		c.overrule(st, i, answered.last.changed)
	}
	cl := st.place.claim
	if cl == nil {
		return
	}
	decided := false
	for it, m := range cl.items {
		sub := st.subs[xds.Types[it.typ]]
		if m.trial.claim != cl {
			delete(cl.items, it)
			continue
		}
		if sub == nil || sub.waiting || sub.refused || sub.state(it.name) != (want{hash: m.hash, has: true}) {
			continue
		}
		if m.trial.state == suspected {
			c.atOnce *= 2
		}
		m.trial.take(k.patience)
		delete(cl.items, it)
		decided = true
	}
	if decided {
		c.decided(false)
	}
	c.end(cl, claimTaken)
}

func typeOf(sub *subscription) string {
	if sub == nil {
		return ""
	}
	return sub.typeURL
}

// took notes what a proxy has of a type after it took a response; some of base
// it may have but in words. What it came back with and is gone since is known by
// its hash alone: that is not good for others, who would get nothing in its place.
func (sc *scope) took(i int, sub *subscription, spared bool) {
	switch {
	case spared || sc.acked[i] == sub.base || sub.sequence < sc.ackedAt[i]:
	case i == typeEndpoint || sub.whole(): // endpoints are not on trial
		sc.acked[i], sc.ackedAt[i] = sub.base, sub.sequence
	case sc.ackedPart[i] != sub.base:
		part := &xds.Set{}
		for _, res := range sub.base.Resources {
			if sub.state(res.Name) == wantOf(res) && len(res.Any) > 0 {
				part.Resources = append(part.Resources, res)
			}
		}
		sc.acked[i], sc.ackedPart[i], sc.ackedAt[i] = part, sub.base, sub.sequence
	}
}

// whole reports whether the subscriber has all of base, which is what others have.
func (s *subscription) whole() bool {
	return len(s.over) == 0 && !s.own && (s.wildcard || len(s.names.list) >= len(s.base.Resources) && s.covers(s.base))
}

func (s *subscription) covers(set *xds.Set) bool {
	return !slices.ContainsFunc(set.Resources, func(r *xds.Resource) bool { return !s.names.contains(r.Name) })
}

// overrule takes back rejections of what a proxy has taken: the word of the one
// that rejected it counts for itself alone from then on.
func (c *circle) overrule(st *stream, i int, taken []*xds.Resource) {
	if len(c.variants) == 0 {
		return
	}
	decided := false
	for _, res := range taken {
		v := c.variants[resourceKey{item{i, res.Name}, res.Hash}]
		if v == nil || !v.accused() || v.by == st {
			continue
		}
		if v.by != nil && v.by.place.circle == c {
			v.by.place.odd = true
		}
		c.keeper.log.Info("a resource that a proxy rejected is taken by another", "type_url", xds.Types[i], "resource", res.Name, "proxy", st.proxy.ID, "identity", st.identity())
		v.take(c.keeper.patience)
		decided = true
	}
	if decided {
		c.decided(true)
	}
}

// take notes that a resource is good; that is known for a moment, for those
// that come to it later.
func (t *trial) take(remember time.Duration) {
	*t = trial{state: taken, due: time.Now().Add(remember)}
}

// decided has streams look at what they are given anew: those that wait, or all.
func (c *circle) decided(all bool) {
	c.epoch.Add(1)
	c.arm(time.Now().Add(c.keeper.patience))
	for st := range c.streams {
		if all || st.place.open {
			st.notify()
		}
	}
}

// end counts a claim that is over.
func (c *circle) end(cl *claim, result string) {
	if cl == nil || len(cl.items) > 0 || cl.by.place.claim != cl {
		return
	}
	cl.by.place.claim = nil
	if cl.result == "" {
		cl.result = result
	}
	if m := c.keeper.metrics; m != nil {
		m.canaries.WithLabelValues(cl.result).Inc()
	}
}

// drop ends a claim: others may try what is left of it.
func (c *circle) drop(cl *claim, result string) {
	if cl == nil {
		return
	}
	freed := false
	for it, m := range cl.items {
		if m.trial.claim == cl {
			m.trial.claim, freed = nil, true
		}
		delete(cl.items, it)
	}
	c.end(cl, result)
	if freed {
		c.decided(false)
	}
}

// arm has the timer fire by a time.
func (c *circle) arm(due time.Time) {
	if !c.due.IsZero() && !due.Before(c.due) {
		return
	}
	c.due = due
	if c.timer == nil {
		c.timer = time.AfterFunc(time.Until(due), c.expire)
		return
	}
	c.timer.Reset(time.Until(due))
}

// expire ends what took too long, and forgets what was found good.
func (c *circle) expire() {
	k := c.keeper
	defer func() {
		if cause := recover(); cause != nil { // it must not end the streams
			k.metrics.panics.WithLabelValues("other").Inc()
			k.log.Error("internal error in the quarantine", "reason", describePanic(cause))
		}
	}()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.circles[c.key] != c {
		return // it was removed while the timer fired
	}
	now, next, decided := time.Now(), time.Time{}, false
	later := func(due time.Time) {
		if next.IsZero() || due.Before(next) {
			next = due
		}
	}
	for key, v := range c.variants {
		t := v.trial
		switch {
		case t.state == rejected:
		case t.state == suspected:
			switch {
			case t.claim == nil:
			case now.Before(t.claim.due):
				later(t.claim.due)
			default:
				c.drop(t.claim, claimUnanswered)
			}
		case now.Before(t.due):
			later(t.due)
		case t.state == trying:
			if cl := t.claim; cl != nil {
				cl.result = claimUnanswered
				for it, m := range cl.items {
					if m.trial == t {
						delete(cl.items, it)
					}
				}
				c.end(cl, claimUnanswered)
			}
			t.state, t.claim, decided = taken, nil, true
			delete(c.variants, key)
		default:
			delete(c.variants, key)
		}
	}
	c.clean()
	c.due = time.Time{}
	if decided {
		c.decided(false)
	}
	if !next.IsZero() {
		c.arm(next)
	}
	k.forget(c, now)
}
