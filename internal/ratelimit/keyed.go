// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ratelimit

import (
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/outrigger-mesh/outrigger/internal/lru"
)

// Limit configures a token bucket.
type Limit struct {
	PerSecond float64 // tokens added per second; negative means no limit
	Burst     int     // capacity of the bucket in tokens
}

// Keyed holds a token bucket for each key. It holds a bounded number of keys and evicts the least
// recently used one first; an evicted key starts again with a full bucket. It is safe for
// concurrent use.
type Keyed[K comparable] struct {
	mu      sync.Mutex // guards buckets
	buckets *lru.Map[K, *bucket]
}

type bucket struct {
	tokens  *rate.Limiter
	refused int // consecutive refusals
}

// NewKeyed returns a table for at most max keys.
func NewKeyed[K comparable](max int) *Keyed[K] {
	return &Keyed[K]{buckets: lru.New[K, *bucket](max)}
}

// Take takes a token from the bucket of a key and returns a wait of zero, or returns the time until
// the next token. refused is the number of consecutive refusals: including this one if Take
// refuses, otherwise those before it. The limit applies when the key is new; later calls keep the
// first limit.
func (k *Keyed[K]) Take(key K, limit Limit, now time.Time) (wait time.Duration, refused int) {
	if limit.PerSecond < 0 {
		return 0, 0
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	b := k.bucket(key, limit)
	if b.tokens.AllowN(now, 1) {
		refused, b.refused = b.refused, 0
		return 0, refused
	}
	b.refused++
	missing := 1 - b.tokens.TokensAt(now)
	return max(1, time.Duration(missing/limit.PerSecond*float64(time.Second))), b.refused
}

// Bucket returns the bucket of a key, so that callers can wait for tokens.
func (k *Keyed[K]) Bucket(key K, limit Limit) *rate.Limiter {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.bucket(key, limit).tokens
}

// Len returns the number of keys in the table.
func (k *Keyed[K]) Len() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.buckets.Len()
}

// bucket returns the bucket of a key, creating it if necessary. The caller holds mu.
func (k *Keyed[K]) bucket(key K, limit Limit) *bucket {
	if b, ok := k.buckets.Get(key); ok {
		return b
	}
	per := rate.Limit(limit.PerSecond)
	if limit.PerSecond < 0 {
		per = rate.Inf
	}
	b := &bucket{tokens: rate.NewLimiter(per, limit.Burst)}
	k.buckets.Put(key, b)
	return b
}
