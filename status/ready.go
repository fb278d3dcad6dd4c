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
	// readyTimeout bounds one check: the kubelet waits for a second at the least.
	readyTimeout = 800 * time.Millisecond
	// readyPatience is for how long checks may time out, one after the other,
	// while the last answer is used instead.
	readyPatience = 10 * time.Second
	// readyMemory is how old that answer may be: kubelets ask every few seconds,
	// and once a minute at the least.
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

// readiness asks whether the proxy is ready, once for all who ask at the same time.
type readiness struct {
	ask   func(context.Context) error
	first func() // called the first time that the answer is yes

	mu      sync.Mutex // guards what follows
	current *check
	last    error     // the newest answer that did not time out
	lastAt  time.Time // when it was given; zero: never
	silent  time.Time // since when checks time out; zero: they do not
	fresh   time.Time // until when the newest answer is given again
	wasOnce bool      // it was ready once
}

// check is one check. err may be read once done is closed.
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
		// The first caller asks for all: that they go away must not fail the others.
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
	// Should the function panic, those who wait get this.
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
		// Envoy's main thread is busy, most likely with new configuration: what it
		// serves goes on. One that never answers again is another matter.
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
	// The answer is reused for as long as it took to get, so that frequent callers
	// take at most half of the time of Envoy's main thread.
	r.fresh = r.lastAt.Add(r.lastAt.Sub(begun))
	if err == nil && !r.wasOnce {
		r.wasOnce = true
		r.first()
	}
}
