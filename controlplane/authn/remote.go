// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package authn

import (
	"bytes"
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
)

const (
	defaultRefresh    = 20 * time.Minute
	defaultMinRefresh = 10 * time.Second
	defaultMaxStale   = 24 * time.Hour
	defaultWait       = 5 * time.Second
	// Minimum and maximum delay after a failed fetch.
	firstRetry, maxRetry = time.Second, time.Minute
)

// remoteKeys are keys fetched from a URL. The goroutine of run fetches them; calls only request a
// fetch.
type remoteKeys struct {
	cfg     FetchConfig
	issuer  string
	fetch   func(context.Context) (*keySet, error)
	log     *slog.Logger
	metrics *Metrics
	// wake asks run for a fetch. Its capacity is one, which is enough for all callers.
	wake chan struct{}
	// first is closed by run once there are keys.
	first chan struct{}

	// mu guards the fields below.
	mu      sync.Mutex
	set     *keySet
	fetched time.Time     // last success
	started time.Time     // last attempt
	pending chan struct{} // closed at the end of the requested or running fetch; nil if there is none
}

func newRemoteKeys(cfg JWTConfig) (*remoteKeys, error) {
	f, err := newFetcher(cfg.Fetch, cfg.Issuer)
	if err != nil {
		return nil, err
	}
	if err := f.checkStart(cfg.JWKSURL, cfg.Issuer); err != nil {
		return nil, err
	}
	r := &remoteKeys{
		cfg: cfg.Fetch, issuer: cfg.Issuer, log: cfg.Logger, metrics: cfg.Metrics,
		wake: make(chan struct{}, 1), first: make(chan struct{}),
	}
	r.fetch = func(ctx context.Context) (*keySet, error) { return f.keys(ctx, cfg.JWKSURL, cfg.Issuer) }
	for _, d := range []struct {
		value *time.Duration
		zero  time.Duration
	}{
		{&r.cfg.Refresh, defaultRefresh},
		{&r.cfg.MinRefresh, defaultMinRefresh},
		{&r.cfg.MaxStale, defaultMaxStale},
		{&r.cfg.Wait, defaultWait},
	} {
		if *d.value <= 0 {
			*d.value = d.zero
		}
	}
	return r, nil
}

func (r *remoteKeys) current(ctx context.Context) (*keySet, error) {
	if err := r.waitForFirst(ctx); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if age := time.Since(r.fetched); age > r.cfg.MaxStale {
		return nil, cannotTell("jwt: the keys of issuer %s could not be fetched since %s", r.issuer, r.fetched.UTC().Format(time.RFC3339))
	}
	return r.set, nil
}

func (r *remoteKeys) waitForFirst(ctx context.Context) error {
	select {
	case <-r.first:
		return nil
	default:
	}
	wait := time.NewTimer(r.cfg.Wait)
	defer wait.Stop()
	// Cases: the first keys were fetched; the call ended; the wait time is over.
	select {
	case <-r.first:
		return nil
	case <-ctx.Done():
	case <-wait.C:
	}
	return cannotTell("jwt: the keys of issuer %s could not be fetched yet", r.issuer)
}

func (r *remoteKeys) newer(ctx context.Context, have *keySet) *keySet {
	set, pending := r.ask(have)
	if pending == nil {
		return set
	}
	wait := time.NewTimer(r.cfg.Wait)
	defer wait.Stop()
	// Cases: the fetch ended; the call ended; the wait time is over.
	select {
	case <-pending:
	case <-ctx.Done():
		return nil
	case <-wait.C:
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.set == have {
		return nil
	}
	return r.set
}

// ask returns newer keys if there are any, otherwise a channel that is closed at the end of a
// fetch. It returns neither if the last fetch was too recent.
func (r *remoteKeys) ask(have *keySet) (*keySet, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.set != have {
		return r.set, nil
	}
	if r.pending == nil {
		if time.Since(r.started) < r.cfg.MinRefresh {
			return nil, nil
		}
		r.pending = make(chan struct{})
		select {
		case r.wake <- struct{}{}:
		default: // a fetch is already requested
		}
	}
	return nil, r.pending
}

func (r *remoteKeys) run(ctx context.Context) error {
	retry := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(firstRetry), backoff.WithMaxInterval(maxRetry), backoff.WithMaxElapsedTime(0))
	for {
		r.begin()
		set, err := r.fetch(ctx)
		if ctx.Err() != nil {
			return nil
		}
		r.end(set, err)
		pause := r.cfg.Refresh - rand.N(r.cfg.Refresh/5+1) // jitter, because many control planes may start at once
		if err != nil {
			pause = min(retry.NextBackOff(), pause)
		} else {
			retry.Reset()
		}
		timer := time.NewTimer(pause)
		// Cases: ctx is done; it is time to fetch; a token is signed with an unknown key.
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		case <-r.wake:
			timer.Stop()
		}
	}
}

func (r *remoteKeys) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.started = time.Now()
	if r.pending == nil {
		r.pending = make(chan struct{})
	}
	select {
	case <-r.wake: // this fetch serves the pending request
	default:
	}
}

// end records the result of a fetch and notifies the waiting calls.
func (r *remoteKeys) end(set *keySet, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.pending)
	r.pending = nil
	r.metrics.fetched(r.issuer, err)
	if err != nil {
		if r.set == nil {
			r.log.Warn("the keys of an issuer of tokens cannot be fetched; its tokens are refused until they are", "source", r.issuer, "err", err)
		} else {
			r.log.Warn("the keys of an issuer of tokens cannot be fetched; those of before stay in force", "source", r.issuer, "err", err,
				"expires", r.fetched.Add(r.cfg.MaxStale).UTC().Format(time.RFC3339))
		}
		return
	}
	r.fetched = time.Now()
	switch {
	case r.set == nil:
		r.set = set
		close(r.first)
	case !bytes.Equal(r.set.text, set.text):
		r.set = set
		r.log.Info("fetched the changed keys of an issuer of tokens", "source", r.issuer, "count", len(set.keys))
	}
}
