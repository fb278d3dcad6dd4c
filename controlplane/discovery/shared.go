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

	"github.com/outrigger-mesh/outrigger/controlplane/generate"
)

// shared is what streams share, because hundreds of them ask for the same
// names, have the same, and get the same: name lists, differences, and the
// encoded bodies of long answers.
type shared struct {
	mu sync.Mutex // guards what follows
	// names are the lists that some stream uses.
	names   map[namesKey]weak.Pointer[nameSet]
	sweepAt int
	// updates and bodies are of the snapshot in force; reset forgets them.
	updates map[updateKey]update
	bodies  map[bodyKey]mem.Buffer
}

func newShared() *shared {
	s := &shared{names: map[namesKey]weak.Pointer[nameSet]{}, sweepAt: 1024}
	s.reset()
	return s
}

// reset forgets what belonged to the last snapshot.
func (s *shared) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.updates, s.bodies = map[updateKey]update{}, map[bodyKey]mem.Buffer{}
}

// nameSet is a sorted list of names. It is never written to.
type nameSet struct {
	list []string
	// hash is the sum of the hashes of the names, so that their order does
	// not count.
	hash uint64
}

var noNames = &nameSet{}

func (n *nameSet) contains(name string) bool {
	_, ok := slices.BinarySearch(n.list, name)
	return ok
}

type namesKey struct {
	hash  uint64
	count int
}

// nameSet gives the set of a number of names with a hash; list is called when
// no stream has it.
func (s *shared) nameSet(hash uint64, count int, list func() []string) *nameSet {
	if count == 0 {
		return noNames
	}
	key := namesKey{hash, count}
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.names[key].Value(); n != nil {
		return n
	}
	names := slices.Clone(list())
	slices.Sort(names)
	n := &nameSet{list: slices.Compact(names), hash: hash}
	s.names[key] = weak.Make(n)
	if len(s.names) >= s.sweepAt {
		for k, p := range s.names {
			if p.Value() == nil {
				delete(s.names, k)
			}
		}
		s.sweepAt = max(1024, 2*len(s.names))
	}
	return n
}

// with gives a set with more names, without one with fewer.
func (s *shared) with(n *nameSet, more []string) *nameSet {
	var added []string
	hash := n.hash
	for _, name := range more {
		if !n.contains(name) && !slices.Contains(added, name) {
			added = append(added, name)
			hash += xxhash.Sum64String(name)
		}
	}
	if len(added) == 0 {
		return n
	}
	return s.nameSet(hash, len(n.list)+len(added), func() []string { return slices.Concat(n.list, added) })
}

func (s *shared) without(n *nameSet, less []string) *nameSet {
	hash := n.hash
	left := slices.DeleteFunc(slices.Clone(n.list), func(name string) bool {
		gone := slices.Contains(less, name)
		if gone {
			hash -= xxhash.Sum64String(name)
		}
		return gone
	})
	if len(left) == len(n.list) {
		return n
	}
	return s.nameSet(hash, len(left), func() []string { return left })
}

type updateKey struct {
	names    *nameSet // nil for a wildcard
	from, to *generate.Set
	fill     bool
}

// update gives the difference of two sets for some names, computed once.
func (s *shared) update(key updateKey) update {
	if key.from == key.to {
		return update{}
	}
	s.mu.Lock()
	u, ok := s.updates[key]
	s.mu.Unlock()
	if ok {
		return u
	}
	if key.names == nil {
		u = diffSets(key.from, key.to)
	} else {
		for _, name := range key.names.list {
			u.compare(name, wantOf(key.from.Get(name)), key.to.Get(name), key.fill)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.updates[key] = u
	return u
}

// longAnswer is the number of resources from which the body of an answer that
// holds all of a set is encoded once for all.
const longAnswer = 32

type bodyKey struct {
	set   *generate.Set
	delta bool
}

// body gives the encoded resources of an answer, shared if it holds all of a
// set.
func (s *shared) body(set *generate.Set, resources []*generate.Resource, delta bool) mem.BufferSlice {
	if len(resources) < longAnswer || !slices.Equal(resources, set.Resources) {
		return encode(resources, delta)
	}
	key := bodyKey{set, delta}
	s.mu.Lock()
	b, ok := s.bodies[key]
	s.mu.Unlock()
	if !ok {
		b = mem.SliceBuffer(encode(resources, delta).Materialize())
		s.mu.Lock()
		s.bodies[key] = b
		s.mu.Unlock()
	}
	return mem.BufferSlice{b}
}

// encode gives the resources as they stand in a response: only the few bytes
// around each are new.
func encode(resources []*generate.Resource, delta bool) mem.BufferSlice {
	out := make(mem.BufferSlice, 0, 2*len(resources)+2) // room for head and tail
	var heads []byte
	for _, res := range resources {
		start := len(heads)
		heads = protowire.AppendTag(heads, fieldResources, protowire.BytesType)
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
func appendDeltaHead(b []byte, res *generate.Resource) []byte {
	version := versionOf(res.Hash)
	size := protowire.SizeTag(fieldVersion) + protowire.SizeBytes(len(version)) +
		protowire.SizeTag(fieldName) + protowire.SizeBytes(len(res.Name)) +
		protowire.SizeTag(fieldAny) + protowire.SizeBytes(len(res.Any))
	b = protowire.AppendVarint(b, uint64(size))
	b = protowire.AppendTag(b, fieldVersion, protowire.BytesType)
	b = protowire.AppendString(b, version)
	b = protowire.AppendTag(b, fieldName, protowire.BytesType)
	b = protowire.AppendString(b, res.Name)
	return protowire.AppendTag(b, fieldAny, protowire.BytesType)
}
