// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package objectstatus

import (
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// phase is how far the last change of an object is.
type phase int

const (
	heard     phase = iota // in no snapshot yet
	building               // in the one that is being built
	published              // in the snapshots from a sequence on
)

// object is what is known of one object. The mutex of the Writer guards it.
type object struct {
	// config is what was last heard; nil for an object that the store does not
	// give, because it was never valid.
	config     *model.Config
	generation int64
	// epoch counts the changes.
	epoch    uint64
	phase    phase
	sequence uint64
	since    time.Time // of the snapshot
	// closed means that there is nothing more to say of its distribution.
	closed bool
	// own is the verdict on its distribution that this replica wrote or found;
	// foreign is one of another replica, and since when it is there.
	own, foreign verdict
	foreignSince time.Time
	// done is what was last written, and when.
	done    content
	written time.Time
	// attempts failed one after another; the next one is at retry.
	attempts int
	retry    time.Time
}

// hasStatus reports whether the status of a kind is Istio's.
func hasStatus(kind model.Kind) bool {
	sch, ok := schema.Of(kind)
	return ok && statusOf(&model.Config{Status: sch.NewStatus()}) != nil
}

// Effective reports whether an event can change what proxies get. One that
// changes the status alone, or what the store keeps for itself, cannot.
func Effective(e config.Event) bool {
	if e.Type != config.Updated {
		return true
	}
	return !config.SameContent(e.Old, e.New) || e.Old.APIVersion != e.New.APIVersion || e.Old.UID != e.New.UID || !e.Old.Created.Equal(e.New.Created)
}

// Hear takes events of the store, before a snapshot is built of what they tell.
func (w *Writer) Hear(events []config.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range events {
		key := e.Current().Key
		if !w.kinds[key.Kind] {
			continue
		}
		if e.Type == config.Deleted {
			w.forget(key)
			continue
		}
		o := w.objects[key]
		if o == nil {
			o = &object{}
			w.objects[key] = o
		}
		if o.config != nil && !Effective(e) {
			o.config = e.New
			continue
		}
		w.begin(o, e.New)
	}
}

func (w *Writer) forget(key model.Key) {
	delete(w.objects, key)
	delete(w.open, key)
	delete(w.dirty, key)
}

// begin starts with a new state of an object. The caller holds mu.
func (w *Writer) begin(o *object, c *model.Config) {
	o.config, o.generation = c, c.SpecGeneration()
	o.epoch++
	o.phase, o.attempts, o.retry = heard, 0, time.Time{}
	o.done.distribution, o.foreign = verdict{}, verdict{}
	before := said(c)
	o.own = before // even if another wrote it: a replica that starts again is no other one
	// What is in force stays so, whatever has been said of it since.
	o.closed = !w.inForce(c.Kind) || before.status == isTrue
	if o.closed {
		delete(w.open, c.Key)
	} else {
		w.open[c.Key] = o
	}
	w.dirty[c.Key] = true
}

// Building says that a snapshot is going to be built after a change: what was
// heard of before is in it.
func (w *Writer) Building(change model.Change) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.each(change, func(o *object) {
		if o.phase == heard {
			o.phase = building
		}
	})
}

// Published says that the snapshot was given to the proxies, and what it found
// wrong.
func (w *Writer) Published(sequence uint64, change model.Change, problems []model.Problem) {
	now := time.Now()
	w.mu.Lock()
	w.each(change, func(o *object) {
		if o.phase == building {
			o.phase, o.sequence, o.since = published, sequence, now
		}
	})
	w.found, w.ready = problems, true
	w.mu.Unlock()
	w.Wake()
}

// each calls for the objects of a change. The caller holds mu.
func (w *Writer) each(change model.Change, call func(*object)) {
	if change.All {
		for _, o := range w.objects {
			call(o)
		}
		return
	}
	for key := range change.Keys {
		if o := w.objects[key]; o != nil {
			call(o)
		}
	}
}

// Mark says that there is something new to say of objects: of their health.
func (w *Writer) Mark(keys []model.Key) {
	w.mu.Lock()
	for _, key := range keys {
		w.dirty[key] = true
	}
	w.mu.Unlock()
	w.Wake()
}

// analyse compares what is wrong with what was, and marks the objects for which
// that changed. The caller holds mu.
func (w *Writer) analyse() {
	now := map[model.Key][]model.Problem{}
	for _, p := range w.ofStore {
		if p.Object.Name != "" && w.kinds[p.Object.Kind] {
			now[p.Object] = append(now[p.Object], p)
		}
	}
	for _, p := range w.found {
		if p.Object.Name != "" && w.kinds[p.Object.Kind] {
			// Of an object in force: a snapshot holds no others.
			p.Warning = !p.Dangling
			now[p.Object] = append(now[p.Object], p)
		}
	}
	for key, list := range now {
		if !sameProblems(list, w.problems[key]) {
			w.dirty[key] = true
			if w.objects[key] == nil {
				w.objects[key] = &object{closed: true}
			}
		}
	}
	for key := range w.problems {
		if now[key] != nil {
			continue
		}
		if o := w.objects[key]; o != nil && o.config == nil {
			w.forget(key) // it was never valid, and is gone
			continue
		}
		w.dirty[key] = true
	}
	w.problems = now
}

func sameProblems(a, b []model.Problem) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		a, b := a[i], b[i]
		a.Source, b.Source = "", "" // it moves with the lines of a file
		if a != b {
			return false
		}
	}
	return true
}
