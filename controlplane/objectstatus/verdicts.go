// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package objectstatus

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// VerdictsConfig configures [Verdicts].
type VerdictsConfig struct {
	Store config.ReadWriter
	// Merge merges a computed status into the stored one, and reports whether the result differs
	// from the stored status.
	Merge func(there, want any, now time.Time) (status any, differs bool)
	// Lead calls work while this replica is the leader, which is the one that writes. Nil means
	// that this replica always writes.
	Lead func(ctx context.Context, work func(context.Context) error) error
	// Denied reports whether a write failed because of a missing permission.
	Denied func(error) bool
	Limits Limits
	Logger *slog.Logger
}

// Verdicts writes statuses that another component computes, such as those of the Gateway API. It
// receives all statuses as a whole, and does not write those that the store already contains.
type Verdicts struct {
	cfg     VerdictsConfig
	log     *slog.Logger
	limiter *rate.Limiter
	// wake has room for one token, which means that there may be something to write.
	wake chan struct{}

	mu      sync.Mutex // guards the fields below
	leading bool
	want    map[model.Key]any
	// dirty maps the objects to check to the earliest time of the check. It contains only objects
	// of want.
	dirty  map[model.Key]time.Time
	denied bool
	// wrote records the last write of an object, and the pause after it unless the verdict
	// changes. Another component may write the same status.
	wrote map[model.Key]truce
}

// truce is a period without writes.
type truce struct {
	since time.Time
	pause time.Duration
}

// NewVerdicts returns Verdicts. It returns an error for an invalid configuration. Nothing is
// written until Run is called.
func NewVerdicts(cfg VerdictsConfig) (*Verdicts, error) {
	if cfg.Store == nil || cfg.Merge == nil || cfg.Limits.Workers < 1 || cfg.Limits.QPS <= 0 || cfg.Limits.Burst < 1 {
		return nil, errors.New("verdicts on objects need a store, a way to merge and at least one worker and write")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Denied == nil {
		cfg.Denied = func(error) bool { return false }
	}
	return &Verdicts{
		cfg: cfg, log: cfg.Logger, limiter: rate.NewLimiter(rate.Limit(cfg.Limits.QPS), cfg.Limits.Burst),
		wake: make(chan struct{}, 1), dirty: map[model.Key]time.Time{}, wrote: map[model.Key]truce{},
	}, nil
}

// Set replaces all statuses. It keeps a reference to the map and its values.
func (v *Verdicts) Set(want map[model.Key]any) {
	v.mu.Lock()
	for key, status := range want {
		if before, ok := v.want[key]; !ok || !model.SameSpec(before, status) {
			v.dirty[key] = time.Time{}
			delete(v.wrote, key)
		}
	}
	v.want = want
	maps.DeleteFunc(v.dirty, func(key model.Key, _ time.Time) bool { _, ok := want[key]; return !ok })
	maps.DeleteFunc(v.wrote, func(key model.Key, _ truce) bool { _, ok := want[key]; return !ok })
	v.mu.Unlock()
	v.nudge()
}

// Hear processes events of the store. A status that another component has overwritten is
// corrected, with increasing delays if that happens repeatedly.
func (v *Verdicts) Hear(events []config.Event) {
	v.mu.Lock()
	for _, e := range events {
		if key := e.Current().Key; e.Type != config.Deleted && v.want[key] != nil {
			last := v.wrote[key]
			v.dirty[key] = last.since.Add(last.pause)
		}
	}
	v.mu.Unlock()
	v.nudge()
}

func (v *Verdicts) nudge() {
	select {
	case v.wake <- struct{}{}:
	default: // a token is there already
	}
}

// Run writes statuses until ctx is done.
func (v *Verdicts) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return v.rounds(ctx) }) // takes due statuses and writes to the store
	if v.cfg.Lead == nil {
		v.lead(true)
		return g.Wait()
	}
	g.Go(func() error { // waits for the lease
		return v.cfg.Lead(ctx, func(ctx context.Context) error {
			v.lead(true)
			defer v.lead(false)
			<-ctx.Done()
			return nil
		})
	})
	return g.Wait()
}

// lead records whether this replica is the leader. It schedules a check of all objects.
func (v *Verdicts) lead(leads bool) {
	v.mu.Lock()
	v.leading = leads
	for key := range v.want {
		v.dirty[key] = time.Time{}
	}
	v.mu.Unlock()
	v.nudge()
}

// rounds writes pending statuses until ctx is done.
func (v *Verdicts) rounds(ctx context.Context) error {
	for {
		timer := time.NewTimer(poll)
		// Cases: ctx is done; there may be something to write; a failed write is due again.
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-v.wake:
		case <-timer.C:
		}
		timer.Stop()
		g := &errgroup.Group{}
		g.SetLimit(v.cfg.Limits.Workers)
		for key, want := range v.due(time.Now()) {
			g.Go(func() error { // one write
				v.done(key, v.write(ctx, key, want))
				return nil
			})
		}
		_ = g.Wait() // the functions return no errors
	}
}

// due removes the objects that are due from dirty and returns their statuses.
func (v *Verdicts) due(now time.Time) map[model.Key]any {
	v.mu.Lock()
	defer v.mu.Unlock()
	out := map[model.Key]any{}
	if !v.leading {
		return nil
	}
	for key, at := range v.dirty {
		if !at.After(now) {
			out[key] = v.want[key]
			delete(v.dirty, key)
		}
	}
	return out
}

// write updates the status of one object if it differs.
func (v *Verdicts) write(ctx context.Context, key model.Key, want any) error {
	c := v.cfg.Store.Get(key)
	if c == nil {
		return nil // the object was removed, and the next Set will omit it
	}
	status, differs := v.cfg.Merge(c.Status, want, time.Now())
	if !differs {
		return nil
	}
	if err := v.limiter.Wait(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	out := *c // the spec is shared and not modified
	out.Status = status
	_, err := v.cfg.Store.UpdateStatus(ctx, &out)
	if err == nil {
		v.rest(key, time.Now())
	}
	return err
}

// rest starts a pause after a write. The pause doubles if the object was written with the same
// verdict not long ago.
func (v *Verdicts) rest(key model.Key, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	last, again := v.wrote[key]
	next := truce{since: now, pause: firstPause}
	if again && now.Sub(last.since) < 2*truceTime {
		next.pause = min(2*last.pause, truceTime)
	}
	v.wrote[key] = next
}

// truceTime is the longest pause.
const truceTime = 5 * time.Minute

// done records the result of a write. After a conflict, the event of the newer version triggers
// another check.
func (v *Verdicts) done(key model.Key, err error) {
	if err == nil || errors.Is(err, config.ErrConflict) || errors.Is(err, context.Canceled) || isFinal(err) {
		if err != nil && isFinal(err) && !errors.Is(err, config.ErrNotFound) {
			v.log.Debug("a status cannot be written", "kind", key.Kind, "name", key.Name, "namespace", key.Namespace, "err", err)
		}
		return
	}
	wait := firstPause
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.cfg.Denied(err) {
		wait = deniedTime
		if v.denied {
			err = nil // reported before
		}
		v.denied = true
	}
	if err != nil {
		v.log.Warn("the status of an object is not written; it is tried again", "kind", key.Kind, "name", key.Name, "namespace", key.Namespace, "err", err)
	}
	if _, sooner := v.dirty[key]; !sooner && v.want[key] != nil {
		v.dirty[key] = time.Now().Add(wait)
	}
}
