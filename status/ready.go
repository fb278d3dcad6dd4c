// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package status

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"
)

const (
	// readyTimeout limits one check: the kubelet waits for at least a second.
	readyTimeout = 800 * time.Millisecond
	// readyPatience is how long consecutive checks may time out while the last
	// answer is used instead.
	readyPatience = 10 * time.Second
	// readyMemory is the maximum age of that answer: kubelets probe every few
	// seconds, and at least once a minute.
	readyMemory = time.Minute
)

func (s *Server) serveReady(w http.ResponseWriter, r *http.Request) {
	if s.cfg.Draining != nil && s.cfg.Draining() {
		answer(w, http.StatusServiceUnavailable, "draining")
		return
	}
	code, text := http.StatusOK, "ready"
	if err := s.ready.check(r.Context()); err != nil {
		code, text = http.StatusServiceUnavailable, err.Error()
	}
	if s.cfg.Notes != nil {
		text = strings.Join(append([]string{text}, s.cfg.Notes()...), "\n")
	}
	answer(w, code, text)
}

// readiness checks whether the proxy is ready, once for all concurrent callers.
type readiness struct {
	ask   func(context.Context) error
	first func() // called when it is ready for the first time

	mu      sync.Mutex // guards the fields below
	current *check
	last    error     // the last answer that was no timeout
	lastAt  time.Time // time of that answer; zero if there was none
	silent  time.Time // since when checks time out; zero if they do not
	fresh   time.Time // until when the last answer is reused
	wasOnce bool      // it was ready once
}

// check is a running check. err may be read once done is closed.
type check struct {
	done chan struct{}
	err  error
}

func (r *readiness) check(ctx context.Context) error {
	r.mu.Lock()
	if r.current == nil && time.Now().Before(r.fresh) {
		defer r.mu.Unlock()
		return r.last
	}
	c := r.current
	if c == nil {
		c = &check{done: make(chan struct{})}
		r.current = c
		r.mu.Unlock()
		// The check serves all callers: the cancellation of the first must not fail it.
		r.run(context.WithoutCancel(ctx), c)
		return c.err
	}
	r.mu.Unlock()
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (r *readiness) run(ctx context.Context, c *check) {
	// If the function panics, waiting callers receive this error.
	c.err = errors.New("the readiness check ended without an answer")
	defer func() {
		r.mu.Lock()
		r.current = nil
		r.mu.Unlock()
		close(c.done)
	}()
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	begun := time.Now()
	err := r.ask(ctx)

	r.mu.Lock()
	defer r.mu.Unlock()
	if errors.Is(err, context.DeadlineExceeded) {
		// Envoy's main thread is busy, most likely with new configuration, while
		// its workers keep serving. After readyPatience it counts as not ready.
		if r.silent.IsZero() {
			r.silent = begun
		}
		if !r.lastAt.IsZero() && time.Since(r.lastAt) <= readyMemory && time.Since(r.silent) <= readyPatience {
			c.err = r.last
			return
		}
		c.err = errors.New("envoy did not answer within " + readyTimeout.String() + ": " + err.Error())
		return
	}
	c.err, r.last, r.lastAt, r.silent = err, err, time.Now(), time.Time{}
	// The answer is reused for as long as the check took, so that frequent callers
	// use at most half of the time of Envoy's main thread.
	r.fresh = r.lastAt.Add(r.lastAt.Sub(begun))
	if err == nil && !r.wasOnce {
		r.wasOnce = true
		r.first()
	}
}
