// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package lastgood

import (
	"context"
	"errors"
	"math"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v4"
)

const (
	// quiet is how long a stream has to be quiet before what Envoy
	// acknowledged is committed, unless it waits for longest.
	quiet   = time.Second
	longest = 10 * time.Second
	// touchEvery is how often a quiet stream confirms what is kept.
	touchEvery = 5 * time.Minute
	// lookAgain is the pause while a stream is not settled.
	lookAgain = 2 * time.Second

	firstRetry = time.Second // after something could not be written
	lastRetry  = time.Minute
)

// Run writes until ctx ends, and returns nil then.
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
			pause, wake = w.failed(err), nil // whatever comes has to wait
		}
		timer.Reset(pause)
		// Cases: the end, something to do, the time for a commit or another try.
		select {
		case <-ctx.Done():
			w.finish(time.Now())
			return nil
		case <-wake:
		case <-timer.C:
		}
	}
}

// worker is the one writer.
type worker struct {
	store   *Store
	found   *state     // of an earlier process, until there is a log
	log     *log       // nil before the first write
	locked  closer     // held while there is a log
	active  *Recording // the stream that counts
	retry   *backoff.ExponentialBackOff
	failing bool
}

type closer interface{ Close() error }

func newWorker(s *Store) *worker {
	w := &worker{store: s, found: s.found, retry: backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(firstRetry), backoff.WithMaxInterval(lastRetry), backoff.WithMaxElapsedTime(0))}
	s.found = nil
	return w
}

// work does what is in the queue, commits what is due and says when to come
// back. After an error the same has to be tried again.
func (w *worker) work(now time.Time) (time.Duration, error) {
	for {
		it, ok := w.store.peek()
		if !ok {
			break
		}
		if err := w.unlessDamaged(it.rec, w.handle(it, now)); err != nil {
			return 0, err
		}
		w.store.done()
	}
	return w.due(now)
}

// unlessDamaged passes on an error after which the same can be tried again.
// If the file is not what was written, the recording ends.
func (w *worker) unlessDamaged(r *Recording, err error) error {
	if err == nil || reasonOf(err) != reasonDamaged {
		return err
	}
	if w.log != nil {
		w.log.discard()
		w.log = nil
	}
	if !r.over.Load() {
		w.lose(r, err)
	}
	return nil
}

// failed tells the first of several failures and says when to try again.
func (w *worker) failed(err error) time.Duration {
	if !w.failing {
		w.failing = true
		w.store.metrics.refused.WithLabelValues(reasonOf(err)).Inc()
		w.store.log.Warn("the last good configuration cannot be kept up to date, it is tried again", "reason", reasonOf(err), "err", err)
	}
	return w.retry.NextBackOff()
}

func (w *worker) handle(it item, now time.Time) error {
	r := it.rec
	if r.over.Load() {
		return nil
	}
	switch it.kind {
	case itemResponse:
		return w.response(r, it, now)
	case itemRequest:
		return w.request(r, it, now)
	case itemGap:
		w.gap(r, now)
	case itemClose:
		err := w.commitAtEnd(r, now)
		w.forget(r)
		if err != nil {
			w.store.log.Debug("what envoy acknowledged last is not kept", "err", err)
		}
	}
	return nil
}

// forget ends a recording.
func (w *worker) forget(r *Recording) {
	r.over.Store(true)
	r.types = nil
	if w.active == r {
		w.active = nil
	}
}

// lose ends a recording that does not know anymore what Envoy has.
func (w *worker) lose(r *Recording, err error) {
	w.store.metrics.refused.WithLabelValues(reasonOf(err)).Inc()
	w.store.log.Warn("nothing more of this stream is kept, the last good configuration stays what it was", "reason", err.Error())
	w.forget(r)
}

// gap notes that something of a stream was dropped.
func (w *worker) gap(r *Recording, now time.Time) {
	if r.delta {
		w.lose(r, refuse(reasonBacklog, "the disk was too slow, and changes were dropped"))
		return
	}
	w.store.metrics.refused.WithLabelValues(reasonBacklog).Inc()
	w.store.log.Warn("the disk was too slow, the last good configuration waits until each type was sent again")
	for _, t := range r.types {
		t.reset(now)
	}
}

// recorded says whether a type is kept.
func (w *worker) recorded(typeURL string) bool {
	return agents(typeURL) || strings.HasPrefix(typeURL, envoyPrefix) && (typeURL != secretType || w.store.cfg.Secrets)
}

// sets returns what is kept.
func (w *worker) sets() map[string]set {
	switch {
	case w.log != nil:
		return w.log.sets
	case w.found != nil:
		return w.found.sets
	}
	return nil
}

// request follows what Envoy asks for and answers.
func (w *worker) request(r *Recording, it item, now time.Time) error {
	q, err := readRequest(it.frame, r.delta)
	if err != nil || !w.recorded(q.typeURL) {
		return nil // the control plane judges
	}
	if old := w.active; old != r {
		if w.active = r; old != nil {
			w.forget(old) // a newer Envoy takes its place
		}
	}
	kept := w.sets()[q.typeURL]
	t := r.types[q.typeURL]
	if t == nil {
		t = begin(q, r.delta, kept, now)
		if r.types == nil {
			r.types = map[string]*subscription{}
		}
		r.types[q.typeURL] = t
		q.nonce = ""
	}
	var rest *batch // of a rejected response
	before, b := t.answer(q.nonce)
	if b != nil && q.rejected != "" {
		switch {
		case partly(q.rejected):
			if rest, err = w.without(b, t, q.rejected); err != nil {
				t.out = append(append(before, b), t.out...)
				return err
			}
		case r.delta && t.fresh && !t.full && !agents(t.typeURL):
			w.lose(r, refuse(reasonStep, "envoy rejects the first response of %s", q.typeURL))
			return nil
		default:
			b = nil // Envoy keeps what it had
		}
	}
	t.subscribe(q, r.delta, kept, now)
	if b == nil && len(before) == 0 {
		return nil
	}
	for _, b := range append(before, b, rest) {
		if b != nil {
			t.accept(b, r.delta)
		}
	}
	r.touched(now)
	return nil
}

// touched notes that a stream is busy.
func (r *Recording) touched(now time.Time) {
	if !r.busy() {
		r.first = time.Time{}
	} else if r.first.IsZero() {
		r.first = now
	}
	r.last = now
}

// without makes the batch that takes back what Envoy rejected of another one:
// it keeps the older version of that, or has nothing.
func (w *worker) without(b *batch, t *subscription, reason string) (*batch, error) {
	start := w.log.size
	undo := &batch{id: w.log.batch + 1, merge: true}
	var buf buffers
	var drop mark
	for _, c := range b.changes {
		if c.op != opPut {
			continue
		}
		p, err := w.log.readPut(&buf, c.loc)
		if err != nil {
			return nil, err
		}
		if !names(reason, p.name) {
			continue
		}
		old, ok := w.log.sets[t.typeURL][c.key]
		if !ok {
			drop.drop = append(drop.drop, c.key)
			continue
		}
		if p, err = w.log.readPut(&buf, old); err == nil {
			var at loc
			if at, err = w.log.put(p, undo.id); err == nil {
				undo.changes = append(undo.changes, change{c.key, opPut, at})
			}
		}
		if err != nil {
			w.log.rollback(start)
			return nil, err
		}
	}
	if err := w.mark(undo, drop); err != nil {
		w.log.rollback(start)
		return nil, err
	}
	return undo, nil
}

// mark writes what a batch does beside its resources, and ends the batch.
func (w *worker) mark(b *batch, m mark) error {
	m.batch = b.id
	if len(m.keep)+len(m.drop) > 0 {
		if _, err := w.log.append(m.append(nil)); err != nil {
			return err
		}
		b.changes = append(b.changes, m.changes()...)
	}
	if err := w.log.flush(); err != nil {
		return err
	}
	w.log.batch = b.id
	return nil
}

// response writes what Envoy is sent.
func (w *worker) response(r *Recording, it item, now time.Time) error {
	r.heard = true
	h, err := readHead(it.frame, r.delta)
	t := r.types[h.typeURL]
	if err != nil || t == nil {
		return nil // of no type that Envoy asked for and that is kept
	}
	if err := w.open(); err != nil {
		return err
	}
	start := w.log.size
	b, err := w.write(r, t, h, it)
	switch {
	case errors.Is(err, errMalformed):
		w.log.rollback(start)
		return nil // Envoy does not take it either
	case err != nil:
		w.log.rollback(start)
		return err
	case w.log.size > w.store.cfg.MaxBytes:
		w.log.rollback(start)
		w.lose(r, refuse(reasonSize, "the configuration needs more than %d bytes", w.store.cfg.MaxBytes))
		return nil
	}
	t.out = append(t.out, b)
	r.touched(now)
	return nil
}

// open makes the log.
func (w *worker) open() error {
	if w.log != nil {
		return nil
	}
	dir := w.store.cfg.Dir
	if w.locked == nil {
		f, err := lock(dir)
		if err != nil {
			return err
		}
		w.locked = f
		removeTemporary(dir)
	}
	l, err := w.store.newLog(w.found)
	if err != nil {
		if reasonOf(err) == reasonDamaged {
			w.dropFound() // what cannot be read is no beginning
		}
		return err
	}
	w.dropFound()
	w.log = l
	return nil
}

func (w *worker) dropFound() {
	if w.found != nil {
		_ = w.found.file.Close() // it was only read from
		w.found = nil
	}
}

// write appends a response as a batch.
func (w *worker) write(r *Recording, t *subscription, h head, it item) (*batch, error) {
	b := &batch{id: w.log.batch + 1, nonce: h.nonce}
	kept := w.log.sets[t.typeURL]
	// What waits for a commit may have changed what is kept.
	same := len(t.out) == 0 && !t.busy()
	var m mark
	err := eachResource(it.frame, r.delta, h, func(res *resource) error {
		p := &put{typeURL: t.typeURL, name: res.name, version: digest([]byte(res.version)), body: res.body}
		if res.name == "" && !agents(t.typeURL) || agents(t.typeURL) && len(b.changes)+len(m.keep) > 0 {
			return nil // it cannot be asked for, or the agent does not go by it
		}
		if !r.delta {
			p.version = 0 // it is of the response, not of the resource
		}
		if private(p.body) {
			p.flags = flagPrivate
			if !w.store.cfg.Secrets {
				p.flags, p.body = flagWithheld, nil
				w.store.log.Warn("a resource has a private key in it and is not kept", "type_url", t.typeURL, "resource", res.name)
			}
		}
		k := keyOf(p.name)
		if l, ok := kept[k]; ok && same && l.version == p.version && l.sum == p.sum() {
			m.keep = append(m.keep, k)
			return nil
		}
		at, err := w.log.put(p, b.id)
		b.changes = append(b.changes, change{k, opPut, at})
		return err
	})
	if err != nil {
		return nil, err
	}
	if agents(t.typeURL) {
		h.removed = nil // the agent goes on with what it has
	}
	for _, name := range h.removed {
		m.drop = append(m.drop, keyOf(name))
	}
	return b, w.mark(b, m)
}
