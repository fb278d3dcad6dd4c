// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"cmp"
	"slices"

	"github.com/outrigger-mesh/outrigger/controlplane/discovery/quarantine"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// given is what a stream sends in one round. Its loop owns it.
type given struct {
	mesh     *published
	returned bool // as it was when this was decided
	quarantine.Decision
}

// give decides what the stream sends of its snapshot in this round. If that cannot
// be generated, it continues with what it had; a stream that had nothing ends.
func (s *stream) give() error {
	if s.member == nil {
		return nil
	}
	g := &s.given
	if g.mesh == s.mesh && g.returned == s.returned && s.member.Current(&g.Decision) {
		return nil // as most times: what was made for a snapshot does not change
	}
	made, ok := s.server.generateAll(s.mesh.Mesh, s.view())
	switch {
	case !ok && g.mesh == nil:
		return errNotGenerated
	case !ok:
		s.member.FallBehind()
		g.mesh, g.Open, g.Trying = s.mesh, true, false
		return nil
	}
	decision := s.member.Place(made, s.mesh.Sequence, s.returned)
	spared := g.Spared != nil || decision.Spared != nil // other resources are left out of the same set
	for _, typeURL := range xds.Types {
		if sub := s.subs[typeURL]; sub != nil && (spared || len(sub.rejected) > 0) {
			sub.comparedWith = nil
		}
	}
	*g = given{s.mesh, s.returned, decision}
	return nil
}

// Notify implements [quarantine.Stream].
func (s *stream) Notify() { s.notify() }

// Idle implements [quarantine.Stream].
func (s *stream) Idle() bool {
	if s.leaving.Load() {
		return false
	}
	for _, typeURL := range xds.Types {
		if sub := s.subs[typeURL]; sub != nil && sub.ack.waiting() {
			return false
		}
	}
	return true
}

// Requests implements [quarantine.Stream].
func (s *stream) Requests(it quarantine.Item, replaceable bool) bool {
	sub := s.subs[xds.Types[it.Type]]
	if sub == nil || !sub.wildcard && !sub.names.contains(it.Name) {
		return false
	}
	return replaceable || !s.returned || !s.wholeAnswers(sub)
}

// Accepted implements [quarantine.Stream].
func (s *stream) Accepted(k quarantine.Key) bool {
	sub := s.subs[xds.Types[k.Type]]
	return sub != nil && !sub.ack.waiting() && !sub.refused && sub.state(k.Name) == resourceState{hash: k.Hash, has: true}
}

// Whole implements [quarantine.State].
func (s *subscription) Whole() bool {
	return len(s.overrides) == 0 && !s.ownBase && (s.wildcard || len(s.names.list) >= len(s.base.Resources) && s.covers(s.base))
}

// Has implements [quarantine.State].
func (s *subscription) Has(res *xds.Resource) bool { return s.state(res.Name) == stateOf(res) }

func (s *subscription) covers(set *xds.Set) bool {
	return !slices.ContainsFunc(set.Resources, func(r *xds.Resource) bool { return !s.names.contains(r.Name) })
}

// judge takes the answer to the last response of a subscription.
func (s *stream) judge(sub *subscription, q *request) {
	if q.rejected != "" {
		s.rejectedBy(sub, q)
		return
	}
	if i := slices.Index(xds.Types, sub.typeURL); i >= 0 && s.member != nil {
		s.member.Accepted(quarantine.Answer{
			Type: i, Base: sub.base, Sequence: sub.ack.sequence, Changed: sub.last.changed, Spared: len(s.given.Spared) > 0,
		}, sub)
	}
	sub.last, sub.previous = update{}, previous{}
}

// spare takes out of an update what is held back and known to have no good
// version here: the proxy may have one, which it keeps.
func (s *stream) spare(sub *subscription, u update) update {
	i := slices.Index(xds.Types, sub.typeURL)
	if len(s.given.Spared) == 0 || i < 0 || s.wholeAnswers(sub) {
		return u
	}
	out := update{removed: u.removed, kept: slices.Clone(u.kept)}
	for _, res := range u.changed {
		if s.given.Spared[quarantine.Key{Item: quarantine.Item{Type: i, Name: res.Name}, Hash: res.Hash}] {
			out.kept = append(out.kept, res.Name)
		} else {
			out.changed = append(out.changed, res)
		}
	}
	return out
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
	r := quarantine.Rejection{
		Type: slices.Index(xds.Types, sub.typeURL), Changed: last.changed, Reason: cmp.Or(q.message, q.rejected), Mixed: last.mixed,
		After: sub.ack.before, UpTo: sub.ack.sequence,
	}
	if r.Type < 0 || s.member == nil {
		return
	}
	occupied := s.occupied(q)
	switch {
	case !s.member.Rejected(r):
		if occupied || sub.typeURL == xds.TypeVirtualHost { // Envoy takes all virtual hosts of a response or none
			sub.resendLast(last)
		}
		sub.previous = previous{}
		return
	case r.Mixed: // what else it held is taken: only what is named is not
		sub.previous = previous{}
		return
	}
	if s.give() != nil {
		return // the stream ends before the next response
	}
	now := s.given.Sets[r.Type]
	sub.refused = false
	for _, res := range last.changed {
		switch {
		case stateOf(now.Get(res.Name)) != stateOf(res): // it is held back
			sub.keepPrevious(res.Name, sub.previous.of(res.Name))
		case !s.given.Spared[quarantine.Key{Item: quarantine.Item{Type: r.Type, Name: res.Name}, Hash: res.Hash}]:
			sub.override(res.Name, resourceState{has: true})
		case s.wholeAnswers(sub):
			sub.refused = true // it is sent again with the next change
		default:
			sub.keepPrevious(res.Name, sub.previous.of(res.Name))
		}
	}
	for _, name := range last.removed {
		sub.override(name, resourceState{has: true})
	}
	sub.comparedWith, sub.previous = nil, previous{}
}

// keepPrevious records that the subscriber rejected a resource and still has its
// previous version, if any.
func (s *subscription) keepPrevious(name string, had resourceState) {
	s.override(name, had)
	if s.wildcard || had.has {
		if s.rejected == nil {
			s.rejected = map[string]bool{}
		}
		s.rejected[name] = true
	}
}

// withdraw makes the next difference contain the resources whose rejected version does
// not exist any more, even if the proxy has what exists now: Envoy drops the version
// that it warms or whose rejection its agent reports, and acknowledges the response.
func (s *stream) withdraw(sub *subscription, set *xds.Set) {
	i := slices.Index(xds.Types, sub.typeURL)
	if i < 0 {
		return
	}
	for name := range sub.rejected {
		had := sub.state(name)
		switch {
		case stateOf(set.Get(name)) != had: // it learns of another version
			delete(sub.rejected, name)
		case stateOf(s.given.Made[i].Get(name)) == had:
			delete(sub.rejected, name)
			sub.override(name, resourceState{has: true})
		}
	}
}

// resendLast records that it is unknown which part of a rejected response
// the subscriber has: all of it is sent again with the next change.
func (s *subscription) resendLast(last update) {
	at := s.comparedWith
	for _, res := range last.changed {
		s.override(res.Name, resourceState{has: true})
	}
	for _, name := range last.removed {
		s.override(name, resourceState{has: true})
	}
	s.comparedWith = at
}

// previous is what a subscriber had before the last response.
type previous struct {
	base      *xds.Set
	overrides map[string]resourceState
}

func (p previous) of(name string) resourceState {
	if w, ok := p.overrides[name]; ok || p.base == nil {
		return w
	}
	return stateOf(p.base.Get(name))
}
