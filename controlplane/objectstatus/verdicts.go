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

// VerdictsConfig is what [Verdicts] need.
type VerdictsConfig struct {
	Store config.ReadWriter
	// Merge puts what is to be said of an object into the status that it has, and
	// reports whether the status is another one then.
	Merge func(there, want any, now time.Time) (status any, differs bool)
	// Lead calls its argument while this replica is the one that writes; nil means
	// always.
	Lead func(ctx context.Context, work func(context.Context) error) error
	// Denied reports that a write failed because a right is missing.
	Denied func(error) bool
	Limits Limits
	Logger *slog.Logger
}

// Verdicts writes statuses that somebody else decides, such as those of the
// Gateway API: what is to be said of each object is given whole, and what the
// store holds already is not written again.
type Verdicts struct {
	cfg     VerdictsConfig
	log     *slog.Logger
	limiter *rate.Limiter
	// wake has room for one token: there may be something to write.
	wake chan struct{}

	mu      sync.Mutex // guards what follows
	leading bool
	want    map[model.Key]any
	// dirty are the objects to look at, and not before when; their number is
	// bounded by that of want.
	dirty  map[model.Key]time.Time
	denied bool
	// wrote is when an object was written last, and for how long it is left alone
	// then, unless another verdict comes: somebody else may write it, too.
	wrote map[model.Key]truce
}

// truce is a time without writes.
type truce struct {
	since time.Time
	pause time.Duration
}

// NewVerdicts checks the configuration. Nothing runs before Run.
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

// Set returns all that is to be said. The map and its values are kept.
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

// Hear takes events of the store: what somebody else wrote may have to be
// corrected, the more seldom the more often it had to be.
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

// Run writes until ctx is done.
func (v *Verdicts) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return v.rounds(ctx) }) // reads what is to be said, feeds the store
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

// lead says whether this replica writes. Who begins looks at all objects.
func (v *Verdicts) lead(leads bool) {
	v.mu.Lock()
	v.leading = leads
	for key := range v.want {
		v.dirty[key] = time.Time{}
	}
	v.mu.Unlock()
	v.nudge()
}

// rounds writes what there is to write, again and again.
func (v *Verdicts) rounds(ctx context.Context) error {
	for {
		timer := time.NewTimer(poll)
		// Cases: the end; there may be something to write; a write that failed is
		// due again.
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
		_ = g.Wait() // its functions do not fail
	}
}

// due takes what is to be looked at now.
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

// write brings the status of one object to what it should say.
func (v *Verdicts) write(ctx context.Context, key model.Key, want any) error {
	c := v.cfg.Store.Get(key)
	if c == nil {
		return nil // it is gone, and the next verdicts will not name it
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
	out := *c // the spec is shared, and nobody writes to it
	out.Status = status
	_, err := v.cfg.Store.UpdateStatus(ctx, &out)
	if err == nil {
		v.rest(key, time.Now())
	}
	return err
}

// rest begins a truce after a write: a longer one than before if the object was
// written not long ago, with the same verdict.
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

// truceTime is the longest truce.
const truceTime = 5 * time.Minute

// done notes what became of a write. After a conflict the newer state is on its
// way, and its event leads here again.
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
			err = nil // it was reported
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
