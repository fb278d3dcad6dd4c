// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package push

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// DebouncerConfig configures a [Debouncer].
type DebouncerConfig struct {
	// After is the quiet time that ends a burst. A change after such a quiet time
	// is built at once.
	After time.Duration
	// Max is the longest time for which a burst is collected, from its first
	// change. If builds are cheap the time is shorter, so that a change within
	// continuous changes, such as those of endpoints, does not wait long.
	Max time.Duration
	// Build is called with the merged changes by Run's goroutine. Changes that are
	// added meanwhile are merged for the next call.
	Build func(model.Change)
	// Waited is called before Build with the time that the first of the changes
	// has waited. It may be nil.
	Waited func(time.Duration)
}

// A burst is collected for several quiet times, and at least for three times the
// duration of the last build, so that builds take at most a quarter of the time.
const (
	gatherQuiets = 3
	gatherBuilds = 3
)

// Debouncer merges changes. The first change after a quiet time is built at once (the
// leading edge), so that a single change does not wait.
type Debouncer struct {
	cfg DebouncerConfig
	// wake holds one token, which means that pending is not empty.
	wake chan struct{}
	// idle receives a token whenever Run's goroutine waits.
	idle chan struct{}

	mu sync.Mutex // guards the fields below
	// pending is the union of the added changes. Its maps are not shared, and are
	// extended in place. Its size is bounded by the number of objects of the mesh.
	pending     model.Change
	building    model.Change // what Build has, empty between its calls
	first, last time.Time
}

// NewDebouncer returns a debouncer that is idle until Run.
func NewDebouncer(cfg DebouncerConfig) *Debouncer {
	return &Debouncer{cfg: cfg, wake: make(chan struct{}, 1), idle: make(chan struct{})}
}

// Add adds a change. It never blocks.
func (d *Debouncer) Add(c model.Change) {
	if c.Empty() {
		return
	}
	now := time.Now()
	d.mu.Lock()
	if d.pending.Empty() {
		d.first = now
	}
	d.gather(c)
	d.last = now
	d.mu.Unlock()
	select {
	case d.wake <- struct{}{}:
	default: // a token is there already
	}
}

// Holds reports whether an added change of an object has not been built yet.
func (d *Debouncer) Holds(key model.Key) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range []model.Change{d.pending, d.building} {
		if _, changed := c.Keys[key]; changed || c.All {
			return true
		}
	}
	return false
}

// gather adds a change to pending. The caller must hold mu.
func (d *Debouncer) gather(c model.Change) {
	if c.All || d.pending.All {
		d.pending = model.Change{All: true}
		return
	}
	if d.pending.Keys == nil {
		d.pending.Keys = make(map[model.Key]struct{}, len(c.Keys))
	}
	maps.Copy(d.pending.Keys, c.Keys)
}

// Await returns once Run's goroutine waits for changes, so that it is not stuck in a build. It also
// returns when ctx ends.
func (d *Debouncer) Await(ctx context.Context) {
	select {
	case <-d.idle:
	case <-ctx.Done():
	}
}

// Run calls Build until ctx ends.
func (d *Debouncer) Run(ctx context.Context) error {
	var built time.Time // when the last build ended
	var took time.Duration
	for {
		select {
		case <-ctx.Done():
			return nil
		case d.idle <- struct{}{}:
			continue
		case <-d.wake:
		}
		if time.Since(built) < d.cfg.After && !d.settle(ctx, min(d.cfg.Max, max(gatherQuiets*d.cfg.After, gatherBuilds*took))) {
			return nil
		}
		if c, first := d.take(); !c.Empty() {
			began := time.Now()
			if d.cfg.Waited != nil {
				d.cfg.Waited(began.Sub(first))
			}
			d.cfg.Build(c)
			d.mu.Lock()
			d.building = model.Change{}
			d.mu.Unlock()
			built = time.Now()
			took = built.Sub(began)
		}
	}
}

// settle waits until the burst is over or has reached its maximum age. It returns
// false if ctx ends first.
func (d *Debouncer) settle(ctx context.Context, most time.Duration) bool {
	for {
		d.mu.Lock()
		due := min(time.Until(d.last.Add(d.cfg.After)), time.Until(d.first.Add(most)))
		d.mu.Unlock()
		if due <= 0 {
			return true
		}
		t := time.NewTimer(due)
		select {
		case <-ctx.Done():
			t.Stop()
			return false
		case d.idle <- struct{}{}:
			t.Stop()
		case <-t.C:
		}
	}
}

// take empties pending, and returns it with the time of its first change.
func (d *Debouncer) take() (model.Change, time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-d.wake: // its change was just taken
	default:
	}
	c := d.pending
	d.pending, d.building = model.Change{}, c
	return c, d.first
}
