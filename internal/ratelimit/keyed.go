// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ratelimit

import (
	"container/list"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Limit is the size of a token bucket.
type Limit struct {
	PerSecond float64 // tokens that are added each second; negative means no limit
	Burst     int     // tokens of a full bucket
}

// Keyed holds a token bucket for each key. It remembers a bounded number of keys
// and forgets the least recently used one first; a forgotten key starts again
// with a full bucket. Its methods may be called concurrently.
type Keyed[K comparable] struct {
	max int

	mu      sync.Mutex // guards the fields below
	buckets map[K]*list.Element
	order   *list.List // of *bucket[K], the most recently used one in front
}

type bucket[K comparable] struct {
	key     K
	tokens  *rate.Limiter
	refused int // times in a row
}

// NewKeyed returns a table that remembers at most max keys.
func NewKeyed[K comparable](max int) *Keyed[K] {
	return &Keyed[K]{max: max, buckets: map[K]*list.Element{}, order: list.New()}
}

// Take takes a token from the bucket of a key. If there is one, wait is zero.
// Otherwise wait is the time until the next token. refused counts the refusals in
// a row: with this one if Take refuses, else those before it. The limit applies
// when the key is new; later calls keep the first one.
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

// Bucket returns the bucket of a key, so that callers can wait for its tokens.
func (k *Keyed[K]) Bucket(key K, limit Limit) *rate.Limiter {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.bucket(key, limit).tokens
}

// Len returns how many keys are remembered.
func (k *Keyed[K]) Len() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.order.Len()
}

// bucket returns the bucket of a key and makes it if it is new. The caller holds mu.
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
