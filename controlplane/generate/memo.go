// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"sync"

	"github.com/outrigger-mesh/outrigger/internal/lru"
)

const (
	// keepSnapshots is the number of newer snapshots after which a result that
	// nobody requested is dropped.
	keepSnapshots = 8
	// maxScopes bounds the results of one kind. A full memo drops the result that
	// was requested longest ago; it is built again when it is requested.
	maxScopes = 20_000
)

// inputs are the parts of a snapshot that a result was built from, compared by pointer.
type inputs [7]any

// memo caches one result for each key and rebuilds it when its inputs change. It is safe for
// concurrent use; concurrent callers with the same key wait for one build.
type memo[K comparable, V any] struct {
	mu sync.Mutex // guards all fields below
	// entries are ordered by their last request; nil before the first request.
	entries *lru.Map[K, *memoEntry[V]]
	newest  uint64
}

type memoEntry[V any] struct {
	mu    sync.Mutex // guards value, from and at; held while building
	value V
	from  inputs
	at    uint64 // sequence of the snapshot of value; 0 means not built yet
	used  uint64 // guarded by memo.mu
}

// get returns the result of a key for the snapshot with the given sequence. It passes the previous
// result to build.
func (m *memo[K, V]) get(key K, sequence uint64, from inputs, build func(prev V) V) V {
	e := m.entry(key, sequence)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.at != 0 && e.from == from {
		return e.value
	}
	value := build(e.value)
	if sequence >= e.at { // a late caller with an old snapshot does not replace the entry
		e.value, e.from, e.at = value, from, sequence
	}
	return value
}

func (m *memo[K, V]) entry(key K, sequence uint64) *memoEntry[V] {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.entries == nil {
		m.entries = lru.New[K, *memoEntry[V]](maxScopes)
	}
	if sequence > m.newest {
		m.newest = sequence
		m.dropUnused()
	}
	e, ok := m.entries.Get(key)
	if !ok {
		e = &memoEntry[V]{}
		m.entries.Put(key, e)
	}
	e.used = max(e.used, sequence)
	return e
}

// dropUnused drops the results that were not requested for the last snapshots. The caller holds
// mu.
func (m *memo[K, V]) dropUnused() {
	for key, e := range m.entries.Oldest() {
		if e.used+keepSnapshots >= m.newest {
			return
		}
		m.entries.Delete(key)
	}
}
