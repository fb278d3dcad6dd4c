// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ratelimit

import (
	"container/list"
	"sync"
	"time"

	"golang.org/x/time/rate"
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
	max int

	mu      sync.Mutex // guards the fields below
	buckets map[K]*list.Element
	order   *list.List // of *bucket[K], the most recently used one in front
}

type bucket[K comparable] struct {
	key     K
	tokens  *rate.Limiter
	refused int // consecutive refusals
}

// NewKeyed returns a table for at most max keys.
func NewKeyed[K comparable](max int) *Keyed[K] {
	return &Keyed[K]{max: max, buckets: map[K]*list.Element{}, order: list.New()}
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
	return k.order.Len()
}

// bucket returns the bucket of a key, creating it if necessary. The caller holds mu.
func (k *Keyed[K]) bucket(key K, limit Limit) *bucket[K] {
	e := k.buckets[key]
	if e == nil {
		if k.order.Len() >= k.max {
			delete(k.buckets, k.order.Remove(k.order.Back()).(*bucket[K]).key)
		}
		per := rate.Limit(limit.PerSecond)
		if limit.PerSecond < 0 {
			per = rate.Inf
		}
		e = k.order.PushFront(&bucket[K]{key: key, tokens: rate.NewLimiter(per, limit.Burst)})
		k.buckets[key] = e
	}
	k.order.MoveToFront(e)
	return e.Value.(*bucket[K])
}
