// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package authn

import (
	"crypto/sha256"
	"sync"
	"time"
)

// cache stores values for a limited time. When it is full, it removes expired entries, and then
// arbitrary ones.
type cache[V any] struct {
	size int
	ttl  time.Duration

	// mu guards the fields below.
	mu      sync.Mutex
	entries map[[sha256.Size]byte]cached[V]
}

type cached[V any] struct {
	value V
	until time.Time
}

func newCache[V any](size int, ttl time.Duration) *cache[V] {
	return &cache[V]{size: size, ttl: ttl, entries: map[[sha256.Size]byte]cached[V]{}}
}

func (c *cache[V]) get(key [sha256.Size]byte, now time.Time) (value V, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.entries[key]
	if !ok || !now.Before(e.until) {
		delete(c.entries, key)
		return value, false
	}
	return e.value, true
}

func (c *cache[V]) put(key [sha256.Size]byte, value V, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.entries) >= c.size {
		c.sweep(now)
	}
	c.entries[key] = cached[V]{value, now.Add(c.ttl)}
}

// sweep removes a tenth of the entries, so that it does not run for each new entry.
func (c *cache[V]) sweep(now time.Time) {
	for k, e := range c.entries {
		if !now.Before(e.until) {
			delete(c.entries, k)
		}
	}
	for k := range c.entries {
		if len(c.entries) <= c.size-c.size/10-1 {
			return
		}
		delete(c.entries, k)
	}
}
