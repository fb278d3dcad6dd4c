// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"hash/fnv"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/controlplane/generate"
)

// subscription is what one stream wants of one type, and what it has.
// State-of-the-world and delta streams share it; they differ only in how a
// request is read into it and how an update is encoded.
type subscription struct {
	typeURL string
	// wildcard asks for every resource of the type; names for some.
	wildcard bool
	names    map[string]struct{}
	// all is what a wildcard subscriber has, shared between streams; known
	// is what a subscriber by name has.
	all   *generate.Set
	known map[string]uint64
	// at is the set that the subscriber was last brought to or compared
	// with; nil when it has to be compared again.
	at *generate.Set
	// nonce is that of the last response; waiting is true until the proxy
	// answers it, and refused when it rejected it.
	nonce            string
	waiting, refused bool
	// owed is true until a new or wider subscription is answered: it gets a
	// response even if there is nothing to tell.
	owed bool
	// fill answers for endpoints that do not exist with none, unless the
	// subscriber has some: without delta Envoy would wait for them.
	fill bool
}

func newSubscription(typeURL string) *subscription {
	return &subscription{typeURL: typeURL, names: map[string]struct{}{}, known: map[string]uint64{}, all: &generate.Set{}}
}

// byName reports whether a type without names in its first request means
// "nothing" rather than "everything".
func byName(typeURL string) bool {
	return typeURL == generate.TypeEndpoint || typeURL == generate.TypeRoute
}

// update is the difference between what a subscriber has and what it should
// have.
type update struct {
	changed []*generate.Resource
	removed []string
}

func (u update) empty() bool { return len(u.changed) == 0 && len(u.removed) == 0 }

// diff compares without changing the subscription.
func (s *subscription) diff(set *generate.Set) update {
	if s.wildcard {
		return diffSets(s.all, set)
	}
	var u update
	for name := range s.names {
		res := set.Get(name)
		had, has := s.known[name]
		switch {
		case res == nil && s.fill:
			if none := generate.NoEndpoints(name); !has && none != nil {
				u.changed = append(u.changed, none)
			}
		case res == nil && has:
			u.removed = append(u.removed, name)
		case res != nil && (!has || had != res.Hash):
			u.changed = append(u.changed, res)
		}
	}
	slices.SortFunc(u.changed, byResourceName)
	slices.Sort(u.removed)
	return u
}

// diffSets merges two sorted sets.
func diffSets(from, to *generate.Set) update {
	var u update
	if from == to {
		return u
	}
	i, j := 0, 0
	for i < len(from.Resources) || j < len(to.Resources) {
		switch {
		case j == len(to.Resources) || i < len(from.Resources) && from.Resources[i].Name < to.Resources[j].Name:
			u.removed = append(u.removed, from.Resources[i].Name)
			i++
		case i == len(from.Resources) || to.Resources[j].Name < from.Resources[i].Name:
			u.changed = append(u.changed, to.Resources[j])
			j++
		default:
			if from.Resources[i].Hash != to.Resources[j].Hash {
				u.changed = append(u.changed, to.Resources[j])
			}
			i++
			j++
		}
	}
	return u
}

// union gives the resources of to, and those of from that are gone from it.
// It is to itself when nothing is gone.
func union(from, to *generate.Set) *generate.Set {
	gone := diffSets(from, to).removed
	if len(gone) == 0 {
		return to
	}
	all := &generate.Set{Resources: slices.Clone(to.Resources)}
	for _, name := range gone {
		all.Resources = append(all.Resources, from.Get(name))
	}
	slices.SortFunc(all.Resources, byResourceName)
	h := fnv.New64a()
	_, _ = h.Write([]byte(to.Version)) // a hash takes everything
	for _, name := range gone {
		_, _ = h.Write([]byte(name))
	}
	all.Version = versionOf(h.Sum64())
	return all
}

func byResourceName(a, b *generate.Resource) int { return strings.Compare(a.Name, b.Name) }

// sent notes that the subscriber got an update, which brings it to set.
func (s *subscription) sent(set *generate.Set, u update, nonce string) {
	s.nonce, s.waiting, s.refused, s.owed = nonce, true, false, false
	s.has(set, u)
}

// has notes what the subscriber has, without a response on the way.
func (s *subscription) has(set *generate.Set, u update) {
	s.at = set
	if s.wildcard {
		s.all = set
		return
	}
	for _, res := range u.changed {
		s.known[res.Name] = res.Hash
	}
	for _, name := range u.removed {
		delete(s.known, name)
	}
}

// forget makes the next diff hold these names again, whatever the subscriber
// has of them.
func (s *subscription) forget(names []string) {
	for _, n := range names {
		if _, ok := s.known[n]; ok {
			delete(s.known, n)
			s.at = nil
		}
	}
}

// ask adds a name. What the subscriber does not have counts as known in a
// version that does not exist, so that the next diff sends it or tells, once,
// that there is no such resource.
func (s *subscription) ask(name string) {
	s.names[name] = struct{}{}
	if _, has := s.known[name]; !has {
		s.known[name] = 0
	}
}

// resume takes what a proxy that comes back says it has.
func (s *subscription) resume(versions map[string]string) {
	if !s.wildcard {
		for name, v := range versions {
			s.known[name] = hashOf(v)
		}
		return
	}
	all := &generate.Set{}
	for name, v := range versions {
		all.Resources = append(all.Resources, &generate.Resource{Name: name, Hash: hashOf(v)})
	}
	slices.SortFunc(all.Resources, byResourceName)
	s.all = all
}

// setNames replaces the names of a state-of-the-world subscription and
// reports whether it wants something that it did not want before.
func (s *subscription) setNames(names []string) (grown bool) {
	next := make(map[string]struct{}, len(names))
	for _, n := range names {
		next[n] = struct{}{}
		if _, ok := s.names[n]; !ok {
			grown = true
		}
	}
	for n := range s.known {
		if _, ok := next[n]; !ok {
			delete(s.known, n)
		}
	}
	s.names = next
	return grown
}

// version gives the hash of all that the subscriber would have: what stands
// in version_info of a state-of-the-world response.
func (s *subscription) version(set *generate.Set) string {
	if s.wildcard {
		return set.Version
	}
	names := make([]string, 0, len(s.names))
	for n := range s.names {
		names = append(names, n)
	}
	slices.Sort(names)
	h := fnv.New64a()
	for _, n := range names {
		if res := set.Get(n); res != nil {
			_, _ = h.Write([]byte(n)) // a hash takes everything
			_, _ = h.Write([]byte(versionOf(res.Hash)))
		}
	}
	return versionOf(h.Sum64())
}
