// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ca

import (
	"container/list"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Why a caller is told to come back later, as the metric names it.
const (
	refusedCaller   = "caller"
	refusedIdentity = "identity"
	refusedQueue    = "queue"
)

// maxBuckets bounds what is remembered of callers. Who is forgotten first has
// not called for the longest time, and begins anew.
const maxBuckets = 16384

// Limit bounds how often somebody may ask.
type Limit struct {
	PerSecond float64 // in the long run; zero means the default, negative no limit
	Burst     int     // at once
}

// limiter bounds how often each identity, and each address of an identity, may
// ask. The second is what holds a flood: other workloads of the same identity
// have other addresses and are still served.
type limiter struct {
	caller, identity Limit

	mu      sync.Mutex // guards the fields below
	buckets map[string]*list.Element
	order   *list.List // of *bucket, the one that was used last in front
}

type bucket struct {
	key    string
	tokens *rate.Limiter
	told   bool // that it is empty was logged
}

func newLimiter(caller, identity Limit) *limiter {
	return &limiter{caller: caller, identity: identity, buckets: map[string]*list.Element{}, order: list.New()}
}

// refusal tells a caller to come back.
type refusal struct {
	reason string
	after  time.Duration
	first  bool // since it was served last
}

// allowCaller takes a request of an identity from an address, or returns why
// not. Who is refused here does not use up what others of the identity have.
func (l *limiter) allowCaller(identity, address string, now time.Time) *refusal {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	return l.take(identity+" "+host, l.caller, refusedCaller, now)
}

// allowIdentity takes a request for an identity, or returns why not.
func (l *limiter) allowIdentity(identity string, now time.Time) *refusal {
	return l.take(identity, l.identity, refusedIdentity, now)
}

// allowLine takes a line of the log about a stranger at an address, or returns
// that there were many.
func (l *limiter) allowLine(address string, now time.Time) *refusal {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	// No identity begins like this.
	return l.take("stranger "+host, Limit{PerSecond: 1, Burst: 20}, refusedCaller, now)
}

// take takes a token from a bucket.
func (l *limiter) take(key string, limit Limit, reason string, now time.Time) *refusal {
	if limit.PerSecond < 0 {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.buckets[key]
	if e == nil {
		if l.order.Len() >= maxBuckets {
			delete(l.buckets, l.order.Remove(l.order.Back()).(*bucket).key)
		}
		e = l.order.PushFront(&bucket{key: key, tokens: rate.NewLimiter(rate.Limit(limit.PerSecond), limit.Burst)})
		l.buckets[key] = e
	}
	l.order.MoveToFront(e)
	b := e.Value.(*bucket)
	if b.tokens.AllowN(now, 1) {
		b.told = false
		return nil
	}
	wait := time.Duration((1 - b.tokens.TokensAt(now)) / limit.PerSecond * float64(time.Second))
	r := &refusal{reason: reason, after: spread(wait), first: !b.told}
	b.told = true
	return r
}

// spread makes of a time the one to name: a second at least, and up to twice as
// long, so that those who are told at the same time do not come back together.
func spread(wait time.Duration) time.Duration {
	wait = max(wait, time.Second)
	return wait + rand.N(wait)
}
