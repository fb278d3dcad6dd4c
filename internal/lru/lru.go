// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package lru

import (
	"container/list"
	"iter"
)

// Map is a map of bounded size. It is not safe for concurrent use.
type Map[K comparable, V any] struct {
	size int
	// order holds *entry values, the most recently used in front.
	order   list.List
	entries map[K]*list.Element
}

type entry[K comparable, V any] struct {
	key   K
	value V
}

// New returns an empty map for up to size entries, at least one.
func New[K comparable, V any](size int) *Map[K, V] {
	return &Map[K, V]{size: max(size, 1), entries: map[K]*list.Element{}}
}

// Get returns the value of a key and marks it as most recently used.
func (m *Map[K, V]) Get(key K) (value V, ok bool) {
	e, ok := m.entries[key]
	if !ok {
		return value, false
	}
	m.order.MoveToFront(e)
	return e.Value.(*entry[K, V]).value, true
}

// Put sets the value of a key and marks it as most recently used. If the map is full, it evicts the
// least recently used entry.
func (m *Map[K, V]) Put(key K, value V) {
	if e, ok := m.entries[key]; ok {
		e.Value.(*entry[K, V]).value = value
		m.order.MoveToFront(e)
		return
	}
	if len(m.entries) == m.size {
		m.remove(m.order.Back())
	}
	m.entries[key] = m.order.PushFront(&entry[K, V]{key, value})
}

// Delete removes a key.
func (m *Map[K, V]) Delete(key K) {
	if e, ok := m.entries[key]; ok {
		m.remove(e)
	}
}

func (m *Map[K, V]) remove(e *list.Element) {
	delete(m.entries, m.order.Remove(e).(*entry[K, V]).key)
}

// Len returns the number of entries.
func (m *Map[K, V]) Len() int { return len(m.entries) }

// Oldest iterates over the entries, the least recently used first. The loop may delete the current
// entry.
func (m *Map[K, V]) Oldest() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		for e := m.order.Back(); e != nil; {
			next, current := e.Prev(), e.Value.(*entry[K, V])
			if !yield(current.key, current.value) {
				return
			}
			e = next
		}
	}
}
