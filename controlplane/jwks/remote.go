// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package jwks

import (
	"context"
	"fmt"
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
	// minAge is the shortest time for which keys are reused, whatever the server says.
	minAge = time.Minute
	// Minimum and maximum delay after a failed fetch.
	firstRetry, maxRetry = time.Second, time.Minute
)

// RemoteConfig configures a [Remote].
type RemoteConfig struct {
	FetchConfig
	Source
	// Refresh is the interval for fetching keys; zero means 20 minutes. It is shorter if the server
	// says that the keys may be reused for a shorter time, but not below a minute.
	Refresh time.Duration
	// MinRefresh is the minimum interval between fetches that Newer causes; zero means 10 s.
	MinRefresh time.Duration
	// MaxStale is how long keys remain trusted while they cannot be fetched again; zero means 24
	// hours, negative forever.
	MaxStale time.Duration
	// Wait limits how long Current and Newer wait for a fetch; zero means 5 s.
	Wait time.Duration
	// Set is an earlier result, to start with; nil means none.
	Set *Set
	// Slot waits until a fetch may begin, and returns a function to be called at its end. A nil Slot
	// does not wait.
	Slot func(context.Context) (release func(), err error)
	// Observe is called after each fetch with its result; nil calls nothing.
	Observe func(*Set, error)
	Logger  *slog.Logger
}

// Remote follows the keys of one issuer. The goroutine of Run fetches them; calls only request a
// fetch.
type Remote struct {
	cfg   RemoteConfig
	fetch func(context.Context) (*fetched, error)
	log   *slog.Logger
	// wake asks Run for a fetch. Its capacity is one, which is enough for all callers.
	wake chan struct{}
	// first is closed once there are keys.
	first chan struct{}

	// mu guards the fields below.
	mu      sync.Mutex
	set     *Set
	fetched time.Time     // last success
	started time.Time     // last attempt
	failure string        // error of the last attempt; empty if it succeeded
	pending chan struct{} // closed at the end of the requested or running fetch; nil if there is none
}

// NewRemote returns a Remote that has not fetched yet. It returns an error if the source is not a
// URL that may be requested.
func NewRemote(cfg RemoteConfig) (*Remote, error) {
	f, err := newFetcher(cfg.FetchConfig, cfg.Source)
	if err != nil {
		return nil, err
	}
	r := &Remote{cfg: cfg, fetch: f.fetch, log: cfg.Logger, wake: make(chan struct{}, 1), first: make(chan struct{}), set: cfg.Set}
	if r.set != nil {
		close(r.first)
	}
	for _, d := range []struct {
		value *time.Duration
		zero  time.Duration
	}{
		{&r.cfg.Refresh, defaultRefresh},
		{&r.cfg.MinRefresh, defaultMinRefresh},
		{&r.cfg.MaxStale, defaultMaxStale},
		{&r.cfg.Wait, defaultWait},
	} {
		if *d.value == 0 {
			*d.value = d.zero
		}
	}
	return r, nil
}

// Current returns the latest keys. It waits for the first ones for a limited time.
func (r *Remote) Current(ctx context.Context) (*Set, error) {
	if err := r.waitForFirst(ctx); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if age := time.Since(r.fetched); r.cfg.MaxStale > 0 && age > r.cfg.MaxStale {
		return nil, fmt.Errorf("the keys of issuer %s could not be fetched since %s", r.cfg.Source, r.fetched.UTC().Format(time.RFC3339))
	}
	return r.set, nil
}

func (r *Remote) waitForFirst(ctx context.Context) error {
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
	return fmt.Errorf("the keys of issuer %s could not be fetched yet", r.cfg.Source)
}

// Until returns until when the keys are trusted if they cannot be fetched again, and how long that is after
// a fetch. It returns zero if there are none, or no such limit.
func (r *Remote) Until() (time.Time, time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.set == nil || r.cfg.MaxStale < 0 {
		return time.Time{}, 0
	}
	return r.fetched.Add(r.cfg.MaxStale), r.cfg.MaxStale
}

// Newer returns keys that are newer than those in have, or nil if there are none. It may cause a fetch
// and wait for it for a limited time.
func (r *Remote) Newer(ctx context.Context, have *Set) *Set {
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

// Refresh causes a fetch unless the last one was too recent. It does not wait.
func (r *Remote) Refresh() {
	r.mu.Lock()
	have := r.set
	r.mu.Unlock()
	r.ask(have)
}

// ask returns newer keys if there are any, otherwise a channel that is closed at the end of a
// fetch. It returns neither if the last fetch was too recent.
func (r *Remote) ask(have *Set) (*Set, <-chan struct{}) {
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

// Run fetches the keys until ctx is done.
func (r *Remote) Run(ctx context.Context) error {
	retry := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(firstRetry), backoff.WithMaxInterval(maxRetry), backoff.WithMaxElapsedTime(0))
	for {
		got, err := r.attempt(ctx)
		if ctx.Err() != nil {
			return nil
		}
		pause := r.pause(got)
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

// pause returns the time until the next fetch. It has jitter, because many control planes may start
// at once.
func (r *Remote) pause(got *fetched) time.Duration {
	pause := r.cfg.Refresh
	if got != nil && got.maxAge > 0 {
		pause = min(pause, max(minAge, got.maxAge))
	}
	return pause - rand.N(pause/5+1)
}

// attempt fetches the keys once.
func (r *Remote) attempt(ctx context.Context) (*fetched, error) {
	if r.cfg.Slot != nil {
		release, err := r.cfg.Slot(ctx)
		if err != nil {
			return nil, err
		}
		defer release()
	}
	r.begin()
	got, err := r.fetch(ctx)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	var set *Set
	if err == nil {
		set = got.set
	}
	r.end(set, err)
	if r.cfg.Observe != nil {
		r.cfg.Observe(set, err)
	}
	return got, err
}

func (r *Remote) begin() {
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
func (r *Remote) end(set *Set, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.pending)
	r.pending = nil
	if err != nil {
		if failure := err.Error(); failure != r.failure {
			r.failure = failure
			r.logFailure(err)
		}
		return
	}
	if r.failure != "" {
		r.failure = ""
		r.log.Info("the keys of an issuer of tokens can be fetched again", "source", r.cfg.String())
	}
	r.fetched = time.Now()
	switch {
	case r.set == nil:
		r.set = set
		close(r.first)
	case r.set.Sum != set.Sum:
		r.set = set
		r.log.Info("fetched the changed keys of an issuer of tokens", "source", r.cfg.String(), "count", len(set.Keys))
	}
}

// logFailure logs that the keys cannot be fetched. The caller holds mu.
func (r *Remote) logFailure(err error) {
	switch {
	case r.set == nil:
		r.log.Warn("the keys of an issuer of tokens cannot be fetched; its tokens are refused until they are", "source", r.cfg.String(), "err", err)
	case r.cfg.MaxStale > 0:
		r.log.Warn("the keys of an issuer of tokens cannot be fetched; the previous ones stay in force", "source", r.cfg.String(), "err", err,
			"expires", r.fetched.Add(r.cfg.MaxStale).UTC().Format(time.RFC3339))
	default:
		r.log.Warn("the keys of an issuer of tokens cannot be fetched; the previous ones stay in force", "source", r.cfg.String(), "err", err)
	}
}
