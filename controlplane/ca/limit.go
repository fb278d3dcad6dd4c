// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ca

import (
	"math/rand/v2"
	"net"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/ratelimit"
)

// Why a caller must come back later, as the metric names it.
const (
	refusedCaller   = "caller"
	refusedIdentity = "identity"
	refusedQueue    = "queue"
)

// maxBuckets bounds what is remembered of callers. Who is forgotten first has
// not called for the longest time, and begins anew.
const maxBuckets = 16384

// Limit bounds how often somebody may ask; see ratelimit.Limit. Zero means the
// default.
type Limit = ratelimit.Limit

// limiter bounds how often each identity, and each address of an identity, may
// ask. The second is what holds a flood: other workloads of the same identity
// have other addresses and are still served.
type limiter struct {
	caller, identity Limit
	buckets          *ratelimit.Keyed[string]
}

func newLimiter(caller, identity Limit) *limiter {
	return &limiter{caller: caller, identity: identity, buckets: ratelimit.NewKeyed[string](maxBuckets)}
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

// take takes a token from a bucket.
func (l *limiter) take(key string, limit Limit, reason string, now time.Time) *refusal {
	wait, refused := l.buckets.Take(key, limit, now)
	if wait == 0 {
		return nil
	}
	return &refusal{reason: reason, after: spread(wait), first: refused == 1}
}

// spread makes of a time the one to name: a second at least, and up to twice as
// long, so that callers that are refused at the same time do not come back together.
func spread(wait time.Duration) time.Duration {
	wait = max(wait, time.Second)
	return wait + rand.N(wait)
}
