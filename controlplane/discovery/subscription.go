// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"slices"
	"strings"

	"google.golang.org/grpc/mem"

	"github.com/outrigger-mesh/outrigger/controlplane/generate"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// subscription is what one stream wants of one type, and what it has.
// State-of-the-world and delta streams share it; they differ only in how a
// request is read into it and how an update is encoded.
//
// What a subscriber has is told by few words, because most have what others
// have: of base, a set that all of its kind share, it has everything
// (wildcard), or what its names ask for, but for what over says.
type subscription struct {
	shared  *shared
	typeURL string
	// wildcard asks for every resource of the type; names for some.
	wildcard bool
	names    *nameSet
	base     *xds.Set
	// own is true while base belongs to this subscriber alone, for it came
	// back with it; nothing that is made of it is remembered for others.
	// ownUnion is what keeping made of such a base.
	own      bool
	ownUnion *xds.Set
	// over is, by name, where the subscriber's state is not that of base.
	over map[string]want
	// at is the set that the subscriber was last brought to or compared
	// with; nil when it has to be compared again.
	at *xds.Set
	// asked and named are the names of the last state-of-the-world request:
	// their hash and number.
	asked uint64
	named int
	// ack is what was sent and answered. The proxy refused the last response if it
	// rejected it and still has to be sent something else.
	ack     *acknowledgement
	refused bool
	// last is what the last response told until it is answered, and prior what
	// the subscriber had before it.
	last  update
	prior prior
	// untaken are resources that a wildcard subscriber rejected and of which it
	// has no version.
	untaken map[string]bool
	// owed is true until a new or wider subscription is answered: it gets a
	// response even if there is nothing to tell.
	owed bool
	// absent says what is told of a resource that does not exist.
	absent absence
}

// absence says what a subscriber is told of a resource that does not exist.
type absence int

const (
	// absentTold: that it is gone.
	absentTold absence = iota
	// absentFilled: that there are no endpoints, unless the subscriber has
	// some. Without delta Envoy would wait for them.
	absentFilled
	// absentKept: nothing. The proxy waits, or goes on with what it has, and an
	// answer that holds nothing is not sent.
	absentKept
)

// absenceOf gives what is told of a type.
func absenceOf(typeURL string) absence {
	switch typeURL {
	case xds.TypeSecret, xds.TypeExtension, xds.TypeNameTable, xds.TypeProxyConfig:
		return absentKept
	}
	return absentTold
}

// want is what a subscriber has under one name.
type want struct {
	hash uint64
	has  bool
}

// wantOf gives the state of a subscriber that has a resource; nil is none.
func wantOf(res *xds.Resource) want {
	if res == nil {
		return want{}
	}
	return want{hash: res.Hash, has: true}
}

func newSubscription(typeURL string, s *shared) *subscription {
	return &subscription{shared: s, typeURL: typeURL, absent: absenceOf(typeURL), names: noNames, base: noResources, ack: &acknowledgement{typeURL: typeURL}}
}

// state gives what the subscriber has under one name.
func (s *subscription) state(name string) want {
	if w, ok := s.over[name]; ok {
		return w
	}
	if !s.wildcard && !s.names.contains(name) {
		return want{}
	}
	return wantOf(s.base.Get(name))
}

// byName reports whether a type without names in its first request means
// "nothing" rather than "everything".
func byName(typeURL string) bool {
	switch typeURL {
	case xds.TypeEndpoint, xds.TypeRoute, xds.TypeExtension, xds.TypeSecret:
		return true
	}
	return false
}

// private reports whether nothing of what the subscriber gets may be remembered
// for others: secrets are forgotten when nobody has them any more.
func (s *subscription) private() bool {
	return s.typeURL == xds.TypeSecret || s.typeURL == xds.TypeExtension
}

// wholeState reports whether a response without delta holds all that a
// subscriber by name has of a type: gRPC takes what a response of clusters or
// listeners lacks as gone. Of other types it holds what is new.
func wholeState(typeURL string) bool {
	return typeURL == xds.TypeCluster || typeURL == xds.TypeListener
}

// ofNames gives what a set holds of the names.
func (s *subscription) ofNames(set *xds.Set) []*xds.Resource {
	var out []*xds.Resource
	for _, name := range s.names.list {
		if res := set.Get(name); res != nil {
			out = append(out, res)
		}
	}
	return out
}

// update is the difference between what a subscriber has and what it should
// have. Updates are shared: nobody writes to their lists.
type update struct {
	changed []*xds.Resource
	removed []string
	// kept is what is gone and the subscriber keeps, because it need not, or
	// must not yet, be told.
	kept []string
	// common is true if others are told the same, from the same list.
	common bool
}

func (u update) empty() bool { return len(u.changed) == 0 && len(u.removed) == 0 }

// compare adds what a subscriber lacks under one name; res is nil when there
// is no such resource.
func (u *update) compare(name string, had want, res *xds.Resource, absent absence) {
	switch {
	case res != nil:
		if !had.has || had.hash != res.Hash {
			u.changed = append(u.changed, res)
		}
	case had.has && absent != absentTold:
		u.kept = append(u.kept, name)
	case absent == absentFilled:
		if none := generate.NoEndpoints(name); none != nil {
			u.changed = append(u.changed, none)
		}
	case had.has:
		u.removed = append(u.removed, name)
	}
}

// diff compares without changing the subscription.
func (s *subscription) diff(set *xds.Set) update {
	u := s.compare(set)
	if s.absent == absentKept && len(u.removed) > 0 {
		u.kept, u.removed = slices.Concat(u.kept, u.removed), nil
	}
	return u
}

func (s *subscription) compare(set *xds.Set) update {
	key := updateKey{from: s.base, to: set}
	if !s.wildcard {
		key.names, key.absent = s.names, s.absent
	}
	var u update
	if s.own || s.private() {
		u = key.compare()
	} else {
		u = s.shared.update(key)
	}
	if len(s.over) == 0 {
		return u
	}
	isOver := func(name string) bool { _, ok := s.over[name]; return ok }
	u = update{
		changed: slices.DeleteFunc(slices.Clone(u.changed), func(r *xds.Resource) bool { return isOver(r.Name) }),
		removed: slices.DeleteFunc(slices.Clone(u.removed), isOver),
		kept:    slices.DeleteFunc(slices.Clone(u.kept), isOver),
	}
	for name, w := range s.over {
		if s.wildcard || s.names.contains(name) {
			u.compare(name, w, set.Get(name), s.absent)
		}
	}
	slices.SortFunc(u.changed, byResourceName)
	slices.Sort(u.removed)
	return u
}

func byResourceName(a, b *xds.Resource) int { return strings.Compare(a.Name, b.Name) }

// sent notes that the subscriber got an update, which brings it to set.
func (s *subscription) sent(set *xds.Set, u update) {
	s.refused, s.owed = false, false
	if slices.Contains(xds.Types, s.typeURL) {
		s.last, s.prior = u, prior{base: s.base, over: s.over}
	}
	s.has(set, u)
}

// has notes what the subscriber has, without a response on the way: what set
// holds, but for what u keeps or fills in.
func (s *subscription) has(set *xds.Set, u update) {
	var over map[string]want
	differs := func(name string, w want) {
		if over == nil {
			over = map[string]want{}
		}
		over[name] = w
	}
	for _, name := range u.kept {
		differs(name, s.state(name))
	}
	for _, name := range u.removed {
		if set.Get(name) != nil {
			differs(name, want{})
		}
	}
	if s.absent == absentFilled && !s.wildcard {
		for _, res := range u.changed {
			if set.Get(res.Name) == nil {
				differs(res.Name, wantOf(res))
			}
		}
	}
	s.own, s.ownUnion = s.own && (set == s.base || set == s.ownUnion), nil
	s.over, s.base, s.at = over, set, set
}

// differ notes that the subscriber's state under a name is not that of base.
func (s *subscription) differ(name string, w want) {
	if s.over == nil {
		s.over = map[string]want{}
	}
	s.over[name], s.at = w, nil
}

// forget makes the next diff hold these names again, whatever the subscriber
// has of them.
func (s *subscription) forget(names []string) {
	for _, n := range names {
		if s.state(n).has {
			s.differ(n, want{})
		}
	}
}

// ask adds names. What neither the subscriber nor set has counts as known in a
// version that does not exist, so that the next diff tells, once, that there
// is no such resource.
func (s *subscription) ask(names []string, set *xds.Set) {
	all := s.shared.with(s.names, names)
	if s.hasNothing() && !s.private() {
		// Hundreds begin with the same names, and next everybody asks for this
		// difference. If there are all, there is no more to note.
		u := s.shared.update(updateKey{names: all, from: s.base, to: set, absent: s.absent})
		if len(u.changed) == len(all.list) {
			s.names, s.at = all, nil
			return
		}
	}
	for _, n := range names {
		switch {
		case s.state(n).has:
		case set.Get(n) == nil && s.absent != absentTold: // no word of it
		case set.Get(n) == nil:
			s.differ(n, want{has: true})
		case s.base.Get(n) != nil:
			s.differ(n, want{}) // others have it
		}
	}
	s.names, s.at = all, nil
}

// hasNothing reports whether a subscriber asks for names for the first time, and
// said of none of them that it has it.
func (s *subscription) hasNothing() bool {
	return len(s.names.list) == 0 && len(s.over) == 0 && s.base == noResources && !s.wildcard
}

// hasSome reports whether the subscriber has any resource.
func (s *subscription) hasSome() bool {
	if s.wildcard {
		return len(s.base.Resources) > 0
	}
	return slices.ContainsFunc(s.names.list, func(name string) bool { return s.state(name).has })
}

// drop takes names away.
func (s *subscription) drop(names []string) {
	s.names = s.shared.without(s.names, names)
	for _, n := range names {
		delete(s.over, n)
	}
}

// resume takes what a proxy that comes back says it has.
func (s *subscription) resume(versions map[string]string) {
	if !s.wildcard {
		for name, v := range versions {
			s.differ(name, want{hash: hashOf(v), has: true})
		}
		return
	}
	all := &xds.Set{}
	for name, v := range versions {
		all.Resources = append(all.Resources, &xds.Resource{Name: name, Hash: hashOf(v)})
	}
	slices.SortFunc(all.Resources, byResourceName)
	s.base, s.own = all, true
}

// body gives the encoded resources of an answer that brings the subscriber to
// a set.
func (s *subscription) body(set *xds.Set, resources []*xds.Resource, common, delta bool) mem.BufferSlice {
	if s.private() || s.own && (set == s.base || set == s.ownUnion) {
		return encode(resources, delta)
	}
	return s.shared.body(set, resources, common, delta)
}

// keeping gives the resources of a set and those that the subscriber has and
// that are gone from it.
func (s *subscription) keeping(set *xds.Set) *xds.Set {
	base := s.base
	switch {
	case len(s.over) > 0: // of base it may have rejected some
		base = &xds.Set{Version: base.Version}
		for _, res := range s.base.Resources {
			if s.state(res.Name) == wantOf(res) {
				base.Resources = append(base.Resources, res)
			}
		}
		s.own = true
	case !s.own:
		return s.shared.union(s.base, set)
	}
	all := xds.Union(base, set)
	if all != set {
		s.ownUnion = all
	}
	return all
}

// setNames replaces the names of a state-of-the-world subscription and
// reports whether it wants something that it did not want before.
func (s *subscription) setNames(q *request) (grown bool) {
	if q.asked == s.asked && q.named == s.named {
		return false // the same again, as in most answers
	}
	before := s.names
	s.names, s.asked, s.named = s.shared.nameSet(q.asked, q.names()), q.asked, q.named
	for _, n := range s.names.list {
		if before.contains(n) {
			continue
		}
		grown, s.at = true, nil
		if s.base.Get(n) != nil || s.absent == absentFilled {
			s.differ(n, want{}) // others have it, or it is to be told that nobody has
		}
	}
	for n := range s.over {
		if !s.names.contains(n) {
			delete(s.over, n)
		}
	}
	return grown
}

// version gives what stands in version_info of a response: a subscriber by
// name that comes back with it, and asks for the same names, has what is
// current.
func (s *subscription) version(set *xds.Set) string {
	if s.wildcard {
		return set.Version
	}
	return set.Version + "." + versionOf(s.names.hash)
}
