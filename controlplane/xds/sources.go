// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xds

import (
	"hash/maphash"
	"slices"
	"strings"
	"unique"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// Sources are the objects whose content shows in a resource: objects of stores,
// and services of clusters. Those of a [Resource] are sorted, each once. Where an
// object is, its file and line, the store of the object says: it may move without
// a change of the resource.
//
// A key is in memory once, however many resources name it.
type Sources []unique.Handle[model.Key]

// Add adds objects; keys without a name are left out.
func (s *Sources) Add(keys ...model.Key) {
	for _, key := range keys {
		if key.Name != "" {
			*s = append(*s, unique.Make(key))
		}
	}
}

// AddConfigs adds the objects that users wrote: those of the list, or what they
// were converted from.
func (s *Sources) AddConfigs(configs ...*model.Config) {
	for _, c := range configs {
		if len(c.From) > 0 {
			s.Add(c.From...)
		} else {
			s.Add(c.Key)
		}
	}
}

// Has reports whether an object is among the sources.
func (s Sources) Has(key model.Key) bool { return slices.Contains(s, unique.Make(key)) }

// Keys returns the objects.
func (s Sources) Keys() []model.Key {
	out := make([]model.Key, 0, len(s))
	for _, h := range s {
		out = append(out, h.Value())
	}
	return out
}

// String returns the objects as text, equal for equal sources.
func (s Sources) String() string {
	var b strings.Builder
	for _, h := range s {
		b.WriteString(h.Value().String())
		b.WriteByte(',')
	}
	return b.String()
}

// sorted returns a copy, sorted and without duplicates; nil for none.
func (s Sources) sorted() Sources {
	if len(s) == 0 {
		return nil
	}
	out := slices.Clone(s)
	slices.SortFunc(out, func(a, b unique.Handle[model.Key]) int {
		if a == b {
			return 0
		}
		return a.Value().Compare(b.Value())
	})
	out = slices.Compact(out)
	if len(out) < len(s) {
		out = slices.Clone(out) // it stays in memory
	}
	return out
}

// sourceSeed makes hashes of sources, which stay in this process.
var sourceSeed = maphash.MakeSeed()

// hash is equal for equal sources, and never 0.
func (s Sources) hash() uint64 {
	var h maphash.Hash
	h.SetSeed(sourceSeed)
	for _, source := range s {
		maphash.WriteComparable(&h, source)
	}
	return max(1, h.Sum64())
}
