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

// subscription is what one stream asked for of one type, and what it has.
// State-of-the-world and delta streams share it; they differ only in how requests are
// decoded and updates are encoded.
//
// The state of a subscriber takes little memory, because most subscribers have the
// same resources: it has all resources of base, a set shared by streams (wildcard),
// or those of its names, except for the names in overrides.
type subscription struct {
	shared  *shared
	typeURL string
	// wildcard subscribes to every resource of the type, names to some.
	wildcard bool
	names    *nameSet
	base     *xds.Set
	// ownBase is true while base belongs to this subscriber alone, because it
	// reconnected with it: results computed from it are not shared. ownUnion is
	// the result of withoutRemovals for such a base.
	ownBase  bool
	ownUnion *xds.Set
	// overrides are, by name, the states that differ from base.
	overrides map[string]resourceState
	// comparedWith is the set that the subscriber was last updated to or compared
	// with; nil if it has to be compared again.
	comparedWith *xds.Set
	// asked and named are the hash and the number of the names in the last
	// state-of-the-world request.
	asked uint64
	named int
	// ack records what was sent and answered. refused is true while the proxy has
	// rejected the last response and no other one was sent.
	ack     *acknowledgement
	refused bool
	// last is the update of the last response until it is answered, and previous
	// what the subscriber had before it.
	last     update
	previous previous
	// rejected are the names of resources that the subscriber rejected and of which it
	// keeps what it had; see withdraw.
	rejected map[string]bool
	// answerDue is true until a new or extended subscription is answered: it gets
	// a response even if nothing differs.
	answerDue bool
	// absent is the policy for names that do not exist.
	absent absencePolicy
}

// absencePolicy says how a subscriber learns that a resource does not exist.
type absencePolicy int

const (
	// removeAbsent sends a removal.
	removeAbsent absencePolicy = iota
	// emptyAbsent sends a resource without endpoints, unless the subscriber has
	// some. Without delta Envoy would wait for them.
	emptyAbsent
	// ignoreAbsent sends nothing. The proxy waits, or continues with the version
	// it has, and empty responses are omitted.
	ignoreAbsent
)

// absencePolicyOf returns the policy of a type.
func absencePolicyOf(typeURL string) absencePolicy {
	switch typeURL {
	case xds.TypeSecret, xds.TypeExtension, xds.TypeNameTable, xds.TypeProxyConfig, xds.TypeBootstrap:
		return ignoreAbsent
	}
	return removeAbsent
}

// resourceState is what a subscriber has under one name.
type resourceState struct {
	hash uint64
	has  bool
	// due is sent if the resource is gone: the subscriber, which lacks it, waits for an
	// answer. It is nil for most.
	due *xds.Resource
}

// stateOf returns the state of a subscriber that has a resource; nil means none.
func stateOf(res *xds.Resource) resourceState {
	if res == nil {
		return resourceState{}
	}
	return resourceState{hash: res.Hash, has: true}
}

func newSubscription(typeURL string, s *shared) *subscription {
	return &subscription{shared: s, typeURL: typeURL, absent: absencePolicyOf(typeURL), names: noNames, base: noResources, ack: &acknowledgement{typeURL: typeURL}}
}

// state returns what the subscriber has under one name.
func (s *subscription) state(name string) resourceState {
	if w, ok := s.overrides[name]; ok {
		return w
	}
	if !s.wildcard && !s.names.contains(name) {
		return resourceState{}
	}
	return stateOf(s.base.Get(name))
}

// byName reports whether a first request without names subscribes to nothing of a
// type, rather than to everything.
func byName(typeURL string) bool {
	switch typeURL {
	case xds.TypeEndpoint, xds.TypeRoute, xds.TypeExtension, xds.TypeSecret, xds.TypeBootstrap:
		return true
	}
	return false
}

// private reports whether the subscriber's resources must not be cached for others:
// secrets are dropped once no stream has them.
func (s *subscription) private() bool {
	return s.typeURL == xds.TypeSecret || s.typeURL == xds.TypeExtension
}

// wholeState reports whether a response without delta must contain all resources of
// a subscriber by name: gRPC removes clusters and listeners that a response lacks.
// Responses of other types contain only what is new.
func wholeState(typeURL string) bool {
	return typeURL == xds.TypeCluster || typeURL == xds.TypeListener
}

// ofNames returns the resources of a set that the subscriber named.
func (s *subscription) ofNames(set *xds.Set) []*xds.Resource {
	var out []*xds.Resource
	for _, name := range s.names.list {
		if res := set.Get(name); res != nil {
			out = append(out, res)
		}
	}
	return out
}

// update is the difference between what a subscriber has and what it should have.
// Updates are shared and immutable.
type update struct {
	changed []*xds.Resource
	removed []string
	// kept are names of resources that do not exist any more, whose removal is not
	// sent, or not yet.
	kept []string
	// common is true if other subscribers receive the same list.
	common bool
	// mixed is true if the response also contains resources that are known to be bad.
	mixed bool
}

func (u update) empty() bool { return len(u.changed) == 0 && len(u.removed) == 0 }

// compare adds the difference under one name; res is nil if the resource does not
// exist.
func (u *update) compare(name string, had resourceState, res *xds.Resource, absent absencePolicy) {
	switch {
	case res != nil:
		if !had.has || had.hash != res.Hash {
			u.changed = append(u.changed, res)
		}
	case had.due != nil:
		u.changed = append(u.changed, had.due)
	case had.has && absent != removeAbsent:
		u.kept = append(u.kept, name)
	case absent == emptyAbsent:
		if none := generate.NoEndpoints(name); none != nil {
			u.changed = append(u.changed, none)
		}
	case had.has:
		u.removed = append(u.removed, name)
	}
}

// diff returns the difference to a set. It does not change the subscription.
func (s *subscription) diff(set *xds.Set) update {
	u := s.compare(set)
	if s.absent == ignoreAbsent && len(u.removed) > 0 {
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
	if s.ownBase || s.private() {
		u = key.compare()
	} else {
		u = s.shared.update(key)
	}
	if len(s.overrides) == 0 {
		return u
	}
	isOver := func(name string) bool { _, ok := s.overrides[name]; return ok }
	u = update{
		changed: slices.DeleteFunc(slices.Clone(u.changed), func(r *xds.Resource) bool { return isOver(r.Name) }),
		removed: slices.DeleteFunc(slices.Clone(u.removed), isOver),
		kept:    slices.DeleteFunc(slices.Clone(u.kept), isOver),
	}
	for name, w := range s.overrides {
		if s.wildcard || s.names.contains(name) {
			u.compare(name, w, set.Get(name), s.absent)
		}
	}
	slices.SortFunc(u.changed, byResourceName)
	slices.Sort(u.removed)
	return u
}

func byResourceName(a, b *xds.Resource) int { return strings.Compare(a.Name, b.Name) }

// sent records that the subscriber was sent an update, which brings it to set.
func (s *subscription) sent(set *xds.Set, u update) {
	s.refused, s.answerDue = false, false
	if slices.Contains(xds.Types, s.typeURL) {
		s.last, s.previous = u, previous{base: s.base, overrides: s.overrides}
	}
	s.has(set, u)
}

// has records that the subscriber has the resources of set, except for what u keeps
// or fills in. What it fills in because it was due is compared, and removed, again.
func (s *subscription) has(set *xds.Set, u update) {
	comparedWith := set
	var over map[string]resourceState
	differs := func(name string, w resourceState) {
		if over == nil {
			over = map[string]resourceState{}
		}
		over[name] = w
	}
	for _, name := range u.kept {
		differs(name, s.state(name))
	}
	for _, name := range u.removed {
		if set.Get(name) != nil {
			differs(name, resourceState{})
		}
	}
	if !s.wildcard && (s.absent == emptyAbsent || len(s.overrides) > 0) {
		for _, res := range u.changed {
			if set.Get(res.Name) == nil {
				differs(res.Name, stateOf(res))
				if s.absent == removeAbsent {
					comparedWith = nil
				}
			}
		}
	}
	s.ownBase, s.ownUnion = s.ownBase && (set == s.base || set == s.ownUnion), nil
	s.overrides, s.base, s.comparedWith = over, set, comparedWith
}

// override records that the subscriber's state under a name is not that of base.
func (s *subscription) override(name string, w resourceState) {
	if s.overrides == nil {
		s.overrides = map[string]resourceState{}
	}
	s.overrides[name], s.comparedWith = w, nil
}

// resend makes the next diff contain these names, whatever version the subscriber
// has.
func (s *subscription) resend(names []string) {
	for _, n := range names {
		if s.state(n).has {
			s.override(n, resourceState{})
		}
	}
}

// addNames extends the subscription. A name that neither the subscriber nor set has
// is recorded with a version that does not exist, so that the next diff contains its
// removal once.
func (s *subscription) addNames(names []string, set *xds.Set) {
	all := s.shared.with(s.names, names)
	if s.hasNothing() && !s.private() {
		// Hundreds of streams start with the same names and need the same
		// difference. If every name exists, there is nothing to override.
		u := s.shared.update(updateKey{names: all, from: s.base, to: set, absent: s.absent})
		if len(u.changed) == len(all.list) {
			s.names, s.comparedWith = all, nil
			return
		}
	}
	for _, n := range names {
		switch {
		case s.state(n).has:
		case set.Get(n) == nil && s.absent != removeAbsent: // its absence is not sent
		case set.Get(n) == nil:
			s.override(n, resourceState{has: true})
		case s.base.Get(n) != nil:
			s.override(n, resourceState{}) // in base, but new to this subscriber
		}
	}
	s.names, s.comparedWith = all, nil
}

// hasNothing reports whether the subscriber asks for names for the first time and
// claimed to have none of them.
func (s *subscription) hasNothing() bool {
	return len(s.names.list) == 0 && len(s.overrides) == 0 && s.base == noResources && !s.wildcard
}

// hasSome reports whether the subscriber has any resource.
func (s *subscription) hasSome() bool {
	if s.wildcard {
		return len(s.base.Resources) > 0
	}
	return slices.ContainsFunc(s.names.list, func(name string) bool { return s.state(name).has })
}

// removeNames removes names from the subscription.
func (s *subscription) removeNames(names []string) {
	s.names = s.shared.without(s.names, names)
	for _, n := range names {
		delete(s.overrides, n)
	}
}

// resume records the versions that a reconnecting proxy claims to have.
func (s *subscription) resume(versions map[string]string) {
	if !s.wildcard {
		for name, v := range versions {
			s.override(name, resourceState{hash: hashOf(v), has: true})
		}
		return
	}
	if len(versions) == 0 {
		return // it has nothing, as all others that start
	}
	all := &xds.Set{}
	for name, v := range versions {
		all.Resources = append(all.Resources, &xds.Resource{Name: name, Hash: hashOf(v)})
	}
	slices.SortFunc(all.Resources, byResourceName)
	s.base, s.ownBase = all, true
}

// body returns the encoded resources of a response that brings the subscriber to set.
func (s *subscription) body(set *xds.Set, resources []*xds.Resource, common, delta bool) mem.BufferSlice {
	if s.private() || s.ownBase && (set == s.base || set == s.ownUnion) {
		return encode(resources, delta)
	}
	return s.shared.body(set, resources, common, delta)
}

// withoutRemovals returns the union of a set and of what the subscriber has, so that
// a diff contains no removals.
func (s *subscription) withoutRemovals(set *xds.Set) *xds.Set {
	base := s.base
	switch {
	case len(s.overrides) > 0: // it may have rejected some of base
		base = &xds.Set{Version: base.Version}
		for _, res := range s.base.Resources {
			if s.state(res.Name) == stateOf(res) {
				base.Resources = append(base.Resources, res)
			}
		}
		s.ownBase = true
	case !s.ownBase:
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
		return false // unchanged, as in most acknowledgements
	}
	before, first := s.names, s.hasNothing()
	s.names, s.asked, s.named = s.shared.nameSet(q.asked, q.names()), q.asked, q.named
	if first {
		// The difference to noResources contains every name. Overrides would keep
		// hundreds of streams that start with the same names from sharing it.
		s.comparedWith = nil
		return len(s.names.list) > 0
	}
	for _, n := range s.names.list {
		if before.contains(n) {
			continue
		}
		grown, s.comparedWith = true, nil
		if s.base.Get(n) != nil || s.absent == emptyAbsent {
			s.override(n, resourceState{}) // new to this subscriber, or it does not exist
		}
	}
	for n := range s.overrides {
		if !s.names.contains(n) {
			delete(s.overrides, n)
		}
	}
	return grown
}

// version returns the version_info of a response. A subscriber by name that
// reconnects with it, and asks for the same names, has the current version.
func (s *subscription) version(set *xds.Set) string {
	if s.wildcard {
		return set.Version
	}
	return set.Version + "." + versionOf(s.names.hash)
}
