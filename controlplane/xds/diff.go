// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xds

import (
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
)

// Same reports whether two resources have the same content. Nil equals only nil.
func Same(a, b *Resource) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Hash == b.Hash
}

// Diff returns the resources of to that are new or changed, and the names of those that were
// removed. Both are sorted by name.
func Diff(from, to *Set) (changed []*Resource, removed []string) {
	if from == to {
		return nil, nil
	}
	i, j := 0, 0
	for i < len(from.Resources) || j < len(to.Resources) {
		switch {
		case j == len(to.Resources) || i < len(from.Resources) && from.Resources[i].Name < to.Resources[j].Name:
			removed = append(removed, from.Resources[i].Name)
			i++
		case i == len(from.Resources) || to.Resources[j].Name < from.Resources[i].Name:
			changed = append(changed, to.Resources[j])
			j++
		default:
			if from.Resources[i].Hash != to.Resources[j].Hash {
				changed = append(changed, to.Resources[j])
			}
			i++
			j++
		}
	}
	return changed, removed
}

// Union returns the resources of to together with those of from that to no longer has. It returns
// to itself if nothing was removed, and from itself if nothing changed.
func Union(from, to *Set) *Set {
	changed, gone := Diff(from, to)
	switch {
	case len(gone) == 0:
		return to
	case len(changed) == 0:
		return from
	}
	all := &Set{Resources: slices.Clone(to.Resources)}
	for _, name := range gone {
		all.Resources = append(all.Resources, from.Get(name))
	}
	slices.SortFunc(all.Resources, func(a, b *Resource) int { return strings.Compare(a.Name, b.Name) })
	h := fnv.New64a()
	_, _ = h.Write([]byte(to.Version)) // never fails
	for _, name := range gone {
		_, _ = h.Write([]byte(name))
	}
	all.Version = strconv.FormatUint(h.Sum64(), 16)
	return all
}
