// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import "sync"

const (
	// keepSnapshots is for how many newer snapshots a result that nobody
	// asked for is kept.
	keepSnapshots = 8
	// maxScopes bounds the results of one kind. When it is reached all are
	// forgotten; that costs a build for each scope and changes no answer.
	maxScopes = 20_000
)

// sources are the parts of a snapshot that a result was made of, compared by
// pointer.
type sources [7]any

// memo remembers one result for each key and builds it anew when its sources
// changed. It is safe for concurrent use; concurrent callers of one key wait
// for one build.
type memo[K comparable, V any] struct {
	mu      sync.Mutex // guards all below
	entries map[K]*memoEntry[V]
	newest  uint64
}

type memoEntry[V any] struct {
	mu    sync.Mutex // guards value, from and at; held while building
	value V
	from  sources
	at    uint64 // sequence of the snapshot of value; 0 means not built yet
	used  uint64 // guarded by memo.mu
}

// get gives the result of a key for the snapshot with this sequence. The build
// gets the result that it replaces.
func (m *memo[K, V]) get(key K, sequence uint64, from sources, build func(prev V) V) V {
	e := m.entry(key, sequence)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.at != 0 && e.from == from {
		return e.value
	}
	value := build(e.value)
	if sequence >= e.at { // a late caller with an old snapshot replaces nothing
		e.value, e.from, e.at = value, from, sequence
	}
	return value
}

func (m *memo[K, V]) entry(key K, sequence uint64) *memoEntry[V] {
	m.mu.Lock()
	defer m.mu.Unlock()
	if sequence > m.newest {
		m.newest = sequence
		for k, e := range m.entries {
			if e.used+keepSnapshots < sequence {
				delete(m.entries, k)
			}
		}
	}
	e := m.entries[key]
	if e == nil {
		if m.entries == nil || len(m.entries) >= maxScopes {
			m.entries = make(map[K]*memoEntry[V])
		}
		e = &memoEntry[V]{}
		m.entries[key] = e
	}
	e.used = max(e.used, sequence)
	return e
}
