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

// DebouncerConfig is what a [Debouncer] needs.
type DebouncerConfig struct {
	// After is the quiet time that ends a burst; also how long it must have
	// been quiet for a change to go through at once.
	After time.Duration
	// Max bounds how long a burst is gathered, from its first change. One that
	// is cheap to build is gathered for a shorter time: a change that is among
	// others all the time, as of endpoints, must not wait long for their end.
	Max time.Duration
	// Build takes the merged changes. It is called by Run's goroutine: what
	// is added meanwhile waits and merges.
	Build func(model.Change)
	// Waited hears how long the first of the changes has waited, before Build is
	// called; may be nil.
	Waited func(time.Duration)
}

// A burst is gathered for some quiet times, and not for less than three times what
// the last build took: then builds take a quarter of the time at most.
const (
	gatherQuiets = 3
	gatherBuilds = 3
)

// Debouncer gathers changes. The first change after a quiet time is built at
// once (the leading edge), so that a lone change costs no waiting.
type Debouncer struct {
	cfg DebouncerConfig
	// wake has room for one token: a token means that pending is not empty.
	wake chan struct{}

	mu sync.Mutex // guards what follows
	// pending is the union of what was added, and nobody else's map: a burst
	// adds to it in place. Its size is bounded by the number of objects of the
	// mesh.
	pending     model.Change
	first, last time.Time
}

// NewDebouncer returns a debouncer that is idle until Run.
func NewDebouncer(cfg DebouncerConfig) *Debouncer {
	return &Debouncer{cfg: cfg, wake: make(chan struct{}, 1)}
}

// Add takes a change. It never blocks.
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

// gather adds a change to pending. The caller holds mu.
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

// Run builds until ctx ends.
func (d *Debouncer) Run(ctx context.Context) error {
	var built time.Time // when the last build ended
	var took time.Duration
	for {
		select {
		case <-ctx.Done():
			return nil
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
			built = time.Now()
			took = built.Sub(began)
		}
	}
}

// settle waits until the burst is over, or as old as it may get. It reports
// false when ctx ended first.
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
		case <-t.C:
		}
	}
}

// take empties pending, and says when the first of it came.
func (d *Debouncer) take() (model.Change, time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-d.wake: // what it announced is taken now
	default:
	}
	c := d.pending
	d.pending = model.Change{}
	return c, d.first
}
