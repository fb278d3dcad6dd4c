// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"hash/fnv"
	"slices"
	"strings"
	"unique"

	"github.com/outrigger-mesh/outrigger/controlplane/generate"
)

// subscription is what one stream wants of one type, and what it has.
// State-of-the-world and delta streams share it; they differ only in how a
// request is read into it and how an update is encoded.
type subscription struct {
	typeURL string
	// wildcard asks for every resource of the type. What it has is all,
	// which is shared between streams.
	wildcard bool
	all      *generate.Set
	// wants is what a subscriber by name asks for, or has. The names are
	// handles, because many streams ask for the same ones.
	wants map[unique.Handle[string]]want
	// asked is the hash of the names of the last state-of-the-world request.
	asked uint64
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

// want is what a subscriber by name asks for, or has, under one name.
type want struct {
	// hash is that of the resource that it has.
	hash       uint64
	has, asked bool
}

func newSubscription(typeURL string) *subscription {
	return &subscription{typeURL: typeURL, wants: map[unique.Handle[string]]want{}, all: &generate.Set{}}
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
	if s.at != nil {
		// It has all that it wants of that set: only what changed since
		// needs a look.
		since := diffSets(s.at, set)
		for _, res := range since.changed {
			s.compare(&u, unique.Make(res.Name), res)
		}
		for _, name := range since.removed {
			s.compare(&u, unique.Make(name), nil)
		}
		return u
	}
	for name := range s.wants {
		s.compare(&u, name, set.Get(name.Value()))
	}
	slices.SortFunc(u.changed, byResourceName)
	slices.Sort(u.removed)
	return u
}

// compare adds to an update what the subscriber lacks under one name; res is
// nil when there is no such resource.
func (s *subscription) compare(u *update, name unique.Handle[string], res *generate.Resource) {
	w := s.wants[name]
	switch {
	case !w.asked:
	case res == nil && s.fill:
		if none := generate.NoEndpoints(name.Value()); !w.has && none != nil {
			u.changed = append(u.changed, none)
		}
	case res == nil && w.has:
		u.removed = append(u.removed, name.Value())
	case res != nil && (!w.has || w.hash != res.Hash):
		u.changed = append(u.changed, res)
	}
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
		s.wants[unique.Make(res.Name)] = want{hash: res.Hash, has: true, asked: true}
	}
	for _, name := range u.removed {
		s.wants[unique.Make(name)] = want{asked: true}
	}
}

// forget makes the next diff hold these names again, whatever the subscriber
// has of them.
func (s *subscription) forget(names []string) {
	for _, n := range names {
		h := unique.Make(n)
		if w := s.wants[h]; w.has {
			w.has = false
			s.wants[h] = w
			s.at = nil
		}
	}
}

// ask adds a name. What the subscriber does not have counts as known in a
// version that does not exist, so that the next diff sends it or tells, once,
// that there is no such resource.
func (s *subscription) ask(name string) {
	h := unique.Make(name)
	w := s.wants[h]
	s.wants[h] = want{hash: w.hash, has: true, asked: true}
	s.at = nil
}

// drop takes a name away.
func (s *subscription) drop(name string) { delete(s.wants, unique.Make(name)) }

// resume takes what a proxy that comes back says it has.
func (s *subscription) resume(versions map[string]string) {
	if !s.wildcard {
		for name, v := range versions {
			s.wants[unique.Make(name)] = want{hash: hashOf(v), has: true}
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
func (s *subscription) setNames(q *request) (grown bool) {
	if q.asked == s.asked && q.named == len(s.wants) {
		return false // the same again, as in most answers
	}
	next := make(map[unique.Handle[string]]want, q.named)
	for _, n := range q.names() {
		h := unique.Make(n)
		w := s.wants[h]
		if !w.asked {
			grown, s.at = true, nil
		}
		w.asked = true
		next[h] = w
	}
	s.wants, s.asked = next, q.asked
	return grown
}

// version gives what stands in version_info of a response: a subscriber by
// name that comes back with it, and asks for the same names, has what is
// current.
func (s *subscription) version(set *generate.Set) string {
	if s.wildcard {
		return set.Version
	}
	return set.Version + "." + versionOf(s.asked)
}
