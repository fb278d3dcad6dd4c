// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"slices"
	"sync"
	"weak"

	"github.com/cespare/xxhash/v2"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/outrigger-mesh/outrigger/controlplane/xds"
	"github.com/outrigger-mesh/outrigger/xdsproxy/wire"
)

// shared is what streams share, because hundreds of them ask for the same
// names, have the same, and get the same: name lists, differences, and the
// encoded bodies of long answers.
type shared struct {
	mu sync.Mutex // guards what follows
	// names are the lists that some stream uses.
	names   map[namesKey]weak.Pointer[nameSet]
	sweepAt int
	// updates, unions and bodies are of the snapshot in force; reset forgets
	// them. Each is made once: after a start a thousand streams need the same at
	// the same time, and the others wait for the first. A map that is full takes
	// no more: what is not in it is made anew.
	updates map[updateKey]func() update
	unions  map[unionKey]func() *xds.Set
	bodies  map[bodyKey]func() mem.Buffer
	// asked are the bodies that are not encoded in one piece, and how often they
	// were asked for.
	asked map[bodyKey]int
}

// Bounds of what is remembered for one snapshot. A body is as large as all
// resources of a type.
const (
	maxUpdates = 4096
	maxUnions  = 256
	maxBodies  = 64
	maxAsked   = 4096
)

// manyAsk is from when on a body is encoded in one piece, which is a copy of all of
// its resources: sidecars of each service have listeners of their own, and few of
// them do not make up for a copy.
const manyAsk = 3

func newShared() *shared {
	s := &shared{names: map[namesKey]weak.Pointer[nameSet]{}, sweepAt: 1024}
	s.reset()
	return s
}

// reset forgets what belonged to the last snapshot.
func (s *shared) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.updates, s.unions, s.bodies = map[updateKey]func() update{}, map[unionKey]func() *xds.Set{}, map[bodyKey]func() mem.Buffer{}
	s.asked = map[bodyKey]int{}
}

// remembered gives what makes the value of a key, once for all who ask; nil if
// the map, which mu guards, is full.
func remembered[K comparable, V any](mu *sync.Mutex, values *map[K]func() V, bound int, key K, build func() V) func() V {
	mu.Lock()
	defer mu.Unlock()
	value, ok := (*values)[key]
	if !ok && len(*values) < bound {
		value = sync.OnceValue(build)
		(*values)[key] = value
	}
	return value
}

// nameSet is a sorted list of names. It is never written to.
type nameSet struct {
	list []string
	// hash is the sum of the hashes of the names, so that their order does
	// not count.
	hash uint64
	// size is about how many bytes they take.
	size int
}

// What every subscriber begins with. They are never written to.
var (
	noNames     = &nameSet{}
	noResources = &xds.Set{}
)

func (n *nameSet) contains(name string) bool {
	_, ok := slices.BinarySearch(n.list, name)
	return ok
}

type namesKey struct {
	hash  uint64
	count int
}

// holds reports whether the set is that of names, among which are no two equal
// ones.
func (n *nameSet) holds(names []string) bool {
	return len(names) == len(n.list) && !slices.ContainsFunc(names, func(name string) bool { return !n.contains(name) })
}

// nameSet gives the set of names with a hash. The hash finds it, the names
// decide: a proxy that makes up names with the hash of others' gets a set of
// its own.
func (s *shared) nameSet(hash uint64, names []string) *nameSet {
	if len(names) == 0 {
		return noNames
	}
	key := namesKey{hash, len(names)}
	s.mu.Lock()
	n := s.names[key].Value()
	s.mu.Unlock()
	if n != nil && n.holds(names) {
		return n
	}
	names = slices.Clone(names)
	slices.Sort(names)
	mine := &nameSet{list: slices.Compact(names), hash: hash}
	for _, name := range mine.list {
		mine.size += len(name) + perName
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if n = s.names[key].Value(); n != nil { // it may be there by now: many streams ask for the same at once
		if slices.Equal(n.list, mine.list) {
			return n
		}
		return mine
	}
	s.names[key] = weak.Make(mine)
	if len(s.names) >= s.sweepAt {
		for k, p := range s.names {
			if p.Value() == nil {
				delete(s.names, k)
			}
		}
		s.sweepAt = max(1024, 2*len(s.names))
	}
	return mine
}

// with gives a set with more names, without one with fewer.
func (s *shared) with(n *nameSet, more []string) *nameSet {
	if len(n.list) == 0 {
		if same := s.known(more); same != nil {
			return same
		}
	}
	var added []string
	hash, seen := n.hash, make(map[string]struct{}, len(more))
	for _, name := range more {
		if _, twice := seen[name]; !twice && !n.contains(name) {
			seen[name] = struct{}{}
			added = append(added, name)
			hash += xxhash.Sum64String(name)
		}
	}
	if len(added) == 0 {
		return n
	}
	return s.nameSet(hash, slices.Concat(n.list, added))
}

// known gives the set of names, in which no name stands twice, if some stream uses
// it.
func (s *shared) known(names []string) *nameSet {
	var hash uint64
	for _, name := range names {
		hash += xxhash.Sum64String(name)
	}
	s.mu.Lock()
	n := s.names[namesKey{hash, len(names)}].Value()
	s.mu.Unlock()
	if n == nil || len(n.list) != len(names) {
		return nil
	}
	found := make([]bool, len(names))
	for _, name := range names {
		i, ok := slices.BinarySearch(n.list, name)
		if !ok || found[i] {
			return nil
		}
		found[i] = true
	}
	return n
}

func (s *shared) without(n *nameSet, less []string) *nameSet {
	hash, drop := n.hash, make(map[string]struct{}, len(less))
	for _, name := range less {
		drop[name] = struct{}{}
	}
	left := slices.DeleteFunc(slices.Clone(n.list), func(name string) bool {
		_, gone := drop[name]
		if gone {
			hash -= xxhash.Sum64String(name)
		}
		return gone
	})
	if len(left) == len(n.list) {
		return n
	}
	return s.nameSet(hash, left)
}

type updateKey struct {
	names    *nameSet // nil for a wildcard
	from, to *xds.Set
	absent   absence
}

// compare computes the difference.
func (k updateKey) compare() update {
	if k.names == nil {
		changed, removed := xds.Diff(k.from, k.to)
		return update{changed: changed, removed: removed}
	}
	var u update
	if k.from == k.to {
		return u
	}
	for _, name := range k.names.list {
		u.compare(name, wantOf(k.from.Get(name)), k.to.Get(name), k.absent)
	}
	return u
}

// update gives the difference of two sets for some names, computed once.
func (s *shared) update(key updateKey) update {
	if key.from == key.to {
		return update{}
	}
	u := remembered(&s.mu, &s.updates, maxUpdates, key, func() update {
		u := key.compare()
		u.common = true
		return u
	})
	if u == nil {
		return key.compare()
	}
	return u()
}

// diff returns the difference of two sets, computed once.
func (s *shared) diff(from, to *xds.Set) (changed []*xds.Resource, removed []string) {
	u := s.update(updateKey{from: from, to: to})
	return u.changed, u.removed
}

type unionKey struct{ from, to *xds.Set }

// union is the union of two sets, made once: streams that share a set go on
// sharing.
func (s *shared) union(from, to *xds.Set) *xds.Set {
	all := remembered(&s.mu, &s.unions, maxUnions, unionKey{from, to}, func() *xds.Set { return xds.Union(from, to) })
	if all == nil {
		return xds.Union(from, to)
	}
	return all()
}

// longAnswer is the number of resources from which the body of an answer that
// holds all of a set is encoded once for all.
const longAnswer = 32

// bodyKey is a list of resources that many streams send: by where it stands, for
// as long as the list is remembered it is no other's place.
type bodyKey struct {
	first **xds.Resource
	count int
	delta bool
}

// body gives the encoded resources of an answer. It is encoded once for all where
// many ask for it: a difference that others have, too, which common says, or all of
// a set.
func (s *shared) body(set *xds.Set, resources []*xds.Resource, common, delta bool) mem.BufferSlice {
	if len(resources) == 0 {
		return nil
	}
	key := bodyKey{&resources[0], len(resources), delta}
	if len(resources) >= longAnswer && slices.Equal(resources, set.Resources) {
		key.first, common = &set.Resources[0], true
	}
	if !common || !s.manyAsk(key) {
		return encode(resources, delta)
	}
	b := remembered(&s.mu, &s.bodies, maxBodies, key, func() mem.Buffer {
		return mem.SliceBuffer(encode(resources, delta).Materialize())
	})
	if b == nil {
		return encode(resources, delta)
	}
	return append(make(mem.BufferSlice, 0, 2), b()) // room for the tail
}

// manyAsk notes that a body is asked for, and reports whether many do.
func (s *shared) manyAsk(key bodyKey) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.bodies[key]; ok {
		return true
	}
	n, ok := s.asked[key]
	if ok || len(s.asked) < maxAsked {
		s.asked[key] = n + 1
	}
	return n+1 >= manyAsk
}

// encode gives the resources as they stand in a response: only the few bytes
// around each are new.
func encode(resources []*xds.Resource, delta bool) mem.BufferSlice {
	out := make(mem.BufferSlice, 0, 2*len(resources)+1) // room for the tail
	var heads []byte
	for _, res := range resources {
		start := len(heads)
		heads = protowire.AppendTag(heads, wire.ResponseResources, protowire.BytesType)
		if delta {
			heads = appendDeltaHead(heads, res)
		}
		heads = protowire.AppendVarint(heads, uint64(len(res.Any)))
		out = append(out, mem.SliceBuffer(heads[start:len(heads):len(heads)]), mem.SliceBuffer(res.Any))
	}
	return out
}

// appendDeltaHead appends what stands before the length of the Any in an entry
// of a delta response.
func appendDeltaHead(b []byte, res *xds.Resource) []byte {
	version := versionOf(res.Hash)
	size := protowire.SizeTag(wire.ResourceVersion) + protowire.SizeBytes(len(version)) +
		protowire.SizeTag(wire.ResourceName) + protowire.SizeBytes(len(res.Name)) +
		protowire.SizeTag(wire.ResourceAny) + protowire.SizeBytes(len(res.Any))
	b = protowire.AppendVarint(b, uint64(size))
	b = wire.Append(b, wire.ResourceVersion, version)
	b = wire.Append(b, wire.ResourceName, res.Name)
	return protowire.AppendTag(b, wire.ResourceAny, protowire.BytesType)
}
