// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package lastgood

import (
	"math"
	"slices"
	"time"
)

// due commits what is due, and says when to look again.
func (w *worker) due(now time.Time) (time.Duration, error) {
	r := w.active
	if r == nil {
		return math.MaxInt64, nil
	}
	var at time.Time
	if r.busy() {
		if at = r.last.Add(quiet); at.After(r.first.Add(longest)) {
			at = r.first.Add(longest)
		}
	} else if len(w.sets()) == 0 {
		return math.MaxInt64, nil // nothing that could be confirmed
	} else {
		at = w.store.From().Add(touchEvery)
		if at.After(now.Add(touchEvery)) {
			at = now // the clock was set back
		}
	}
	if wait := at.Sub(now); wait > 0 {
		return wait, nil
	}
	if !r.settled(now, w.sets(), false) {
		return lookAgain, nil
	}
	if err := w.unlessDamaged(r, w.commit(r, now)); err != nil {
		return 0, err
	}
	w.compact()
	return touchEvery, nil
}

// commit makes what Envoy acknowledged on a stream count.
func (w *worker) commit(r *Recording, now time.Time) error {
	if err := w.open(); err != nil {
		return err
	}
	start := w.log.size
	c, changes, err := w.gather(r, now)
	if err == nil {
		err = w.log.commit(c, changes)
	}
	if err != nil {
		w.log.rollback(start)
		return err
	}
	for _, t := range r.types {
		t.committed()
	}
	r.first = time.Time{}
	w.store.mu.Lock()
	first := w.store.from.IsZero()
	w.store.from = w.log.from
	w.store.mu.Unlock()
	w.store.metrics.bytes.Set(float64(w.log.size))
	if w.failing {
		w.failing = false
		w.retry.Reset()
		w.store.log.Info("the last good configuration can be kept again")
	}
	if first {
		w.store.log.Info("envoy can start without the control plane from now on", "path", w.log.path)
	}
	return nil
}

// gather writes what belongs to a commit, beside what is written already.
func (w *worker) gather(r *Recording, now time.Time) (commit, [][]change, error) {
	c := commit{time: now.UnixNano()}
	var changes [][]change
	add := func(typeURL string, b *batch, flags byte) {
		c.batches = append(c.batches, batchRef{batch: b.id, typeURL: typeURL, flags: flags})
		changes = append(changes, b.changes)
	}
	drop := func(typeURL string, keys []key, flags byte) error {
		if len(keys) == 0 && flags == 0 {
			return nil
		}
		b := &batch{id: w.log.batch + 1}
		err := w.mark(b, mark{drop: keys})
		add(typeURL, b, flags)
		return err
	}
	for _, typeURL := range sortedKeys(r.types) {
		t := r.types[typeURL]
		if err := drop(typeURL, t.drops, 0); err != nil {
			return c, nil, err
		}
		for i, b := range t.accepted {
			add(typeURL, b, t.flags[i])
		}
		if err := drop(typeURL, t.unasked(w.log.sets[typeURL]), 0); err != nil {
			return c, nil, err
		}
	}
	if t := r.types[clusterType]; t != nil && t.fresh {
		// A new Envoy asked for all that it needs.
		for _, typeURL := range sortedKeys(w.log.sets) {
			if r.types[typeURL] != nil {
				continue
			}
			if err := drop(typeURL, nil, flagForget); err != nil {
				return c, nil, err
			}
		}
	}
	return c, changes, nil
}

// unasked returns what is kept, or is about to be, and Envoy does not ask for.
func (t *subscription) unasked(kept set) (keys []key) {
	if !t.full {
		return nil
	}
	for k := range kept {
		if !t.covers(k) {
			keys = append(keys, k)
		}
	}
	for _, b := range t.accepted {
		for _, c := range b.changes {
			if c.op == opPut && !t.covers(c.key) {
				keys = append(keys, c.key)
			}
		}
	}
	return keys
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// compact writes the file anew if most of it is of no use anymore.
func (w *worker) compact() {
	if w.log == nil || !w.log.wasteful() {
		return
	}
	l, err := w.store.newLog(&w.log.state)
	if err != nil {
		w.log.compactAt = 2 * w.log.size
		w.store.log.Warn("the file with the last good configuration cannot be written anew and grows", "path", w.log.path, "err", err)
		return
	}
	w.log.discard()
	w.log = l
	w.store.metrics.bytes.Set(float64(l.size))
}

// commitAtEnd commits when a stream ends, or the agent.
func (w *worker) commitAtEnd(r *Recording, now time.Time) error {
	stale := now.Sub(w.store.From()) >= time.Minute
	if w.active != r || !r.busy() && (!stale || len(w.sets()) == 0) || !r.settled(now, w.sets(), true) {
		return nil
	}
	return w.commit(r, now)
}

// finish does what can be done at the end.
func (w *worker) finish(now time.Time) {
	for {
		it, ok := w.store.peek()
		if !ok {
			break
		}
		if err := w.handle(it, now); err != nil {
			w.store.log.Warn("what envoy acknowledged last is not kept", "err", err)
			return
		}
		w.store.done()
	}
	if r := w.active; r != nil {
		if err := w.commitAtEnd(r, now); err != nil {
			w.store.log.Warn("what envoy acknowledged last is not kept", "err", err)
		}
	}
}

// end closes what is open.
func (w *worker) end() {
	w.dropFound()
	if w.log != nil {
		w.log.discard()
	}
	if w.locked != nil {
		_ = w.locked.Close() // that is what lets go of it
	}
}
