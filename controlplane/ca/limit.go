// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ca

import (
	"math/rand/v2"
	"net"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/ratelimit"
)

// The reasons for rate limiting, as used by the metric.
const (
	refusedCaller   = "caller"
	refusedIdentity = "identity"
	refusedQueue    = "queue"
)

// maxBuckets is the maximum number of callers that are tracked. The least recently used one is
// evicted and starts over.
const maxBuckets = 16384

// Limit is a rate limit; see ratelimit.Limit. Zero means the default.
type Limit = ratelimit.Limit

// limiter limits the request rate of each identity, and of each address of an identity. The second
// limit stops a flood from one workload: other workloads with the same identity have other
// addresses and are still served.
type limiter struct {
	caller, identity Limit
	buckets          *ratelimit.Keyed[string]
}

func newLimiter(caller, identity Limit) *limiter {
	return &limiter{caller: caller, identity: identity, buckets: ratelimit.NewKeyed[string](maxBuckets)}
}

// refusal is the reason and the delay for a caller that must retry later.
type refusal struct {
	reason string
	after  time.Duration
	first  bool // the first one since the last served request
}

// allowCaller counts a request of an identity from an address. It returns nil if the request is
// allowed. A refused request does not count against the limit of the identity.
func (l *limiter) allowCaller(identity, address string, now time.Time) *refusal {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	return l.take(identity+" "+host, l.caller, refusedCaller, now)
}

// allowIdentity counts a request for an identity. It returns nil if the request is allowed.
func (l *limiter) allowIdentity(identity string, now time.Time) *refusal {
	return l.take(identity, l.identity, refusedIdentity, now)
}

// take takes a token from a bucket. It returns nil if there was one.
func (l *limiter) take(key string, limit Limit, reason string, now time.Time) *refusal {
	wait, refused := l.buckets.Take(key, limit, now)
	if wait == 0 {
		return nil
	}
	return &refusal{reason: reason, after: spread(wait), first: refused == 1}
}

// spread returns a random delay between wait and twice wait, with wait at least a second, so that
// callers that are refused at the same time do not retry together.
func spread(wait time.Duration) time.Duration {
	wait = max(wait, time.Second)
	return wait + rand.N(wait)
}
