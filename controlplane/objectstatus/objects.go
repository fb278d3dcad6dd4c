// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package objectstatus

import (
	"slices"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// phase is the progress of an object's last change toward a snapshot.
type phase int

const (
	heard     phase = iota // not in a snapshot yet
	building               // in the snapshot that is being built
	published              // in all snapshots from a sequence on
)

// object is the state of one object. The mutex of the Writer guards it.
type object struct {
	// config is the newest known version. It is nil if the store does not provide the object
	// because it was never valid.
	config     *model.Config
	generation int64
	// epoch counts the changes.
	epoch    uint64
	phase    phase
	sequence uint64
	since    time.Time // time of the snapshot
	// closed is true if the verdict on its distribution is final.
	closed bool
	// own is the distribution verdict that this replica wrote or found at the start. foreign is
	// the verdict of another replica, and foreignSince when it was first seen.
	own, foreign verdict
	foreignSince time.Time
	// done is the content that was last written; written is the time.
	done    content
	written time.Time
	// attempts is the number of consecutive failures; retry is the time of the next attempt.
	attempts int
	retry    time.Time
}

// hasStatus reports whether objects of a kind have Istio's status type.
func hasStatus(kind model.Kind) bool {
	sch, ok := schema.Of(kind)
	return ok && statusOf(&model.Config{Status: sch.NewStatus()}) != nil
}

// Effective reports whether an event can affect the configuration of proxies. Changes of only the
// status or of metadata of the store cannot.
func Effective(e config.Event) bool {
	if e.Type != config.Updated {
		return true
	}
	return !config.SameContent(e.Old, e.New) || e.Old.APIVersion != e.New.APIVersion || e.Old.UID != e.New.UID || !e.Old.Created.Equal(e.New.Created)
}

// Hear processes events of the store. It must be called before the snapshot with these changes is
// built.
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

// begin records a new version of an object. The caller holds mu.
func (w *Writer) begin(o *object, c *model.Config) {
	o.config, o.generation = c, c.SpecGeneration()
	o.epoch++
	o.phase, o.attempts, o.retry = heard, 0, time.Time{}
	o.done.distribution, o.foreign = verdict{}, verdict{}
	before := said(c)
	o.own = before // even if another replica wrote it: this replica may have restarted
	// An object that is in force stays in force, whatever verdicts follow.
	o.closed = !w.inForce(c.Kind) || before.status == isTrue
	if o.closed {
		delete(w.open, c.Key)
	} else {
		w.open[c.Key] = o
	}
	w.dirty[c.Key] = true
}

// Building records that a snapshot with a change is about to be built. It contains all changes
// that were heard before.
func (w *Writer) Building(change model.Change) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.each(change, func(o *object) {
		if o.phase == heard {
			o.phase = building
		}
	})
}

// Published records that a snapshot was published to the proxies, with its problems.
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

// each calls a function for each object of a change. The caller holds mu.
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

// Mark schedules a write for objects whose health has changed.
func (w *Writer) Mark(keys []model.Key) {
	w.mu.Lock()
	for _, key := range keys {
		w.dirty[key] = true
	}
	w.mu.Unlock()
	w.Wake()
}

// analyse updates the problems, and marks the objects whose problems have changed. The caller
// holds mu.
func (w *Writer) analyse() {
	now := map[model.Key][]model.Problem{}
	for _, p := range w.ofStore {
		if p.Object.Name != "" && w.kinds[p.Object.Kind] {
			now[p.Object] = append(now[p.Object], p)
		}
	}
	for _, p := range slices.Concat(w.found, w.generated) {
		if p.Object.Name != "" && w.kinds[p.Object.Kind] {
			// The object is in force, because snapshots contain no others.
			p.Warning = !p.Dangling
			if !slices.ContainsFunc(now[p.Object], func(o model.Problem) bool { return o.Reason == p.Reason }) {
				now[p.Object] = append(now[p.Object], p)
			}
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
			w.forget(key) // it was never valid and has been removed
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
		a.Source, b.Source = "", "" // the source contains a line number, which may change
		if a != b {
			return false
		}
	}
	return true
}

// rematch marks the EnvoyFilters whose status does not say what their patches match. The caller holds
// mu.
func (w *Writer) rematch(matched map[model.Key]discovery.Matched, now time.Time) {
	w.matched, w.rematched = make(map[model.Key]verdict, len(matched)), now
	for key, m := range matched {
		w.matched[key] = matchedBy(m)
		if o := w.objects[key]; o != nil && o.config != nil && verdictOf(conditionOf(statusOf(o.config), matchedType)) != w.matched[key] {
			w.dirty[key] = true
		}
	}
}
