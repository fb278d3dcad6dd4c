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
	"k8s.io/client-go/util/workqueue"

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

	mu sync.Mutex // guards the fields below
	// queue contains the objects to check, at once or later; nil before Run. Its length is bounded
	// by that of want.
	queue   workqueue.TypedRateLimitingInterface[model.Key]
	leading bool
	want    map[model.Key]any
	denied  bool
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
		return nil, errors.New("verdicts on objects need a store, a merge function and at least one worker and write")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Denied == nil {
		cfg.Denied = func(error) bool { return false }
	}
	return &Verdicts{
		cfg: cfg, log: cfg.Logger, limiter: rate.NewLimiter(rate.Limit(cfg.Limits.QPS), cfg.Limits.Burst),
		wrote: map[model.Key]truce{},
	}, nil
}

// Set replaces all statuses. It keeps a reference to the map and its values.
func (v *Verdicts) Set(want map[model.Key]any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	before := v.want
	v.want = want
	for key, status := range want {
		if old, ok := before[key]; !ok || !model.SameSpec(old, status) {
			delete(v.wrote, key)
			v.check(key)
		}
	}
	maps.DeleteFunc(v.wrote, func(key model.Key, _ truce) bool { _, ok := want[key]; return !ok })
}

// Hear processes events of the store. A status that another component has overwritten is
// corrected, with increasing delays if that happens repeatedly.
func (v *Verdicts) Hear(events []config.Event) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, e := range events {
		if key := e.Current().Key; e.Type != config.Deleted && v.want[key] != nil {
			v.check(key)
		}
	}
}

// check schedules a check of an object. A new leader checks all objects. The caller holds mu.
func (v *Verdicts) check(key model.Key) {
	if v.leading {
		v.queue.Add(key)
	}
}

// Run writes statuses until ctx is done.
func (v *Verdicts) Run(ctx context.Context) error {
	v.mu.Lock()
	v.queue = workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[model.Key](firstPause, longPause))
	v.mu.Unlock()
	g, ctx := errgroup.WithContext(ctx)
	defer context.AfterFunc(ctx, v.queue.ShutDown)()
	for range v.cfg.Limits.Workers {
		g.Go(func() error { return v.serve(ctx) }) // takes keys from the queue and writes to the store
	}
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

// lead records whether this replica is the leader. A new leader checks all objects.
func (v *Verdicts) lead(leads bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.leading = leads
	for key := range v.want {
		v.check(key)
	}
}

// serve writes statuses until the queue is shut down.
func (v *Verdicts) serve(ctx context.Context) error {
	for {
		key, down := v.queue.Get()
		if down || ctx.Err() != nil {
			return nil
		}
		switch want, wait := v.due(key, time.Now()); {
		case want == nil:
			v.queue.Forget(key)
		case wait > 0:
			v.queue.AddAfter(key, wait)
		default:
			v.done(key, v.write(ctx, key, want))
		}
		v.queue.Done(key)
	}
}

// due returns the status of an object, and the rest of the pause after its last write. The status
// is nil if this replica must not write it.
func (v *Verdicts) due(key model.Key, now time.Time) (want any, wait time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.leading {
		return nil, 0
	}
	last := v.wrote[key]
	return v.want[key], last.since.Add(last.pause).Sub(now)
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
		v.queue.Forget(key)
		return
	}
	report := true
	if v.cfg.Denied(err) {
		v.queue.AddAfter(key, deniedTime)
		v.mu.Lock()
		report, v.denied = !v.denied, true
		v.mu.Unlock()
	} else {
		v.queue.AddRateLimited(key)
	}
	if report {
		v.log.Warn("the status of an object is not written; retrying", "kind", key.Kind, "name", key.Name, "namespace", key.Namespace, "err", err)
	}
}
