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

// Sources are the objects that contribute to the content of a resource: objects of stores, and
// services of clusters. The sources of a [Resource] are sorted, without duplicates. They do not
// include the file and line of an object, which can change without changing the resource; its store
// knows them.
//
// Each key exists in memory once, however many resources refer to it.
type Sources []unique.Handle[model.Key]

// Add adds objects. It ignores keys without a name.
func (s *Sources) Add(keys ...model.Key) {
	for _, key := range keys {
		if key.Name != "" {
			*s = append(*s, unique.Make(key))
		}
	}
}

// AddConfigs adds the user-written objects behind the configs: the objects that a config was
// converted from, or else the config itself.
func (s *Sources) AddConfigs(configs ...*model.Config) {
	for _, c := range configs {
		if len(c.From) > 0 {
			s.Add(c.From...)
		} else {
			s.Add(c.Key)
		}
	}
}

// Has reports whether an object is one of the sources.
func (s Sources) Has(key model.Key) bool { return slices.Contains(s, unique.Make(key)) }

// Keys returns the keys of the objects.
func (s Sources) Keys() []model.Key {
	out := make([]model.Key, 0, len(s))
	for _, h := range s {
		out = append(out, h.Value())
	}
	return out
}

// String returns the keys as text. Equal sources have equal texts.
func (s Sources) String() string {
	var b strings.Builder
	for _, h := range s {
		b.WriteString(h.Value().String())
		b.WriteByte(',')
	}
	return b.String()
}

// sorted returns a sorted copy without duplicates, or nil if there are no sources.
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
		out = slices.Clone(out) // releases the unused capacity, because the result is long-lived
	}
	return out
}

// sourceSeed is the seed for hashes of sources, which are only used within the process.
var sourceSeed = maphash.MakeSeed()

// hash returns a hash of the sources, which is never 0.
func (s Sources) hash() uint64 {
	var h maphash.Hash
	h.SetSeed(sourceSeed)
	for _, source := range s {
		maphash.WriteComparable(&h, source)
	}
	return max(1, h.Sum64())
}
