// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"cmp"
	"maps"
	"slices"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// selectors finds the first object whose workload selector matches the labels of a workload,
// without comparing all selectors. Objects with an empty selector cannot be added.
type selectors[T any] struct {
	byPair map[labelPair][]selected[T]
	size   int
}

type labelPair struct{ key, value string }

type selected[T any] struct {
	order  int
	labels map[string]string
	value  T
}

// add appends an object; earlier objects take precedence.
func (s *selectors[T]) add(labels map[string]string, value T) {
	if s.byPair == nil {
		s.byPair = make(map[labelPair][]selected[T])
	}
	// Indexing one label pair of the selector is enough to find it.
	key := slices.Min(slices.Collect(maps.Keys(labels)))
	pair := labelPair{key: key, value: labels[key]}
	s.byPair[pair] = append(s.byPair[pair], selected[T]{order: s.size, labels: labels, value: value})
	s.size++
}

// first returns the first object that matches the labels.
func (s *selectors[T]) first(labels map[string]string) (value T, ok bool) {
	best := s.size
	for k, v := range labels {
		for _, sel := range s.byPair[labelPair{key: k, value: v}] {
			if sel.order < best && model.Selects(sel.labels, labels) {
				best, value, ok = sel.order, sel.value, true
			}
		}
	}
	return value, ok
}

// matching returns all objects that match the labels, in the order in which they were added.
func (s *selectors[T]) matching(labels map[string]string) []T {
	var found []selected[T]
	for k, v := range labels {
		for _, sel := range s.byPair[labelPair{key: k, value: v}] {
			if model.Selects(sel.labels, labels) {
				found = append(found, sel)
			}
		}
	}
	slices.SortFunc(found, func(a, b selected[T]) int { return cmp.Compare(a.order, b.order) })
	out := make([]T, len(found))
	for i, sel := range found {
		out[i] = sel.value
	}
	return out
}
