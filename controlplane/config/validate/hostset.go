// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package validate

import (
	"slices"
	"strings"
)

// hostSet answers which hosts of a list, some of them wildcards, include
// another host, without a look at each. Letter case makes no difference.
type hostSet struct {
	// exact and wildcards hold the first index of each host; wildcards without
	// the "*".
	exact, wildcards map[string]int
	// lengths are those of the wildcards, each once, in ascending order.
	lengths []int
}

func newHostSet(hosts []string) *hostSet {
	s := &hostSet{exact: map[string]int{}, wildcards: map[string]int{}}
	for i, h := range hosts {
		of := s.exact
		h, wild := strings.CutPrefix(strings.ToLower(h), "*")
		if wild {
			of = s.wildcards
		}
		if _, ok := of[h]; ok || len(h) > maxHost {
			continue
		}
		of[h] = i
		if wild {
			s.lengths = append(s.lengths, len(h))
		}
	}
	slices.Sort(s.lengths)
	s.lengths = slices.Compact(s.lengths)
	return s
}

// including calls yield with the index of each distinct host that includes
// host, which may be a wildcard.
func (s *hostSet) including(host string, yield func(i int)) {
	host, wild := strings.CutPrefix(strings.ToLower(host), "*")
	if i, ok := s.exact[host]; ok && !wild {
		yield(i)
	}
	for _, n := range s.lengths {
		if n > len(host) {
			return
		}
		if i, ok := s.wildcards[host[len(host)-n:]]; ok {
			yield(i)
		}
	}
}

// includes reports whether a host of the list includes host.
func (s *hostSet) includes(host string) (found bool) {
	s.including(host, func(int) { found = true })
	return found
}

// overlaps returns for each host the first index of an earlier host that
// includes it, or that it includes; -1 for none.
func (s *hostSet) overlaps(hosts []string) []int {
	first := slices.Repeat([]int{-1}, len(hosts))
	for i, h := range hosts {
		if len(h) > maxHost {
			continue // no host; refused by itself
		}
		s.including(h, func(j int) {
			if later, earlier := max(i, j), min(i, j); later != earlier && (first[later] < 0 || earlier < first[later]) {
				first[later] = earlier
			}
		})
	}
	return first
}

// firsts remembers the first index of each key.
type firsts[K comparable] map[K]int

// earliest returns the smallest index of some keys; false if there is none.
func (f firsts[K]) earliest(keys ...K) (at int, ok bool) {
	for _, k := range keys {
		if i, found := f[k]; found && (!ok || i < at) {
			at, ok = i, true
		}
	}
	return at, ok
}

// add remembers an index for a key that has none.
func (f firsts[K]) add(i int, keys ...K) {
	for _, k := range keys {
		if _, ok := f[k]; !ok {
			f[k] = i
		}
	}
}
