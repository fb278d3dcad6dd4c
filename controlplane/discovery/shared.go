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

// shared caches what many streams have in common: lists of names, differences
// between sets, and the encoded bodies of long responses.
type shared struct {
	mu sync.Mutex // guards the fields below
	// names are the lists that streams use. Unused ones are removed when there are
	// sweepAt of them.
	names   map[namesKey]weak.Pointer[nameSet]
	sweepAt int
	// updates, unions and bodies belong to the newest snapshot; reset clears them.
	// Each value is computed once, and concurrent callers wait for it: after a
	// start a thousand streams need the same one. A full map takes no more values:
	// they are computed for each caller.
	updates map[updateKey]func() update
	unions  map[unionKey]func() *xds.Set
	bodies  map[bodyKey]func() mem.Buffer
	// requested counts the requests for bodies that are not cached.
	requested map[bodyKey]int
}

// Limits of the caches of one snapshot, in entries. A body is as large as all
// resources of a type.
const (
	maxUpdates   = 4096
	maxUnions    = 256
	maxBodies    = 64
	maxRequested = 4096
)

// popularAfter is the number of requests after which a body is encoded in one piece
// and cached. That copies all of its resources, which pays off only when several
// streams share the body.
const popularAfter = 3

func newShared() *shared {
	s := &shared{names: map[namesKey]weak.Pointer[nameSet]{}, sweepAt: 1024}
	s.reset()
	return s
}

// reset clears the caches of the previous snapshot.
func (s *shared) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.updates, s.unions, s.bodies = map[updateKey]func() update{}, map[unionKey]func() *xds.Set{}, map[bodyKey]func() mem.Buffer{}
	s.requested = map[bodyKey]int{}
}

// memoized returns a function that builds the value of a key once and returns it to
// every caller, or nil if the map is full. mu guards the map.
func memoized[K comparable, V any](mu *sync.Mutex, values *map[K]func() V, bound int, key K, build func() V) func() V {
	mu.Lock()
	defer mu.Unlock()
	value, ok := (*values)[key]
	if !ok && len(*values) < bound {
		value = sync.OnceValue(build)
		(*values)[key] = value
	}
	return value
}

// nameSet is an immutable, sorted list of names.
type nameSet struct {
	list []string
	// hash is the sum of the hashes of the names: their order does not matter.
	hash uint64
	// size is the approximate size of the names in bytes.
	size int
}

// The initial state of every subscriber. They are immutable.
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

// equal reports whether the set consists of names, which must not contain duplicates.
func (n *nameSet) equal(names []string) bool {
	return len(names) == len(n.list) && !slices.ContainsFunc(names, func(name string) bool { return !n.contains(name) })
}

// nameSet returns the shared set of names with a hash. It compares the names, too: a
// proxy that constructs names with the same hash gets a set of its own.
func (s *shared) nameSet(hash uint64, names []string) *nameSet {
	if len(names) == 0 {
		return noNames
	}
	key := namesKey{hash, len(names)}
	s.mu.Lock()
	n := s.names[key].Value()
	s.mu.Unlock()
	if n != nil && n.equal(names) {
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
	if n = s.names[key].Value(); n != nil { // another stream may have added it meanwhile
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

// with returns the set extended by names.
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

// known returns the shared set of names if a stream uses it, or nil. It returns nil if
// names contains duplicates.
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

// without returns the set reduced by names.
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
	absent   absencePolicy
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
		u.compare(name, stateOf(k.from.Get(name)), k.to.Get(name), k.absent)
	}
	return u
}

// update returns the difference of two sets for some names, computed once.
func (s *shared) update(key updateKey) update {
	if key.from == key.to {
		return update{}
	}
	u := memoized(&s.mu, &s.updates, maxUpdates, key, func() update {
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

// union returns the union of two sets, computed once, so that streams that share a
// set continue to do so.
func (s *shared) union(from, to *xds.Set) *xds.Set {
	all := memoized(&s.mu, &s.unions, maxUnions, unionKey{from, to}, func() *xds.Set { return xds.Union(from, to) })
	if all == nil {
		return xds.Union(from, to)
	}
	return all()
}

// longAnswer is the number of resources from which the body of a response that
// contains a whole set is shared.
const longAnswer = 32

// bodyKey identifies a list of resources by its address, which is not reused while
// the list is cached.
type bodyKey struct {
	first **xds.Resource
	count int
	delta bool
}

// body returns the encoded resources of a response. The bodies that several streams
// send are encoded once: differences that others have, too (common), and whole sets.
func (s *shared) body(set *xds.Set, resources []*xds.Resource, common, delta bool) mem.BufferSlice {
	if len(resources) == 0 {
		return nil
	}
	key := bodyKey{&resources[0], len(resources), delta}
	if len(resources) >= longAnswer && slices.Equal(resources, set.Resources) {
		key.first, common = &set.Resources[0], true
	}
	if !common || !s.isPopular(key) {
		return encode(resources, delta)
	}
	b := memoized(&s.mu, &s.bodies, maxBodies, key, func() mem.Buffer {
		return mem.SliceBuffer(encode(resources, delta).Materialize())
	})
	if b == nil {
		return encode(resources, delta)
	}
	return append(make(mem.BufferSlice, 0, 2), b()) // room for the tail
}

// isPopular counts a request for a body, and reports whether to cache it.
func (s *shared) isPopular(key bodyKey) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.bodies[key]; ok {
		return true
	}
	n, ok := s.requested[key]
	if ok || len(s.requested) < maxRequested {
		s.requested[key] = n + 1
	}
	return n+1 >= popularAfter
}

// encode returns the resources in the encoding of a response. It copies nothing but
// the few bytes before each.
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

// appendDeltaHead appends the part of an entry of a delta response that precedes the
// length of the Any.
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
