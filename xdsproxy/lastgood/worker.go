// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package lastgood

import (
	"context"
	"errors"
	"math"
	"os"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/outrigger-mesh/outrigger/internal/durable"
)

const (
	// quiet is how long a stream must be quiet before a snapshot is written. longest limits how
	// long a change waits.
	quiet   = time.Second
	longest = 10 * time.Second
	// writeRate limits the rate at which snapshots are written, in bytes per second: while the
	// configuration changes continuously, a large one is written less often.
	writeRate = 128 << 10
	// confirmEvery is the interval at which a quiet stream confirms the snapshot.
	confirmEvery = 5 * time.Minute
	// lookAgain is the polling interval while a stream is not settled.
	lookAgain = 2 * time.Second

	firstRetry = time.Second // after a write error
	lastRetry  = time.Minute
)

// Run writes snapshots until ctx is done, and returns nil.
func (s *Store) Run(ctx context.Context) error {
	if s.off != nil {
		<-ctx.Done()
		return nil
	}
	w := newWorker(s)
	defer w.end()
	timer := time.NewTimer(math.MaxInt64)
	defer timer.Stop()
	for {
		pause, err := w.work(time.Now())
		wake := s.wake
		if err != nil {
			pause, wake = w.failed(err), nil // new events have to wait
		}
		timer.Reset(pause)
		// Events: shutdown; new events; time for a snapshot or a retry.
		select {
		case <-ctx.Done():
			w.finish(time.Now())
			return nil
		case <-wake:
		case <-timer.C:
		}
	}
}

// worker is the only writer.
type worker struct {
	store   *Store
	saved   *snapshot // nil if there is none
	spool   *spool    // nil if there are no changes
	lock    *os.File  // nil before the first write
	active  *Recording
	written time.Time // time of the last snapshot
	retry   *backoff.ExponentialBackOff
	failing bool
}

func newWorker(s *Store) *worker {
	w := &worker{store: s, saved: s.found, retry: backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(firstRetry), backoff.WithMaxInterval(lastRetry), backoff.WithMaxElapsedTime(0))}
	s.found = nil
	return w
}

// work processes the queue, writes a snapshot if one is due, and returns the time until the next
// call. After an error, the same work must be repeated.
func (w *worker) work(now time.Time) (time.Duration, error) {
	for {
		e, ok := w.store.peek()
		if !ok {
			return w.due(now)
		}
		if err := w.handle(e, now); err != nil {
			return 0, err
		}
		w.store.done()
	}
}

// failed logs the first of consecutive failures and returns the delay until the next attempt.
func (w *worker) failed(err error) time.Duration {
	if !w.failing {
		w.failing = true
		w.store.metrics.refused.WithLabelValues(reasonOf(err)).Inc()
		w.store.log.Warn("the last good configuration cannot be updated; retrying", "reason", reasonOf(err), "err", err)
	}
	return w.retry.NextBackOff()
}

func (w *worker) handle(e event, now time.Time) error {
	r := e.rec
	if r.over.Load() {
		return nil
	}
	switch e.kind {
	case eventResponse:
		return w.response(r, e, now)
	case eventRequest:
		w.request(r, e, now)
	case eventGap:
		w.gap(r, now)
	case eventClose:
		w.saveAtEnd(r, now)
		w.forget(r)
	}
	return nil
}

// forget ends a recording and drops its pending changes.
func (w *worker) forget(r *Recording) {
	r.over.Store(true)
	r.types = nil
	if w.active == r {
		w.active = nil
		w.closeSpool()
	}
}

// lose ends a recording because Envoy's state is unknown.
func (w *worker) lose(r *Recording, err error) {
	w.store.metrics.refused.WithLabelValues(reasonOf(err)).Inc()
	w.store.log.Warn("no more of this stream is recorded; the last good configuration is unchanged", "reason", err.Error())
	w.forget(r)
}

// gap handles dropped events of a stream.
func (w *worker) gap(r *Recording, now time.Time) {
	if r.delta {
		w.lose(r, refuse(reasonBacklog, "the disk was too slow, and changes were dropped"))
		return
	}
	w.store.metrics.refused.WithLabelValues(reasonBacklog).Inc()
	w.store.log.Warn("the disk was too slow; the last good configuration is stored once each type was sent again")
	for _, t := range r.types {
		t.reset(now)
	}
}

// recorded reports whether a type is stored.
func (w *worker) recorded(typeURL string) bool {
	return agents(typeURL) || strings.HasPrefix(typeURL, envoyPrefix) && (typeURL != secretType || w.store.cfg.Secrets)
}

// request handles a request from Envoy.
func (w *worker) request(r *Recording, e event, now time.Time) {
	q, err := readRequest(e.frame, r.delta)
	if err != nil || !w.recorded(q.typeURL) {
		return // the control plane reports the error
	}
	if old := w.active; old != r {
		if old != nil {
			w.forget(old) // replaced by a newer Envoy
		}
		w.active = r
	}
	t := r.types[q.typeURL]
	if t == nil {
		t = begin(q, r.delta, w.saved, now)
		if r.types == nil {
			r.types = map[string]*subscription{}
		}
		r.types[q.typeURL] = t
		q.nonce = ""
	}
	before, b := t.answer(q.nonce)
	reason := ""
	if b != nil && q.rejected != "" {
		switch {
		case partly(q.rejected):
			reason = q.rejected
		case r.delta && t.fresh && !t.full && !agents(t.typeURL):
			w.lose(r, refuse(reasonStep, "envoy rejects the first response of %s", q.typeURL))
			return
		default:
			b = nil // Envoy keeps its previous resources
		}
	}
	t.subscribe(q, r.delta, now)
	for _, earlier := range before {
		t.accept(earlier, r.delta, "", w.saved)
	}
	if b != nil {
		t.accept(b, r.delta, reason, w.saved)
	}
	if b != nil || len(before) > 0 {
		r.touched(now)
	}
}

// response writes the resources of a response to Envoy to the spool.
func (w *worker) response(r *Recording, e event, now time.Time) error {
	r.heard = true
	h, err := readHead(e.frame, r.delta)
	t := r.types[h.typeURL]
	if err != nil || t == nil {
		return nil // Envoy does not subscribe to the type, or it is not stored
	}
	if w.spool == nil {
		if w.spool, err = w.store.newSpool(); err != nil {
			return err
		}
	}
	start := w.spool.size
	b, err := w.read(r.delta, t, h, e)
	if err == nil {
		err = w.spool.flush()
	}
	switch {
	case errors.Is(err, errMalformed):
		w.spool.rollback(start)
		return nil // Envoy does not accept it either
	case err != nil:
		if w.spool.rollback(start); start == 0 {
			w.closeSpool() // a new file may work
		}
		return err
	case w.spool.size > w.store.cfg.MaxBytes:
		w.lose(r, refuse(reasonSize, "the configuration needs more than %d bytes", w.store.cfg.MaxBytes))
		return nil
	}
	t.out = append(t.out, b)
	r.touched(now)
	return nil
}

// read converts a response to a batch.
func (w *worker) read(delta bool, t *subscription, h head, e event) (*batch, error) {
	b := &batch{nonce: h.nonce, changes: map[string]change{}}
	err := eachResource(e.frame, delta, h, func(in *received) error {
		if in.name == "" && !agents(t.typeURL) || agents(t.typeURL) && len(b.changes) > 0 {
			return nil // a nameless resource cannot be requested, or the agent ignores it
		}
		res := &resource{typeURL: t.typeURL, name: in.name, body: in.body}
		if delta { // otherwise the response has the version
			res.version = digest(in.version)
		}
		if private(res.body) {
			res.flags = flagPrivate
			if !w.store.cfg.Secrets {
				res.flags, res.body = flagWithheld, nil
				w.store.log.Warn("a resource contains a private key and is not stored", "type_url", t.typeURL, "resource", res.name)
			}
		}
		c := change{op: opKeep}
		var err error
		if !w.saved.same(res) {
			c, err = w.spool.put(res)
		}
		b.changes[res.name] = c
		return err
	})
	if !agents(t.typeURL) { // the agent keeps its resources
		for _, name := range h.removed {
			b.changes[name] = change{op: opDrop}
		}
	}
	return b, err
}

// saveAtEnd saves the state that Envoy has acknowledged at the end of a stream or of the agent.
func (w *worker) saveAtEnd(r *Recording, now time.Time) {
	stale := w.saved != nil && now.Sub(w.store.From()) >= time.Minute
	if w.active != r || !r.pending() && !stale || !r.settled(now, w.saved, true) {
		return
	}
	if err := w.save(r, now); err != nil {
		w.store.log.Warn("the configuration that envoy acknowledged last is not stored", "err", err)
	}
}

// finish processes the remaining events on shutdown.
func (w *worker) finish(now time.Time) {
	for {
		e, ok := w.store.peek()
		if !ok {
			break
		}
		if err := w.handle(e, now); err != nil {
			w.store.log.Warn("the configuration that envoy acknowledged last is not stored", "err", err)
			return
		}
		w.store.done()
	}
	if w.active != nil {
		w.saveAtEnd(w.active, now)
	}
}

// end closes the open files.
func (w *worker) end() {
	w.closeSpool()
	w.dropSaved()
	if w.lock != nil {
		_ = durable.Unlock(w.lock) // nothing was written; released at exit in any case
	}
}

func (w *worker) dropSaved() {
	if w.saved != nil {
		_ = w.saved.file.Close() // read-only: closing cannot lose data
		w.saved = nil
	}
}

func (w *worker) closeSpool() {
	if w.spool != nil {
		_ = w.spool.file.Close() // it is no longer needed
		w.spool = nil
	}
}
