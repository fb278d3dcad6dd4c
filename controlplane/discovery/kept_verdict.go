// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/generate"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// nack is what a proxy says of the last response of a type.
type nack struct {
	typ    int
	update update // what the response told
	words  string
	// mixed is true if it held resources, too, that are known to be bad.
	mixed bool
	// rejection says which snapshots brought it.
	rejection Rejection
}

// refuse finds out what a proxy rejected, and has it held back. It reports
// false if the proxy speaks for itself alone.
func (k *keeper) refuse(st *stream, r nack) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := st.place.circle
	if c == nil || st.place.scope == nil {
		return false
	}
	suspects := slices.DeleteFunc(slices.Clone(r.update.changed), func(res *xds.Resource) bool { return c.isTaken(item{r.typ, res.Name}, res) })
	guilty := culprits(suspects, r)
	if guarded := c.release(st, r, suspects); len(guarded) > 0 {
		isGuarded := func(res *xds.Resource) bool { return slices.Contains(guarded, res) }
		named := len(guilty) > 0
		guilty, suspects = slices.DeleteFunc(guilty, isGuarded), slices.DeleteFunc(suspects, isGuarded)
		if named && len(guilty) == 0 {
			suspects = nil // it says itself that the others are good
		}
	}
	if r.mixed && len(guilty) == 0 {
		return true // as expected
	}
	known := func(res *xds.Resource) bool { return c.isHeld(st, item{r.typ, res.Name}, res) }
	if len(guilty) == 0 && slices.ContainsFunc(suspects, known) && !local(r.words) {
		return true // they are looked at already
	}
	if len(suspects) == 0 || local(r.words) || len(guilty) == 0 && r.typ == typeEndpoint {
		st.place.odd = true
		c.drop(st.place.claim, claimRejected)
		return false
	}
	if cl := st.place.claim; cl != nil {
		cl.result = claimRejected
	}
	for _, res := range guilty {
		c.judge(st, r, res, rejected)
	}
	if len(guilty) == 0 {
		c.atOnce = max(1, len(suspects)/2)
		for _, res := range suspects {
			c.judge(st, r, res, suspected)
		}
	}
	c.end(st.place.claim, claimRejected)
	c.decided(true)
	return true
}

// release returns the resources of a rejection that are not withheld from
// others because they change what protects. Those that others wait for are given
// to all.
func (c *circle) release(st *stream, r nack, suspects []*xds.Resource) []*xds.Resource {
	var guarded []*xds.Resource
	for _, res := range suspects {
		it := item{r.typ, res.Name}
		if !protects(res, st.place.scope.lastGood(it, res)) {
			continue
		}
		guarded = append(guarded, res)
		if v := c.variants[resourceKey{it, res.Hash}]; v != nil {
			v.take(c.keeper.patience)
		}
	}
	if len(guarded) > 0 {
		c.keeper.log.Warn("a proxy rejected a change of what protects; others get it all the same", "type_url", xds.Types[r.typ],
			"resource", guarded[0].Name, "count", len(guarded), "proxy", st.proxy.ID, "identity", st.identity(), "reason", clip(r.words))
		c.decided(true)
	}
	return guarded
}

// protects reports whether a resource protects in another way than what is last
// good, nil for nothing that is known.
func protects(res, good *xds.Resource) bool { return generate.Guard(res) != generate.Guard(good) }

// lastGood returns what would be given in the place of a resource.
func (sc *scope) lastGood(it item, res *xds.Resource) *xds.Resource {
	if h := sc.holds[it]; h != nil && h.hash == res.Hash {
		return sc.circle.good(it, h.good)
	}
	if acked := sc.acked[it.typ]; acked != nil {
		return acked.Get(it.name)
	}
	return nil
}

// isHeld reports whether a resource that a stream was given is held back from it
// by now.
func (c *circle) isHeld(st *stream, it item, res *xds.Resource) bool {
	v := c.variants[resourceKey{it, res.Hash}]
	return v != nil && v.state != taken && v.state != trying && (v.claim == nil || v.claim.by != st)
}

// isTaken reports whether a proxy of the circle has taken a resource.
func (c *circle) isTaken(it item, res *xds.Resource) bool {
	if v := c.variants[resourceKey{it, res.Hash}]; v != nil && v.state == taken {
		return true
	}
	for _, sc := range c.scopes {
		if acked := sc.acked[it.typ]; acked != nil && wantOf(acked.Get(it.name)) == wantOf(res) {
			return true
		}
	}
	return false
}

// judge notes what is known of a resource, in all scopes for which it is made.
// What is rejected and has no good version is only suspected until a second
// proxy rejects it: nobody is worse off if another one tries it.
func (c *circle) judge(st *stream, r nack, res *xds.Resource, state verdict) {
	it := item{r.typ, res.Name}
	v := c.variant(it, res, st)
	if v == nil {
		v = c.newTrial(it, res, st)
	}
	for _, sc := range c.scopes {
		if wantOf(sc.made[r.typ].Get(res.Name)) != wantOf(res) || sc.holds[it] != nil && sc.holds[it].hash == res.Hash {
			continue
		}
		h := &hold{variant: v, hash: res.Hash, unknown: sc.acked[r.typ] == nil}
		if !h.unknown {
			h.good = sc.acked[r.typ].Get(res.Name)
		}
		sc.put(it, h)
	}
	if h := st.place.scope.holds[it]; h != nil && h.hash == res.Hash {
		v.instead(h.good, h.unknown, st)
	}
	if cl := st.place.claim; cl != nil && cl.items[it] != nil {
		delete(cl.items, it)
	}
	if v.upTo == 0 {
		v.after, v.upTo = r.rejection.After, r.rejection.UpTo
	}
	v.claim, v.due, v.unused = nil, time.Time{}, time.Time{}
	if v.state != rejected {
		v.state = suspected
	}
	if state != rejected {
		return
	}
	if !slices.Contains(v.against, st.proxy.ID) && len(v.against) < 2 {
		v.against = append(v.against, st.proxy.ID)
	}
	if c.good(it, v.good) != nil || len(v.against) > 1 {
		v.state = rejected
	}
	if v.reason == "" {
		v.reason, v.by, v.since = clip(r.words), st, time.Now()
		v.proxy, v.identity, v.namespace = st.proxy.ID, st.identity(), st.proxy.Namespace
		c.keeper.log.Warn("a resource that a proxy rejected is withheld from the proxies of its identity", "type_url", xds.Types[r.typ],
			"resource", res.Name, "version", versionOf(res.Hash), "proxy", st.proxy.ID, "identity", st.identity(), "reason", v.reason)
	}
}

// culprits are the resources that Envoy's words name, or the only one there is;
// none if that is not clear.
func culprits(suspects []*xds.Resource, r nack) []*xds.Resource {
	if len(suspects) == 1 && !r.mixed {
		return suspects
	}
	// A message that breaks the rules of its fields is shown, its name first.
	for _, res := range suspects {
		if strings.Contains(r.words, "\nname: "+strconv.Quote(res.Name)+"\n") {
			return []*xds.Resource{res}
		}
	}
	_, list, found := strings.Cut(r.words, "Error adding/updating ")
	if found {
		_, list, found = strings.Cut(list, " ") // cluster(s), listener(s)
	}
	if !found {
		return nil
	}
	list = ", " + list
	return slices.DeleteFunc(slices.Clone(suspects), func(res *xds.Resource) bool {
		return !strings.Contains(list, ", "+res.Name+": ") && !strings.Contains(list, "\n"+res.Name+": ")
	})
}

// local reports whether a rejection is about the machine of the proxy: what it
// rejected is no worse for others.
func local(words string) bool {
	for _, part := range []string{
		"cannot bind", "Address already in use", "Permission denied", "Cannot assign requested address",
		// gRPC, in Go, Java and C++, of an application that has no certificates.
		"missing in bootstrap configuration", "not defined in the bootstrap file", "nrecognized certificate provider instance name",
	} {
		if strings.Contains(words, part) {
			return true
		}
	}
	return false
}

// judge takes the answer to the last response of a subscription.
func (s *stream) judge(sub *subscription, q *request) {
	if q.typeURL == xds.TypeExtension {
		s.plugins.Answered(q.rejected, q.message)
	}
	if q.rejected != "" {
		s.rejectedBy(sub, q)
		return
	}
	s.server.kept.confirm(s, sub)
	sub.last, sub.prior = update{}, prior{}
}

// spare takes out of an update what is held back and known to have no good
// version here: the proxy may have one, which it keeps.
func (s *stream) spare(sub *subscription, u update) update {
	i := slices.Index(xds.Types, sub.typeURL)
	if len(s.given.spared) == 0 || i < 0 || s.wholeAnswers(sub) {
		return u
	}
	out := update{removed: u.removed, kept: slices.Clone(u.kept)}
	for _, res := range u.changed {
		if s.given.spared[resourceKey{item{i, res.Name}, res.Hash}] {
			out.kept = append(out.kept, res.Name)
		} else {
			out.changed = append(out.changed, res)
		}
	}
	return out
}

// sparing reports whether some of a type are spared.
func (g *given) sparing(typ int) bool {
	for key := range g.spared {
		if key.typ == typ {
			return true
		}
	}
	return false
}

// wholeAnswers reports whether each response holds the whole state, so that
// nothing can be left out of it that the proxy is to keep: it gets even what it
// rejected, and rejects it again.
func (s *stream) wholeAnswers(sub *subscription) bool {
	return !s.delta && (sub.wildcard || wholeState(sub.typeURL))
}

// rejectedBy takes the rejection of the last response of a subscription.
func (s *stream) rejectedBy(sub *subscription, q *request) {
	last := sub.last
	sub.last = update{}
	r := nack{typ: slices.Index(xds.Types, sub.typeURL), update: last, words: cmp.Or(q.message, q.rejected), rejection: s.standing.rejection(sub.typeURL)}
	if r.typ < 0 {
		return
	}
	r.mixed = s.wholeAnswers(sub) && s.given.sparing(r.typ)
	switch {
	case !s.server.kept.refuse(s, r):
		if sub.typeURL == xds.TypeVirtualHost {
			sub.unsure(last) // Envoy takes all of a response or nothing
		}
		sub.prior = prior{}
		return
	case r.mixed: // what else it held is taken: only what is named is not
		sub.prior = prior{}
		return
	}
	if s.server.kept.give(s) != nil {
		return // the stream ends before the next response
	}
	now := s.given.sets[r.typ]
	sub.refused = false
	for _, res := range last.changed {
		switch {
		case wantOf(now.Get(res.Name)) != wantOf(res): // it is held back
			sub.keep(res.Name, sub.prior.of(res.Name))
		case !s.given.spared[resourceKey{item{r.typ, res.Name}, res.Hash}]:
			sub.differ(res.Name, want{has: true})
		case s.wholeAnswers(sub):
			sub.refused = true // it is told again with the next change
		default:
			sub.keep(res.Name, sub.prior.of(res.Name))
		}
	}
	for _, name := range last.removed {
		sub.differ(name, want{has: true})
	}
	sub.at, sub.prior = nil, prior{}
}

// keep notes that the subscriber rejected a resource and still has what it had
// before, which may be nothing.
func (s *subscription) keep(name string, had want) {
	s.differ(name, had)
	if s.wildcard && !had.has {
		if s.untaken == nil {
			s.untaken = map[string]bool{}
		}
		s.untaken[name] = true
	}
}

// withdraw makes the next difference tell the proxy which of the resources that it
// rejected and never had do not exist any more: its agent waits for them.
func (s *stream) withdraw(sub *subscription, set *xds.Set) {
	i := slices.Index(xds.Types, sub.typeURL)
	if i < 0 {
		return
	}
	for name := range sub.untaken {
		switch {
		case set.Get(name) != nil: // it learns of another version
			delete(sub.untaken, name)
		case s.given.made[i].Get(name) == nil:
			delete(sub.untaken, name)
			sub.differ(name, want{has: true})
		}
	}
}

// unsure notes that it is not known which part of a response that was rejected
// the subscriber has: it is told again together with the next change.
func (s *subscription) unsure(last update) {
	at := s.at
	for _, res := range last.changed {
		s.differ(res.Name, want{has: true})
	}
	for _, name := range last.removed {
		s.differ(name, want{has: true})
	}
	s.at = at
}

// rejection gives what was noted of the last answer to a type.
func (s *standing) rejection(typeURL string) Rejection {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(xds.Types, typeURL); i >= 0 && s.types != nil && s.types[i].rejected != nil {
		return *s.types[i].rejected
	}
	return Rejection{}
}

// prior is what a subscriber had before the last response.
type prior struct {
	base *xds.Set
	over map[string]want
}

func (p prior) of(name string) want {
	if w, ok := p.over[name]; ok || p.base == nil {
		return w
	}
	return wantOf(p.base.Get(name))
}
