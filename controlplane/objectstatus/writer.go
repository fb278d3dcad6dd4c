// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package objectstatus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery"
	"github.com/outrigger-mesh/outrigger/controlplane/health"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// Config configures a [Writer].
type Config struct {
	Store config.ReadWriter
	// Distribution returns the progress of the proxies.
	Distribution func() *discovery.Distribution
	// Health returns the health that was reported to this replica for a WorkloadEntry; nil
	// disables writing health.
	Health func(model.Key) (health.Verdict, bool)
	// Generated returns the problems that were found while generating the configuration of the
	// proxies, in a stable order; nil means none.
	Generated func() []model.Problem
	// Matched returns where the patches of EnvoyFilters have an effect; nil means nothing is known.
	Matched func() map[model.Key]discovery.Matched
	// InForce reports whether objects of a kind affect proxies. No distribution is written for
	// others.
	InForce func(model.Kind) bool
	// Off disables writing distribution and problems, but not health.
	Off bool
	// Lead calls work while this replica is the leader, which is the one that writes distribution
	// and problems. Nil means that it always is.
	Lead func(ctx context.Context, work func(context.Context) error) error
	// Denied reports whether a write failed because of a missing permission.
	Denied func(error) bool
	Limits Limits
	Logger *slog.Logger
	// Registerer registers the metrics; nil disables them.
	Registerer prometheus.Registerer
}

// Limits limit the writes.
type Limits struct {
	Workers int // concurrent writes
	QPS     float64
	Burst   int
}

// Intervals and timeouts.
const (
	// between is the minimum interval of rounds.
	between = 200 * time.Millisecond
	// settling is the time after a change before a verdict is written; patience is the time before
	// proxies without an answer are mentioned.
	settling = 500 * time.Millisecond
	patience = 1200 * time.Millisecond
	// recount is the interval at which a changed number of proxies without an answer is written.
	recount = 30 * time.Second
	// rematch is the interval at which the effects of patches are looked for.
	rematch = 5 * time.Second
	// takeover is the time that another replica has to withdraw its verdict that its proxies do
	// not have an object.
	takeover = 5 * time.Minute
	// poll is the interval at which the store is queried for problems.
	poll = 2 * time.Second
	// The timeout of a write, and the delays after a failed one.
	writeTime                         = 10 * time.Second
	firstPause, longPause, deniedTime = time.Second, time.Minute, 5 * time.Minute
)

// Writer writes the status of objects.
type Writer struct {
	cfg     Config
	store   config.ReadWriter
	log     *slog.Logger
	metrics *metrics
	limiter *rate.Limiter
	inForce func(model.Kind) bool
	// kinds are the kinds with Istio's status type.
	kinds map[model.Kind]bool
	// wake has room for one token, which means that there may be something to write.
	wake chan struct{}

	mu      sync.Mutex // guards the fields below
	leading bool
	objects map[model.Key]*object
	// open contains the objects without a final distribution verdict. dirty contains those with
	// other changes or a failed write.
	open  map[model.Key]*object
	dirty map[model.Key]bool
	// found are the problems of the newest snapshot; ofStore and generated are those of the store
	// and of the generated configuration at the time asked. problems contains all by object. ready
	// is false before the first snapshot.
	found     []model.Problem
	ofStore   []model.Problem
	generated []model.Problem
	asked     time.Time
	ready     bool
	problems  map[model.Key][]model.Problem
	// matched are the verdicts on the patches of EnvoyFilters at the time rematched.
	matched   map[model.Key]verdict
	rematched time.Time
	// failing is true from a failed write until the next successful one. denied is true if a
	// missing permission was reported.
	failing, denied bool
}

// New returns a Writer. It returns an error for an invalid configuration. Nothing is written until
// Run is called.
func New(cfg Config) (*Writer, error) {
	switch {
	case cfg.Store == nil || cfg.Distribution == nil || cfg.InForce == nil:
		return nil, errors.New("the status of objects needs a store, a distribution and the kinds that are in force")
	case cfg.Limits.Workers < 1 || cfg.Limits.QPS <= 0 || cfg.Limits.Burst < 1:
		return nil, fmt.Errorf("the status of objects needs at least one worker and one write: %+v", cfg.Limits)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Generated == nil {
		cfg.Generated = func() []model.Problem { return nil }
	}
	if cfg.Matched == nil {
		cfg.Matched = func() map[model.Key]discovery.Matched { return nil }
	}
	if cfg.Denied == nil {
		cfg.Denied = func(error) bool { return false }
	}
	w := &Writer{
		cfg: cfg, store: cfg.Store, log: cfg.Logger, inForce: cfg.InForce,
		limiter: rate.NewLimiter(rate.Limit(cfg.Limits.QPS), cfg.Limits.Burst),
		kinds:   map[model.Kind]bool{}, wake: make(chan struct{}, 1),
		objects: map[model.Key]*object{}, open: map[model.Key]*object{}, dirty: map[model.Key]bool{},
	}
	for _, s := range schema.All() {
		if hasStatus(s.Kind) {
			w.kinds[s.Kind] = true
		}
	}
	var err error
	w.metrics, err = newMetrics(cfg.Registerer, w.missing)
	return w, err
}

// Wake signals that the distribution may have changed. It never blocks.
func (w *Writer) Wake() {
	select {
	case w.wake <- struct{}{}:
	default: // a token is there already
	}
}

// Run writes statuses until ctx is done.
func (w *Writer) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return w.rounds(ctx) }) // processes changes and writes to the store
	switch {
	case w.cfg.Off:
	case w.cfg.Lead == nil:
		w.lead(true)
	default:
		g.Go(func() error { // waits for the lease
			return w.cfg.Lead(ctx, func(ctx context.Context) error {
				w.lead(true)
				defer w.lead(false)
				<-ctx.Done()
				return nil
			})
		})
	}
	return g.Wait()
}

// lead records whether this replica is the leader. A new leader checks all objects.
func (w *Writer) lead(leads bool) {
	w.mu.Lock()
	w.leading = leads
	w.rematched = time.Now().Add(recount - rematch) // after a restart, proxies take time to connect
	if leads {
		for key := range w.objects {
			w.dirty[key] = true
		}
	}
	w.mu.Unlock()
	w.Wake()
}

// rounds runs rounds until ctx is done.
func (w *Writer) rounds(ctx context.Context) error {
	timer := time.NewTimer(poll)
	defer timer.Stop()
	for {
		// Cases: ctx is done; there may be something to write; the next check is due.
		select {
		case <-ctx.Done():
			return nil
		case <-w.wake:
		case <-timer.C:
		}
		pause(ctx, between) // changes that arrive in the meantime are in the same round
		due := w.round(ctx)
		timer.Reset(min(max(time.Until(due), between), poll))
	}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	// Cases: ctx is done; the pause is over.
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// round performs the pending writes and returns the time of the next check.
func (w *Writer) round(ctx context.Context) (due time.Time) {
	w.mu.Lock()
	leads, open, ask := w.leading && w.ready, len(w.open) > 0, time.Since(w.asked) >= settling
	match := leads && time.Since(w.rematched) >= rematch
	w.mu.Unlock()
	var dist *discovery.Distribution
	var problems, generated []model.Problem
	if leads && open {
		dist = w.cfg.Distribution()
	} else if leads {
		dist = discovery.NewDistribution(nil) // not used
	}
	if leads && ask {
		problems, generated = w.store.Problems(), w.cfg.Generated()
	}
	var matched map[model.Key]discovery.Matched
	if match {
		matched = w.cfg.Matched()
	}
	w.mu.Lock()
	if match {
		w.rematch(matched, time.Now())
	}
	if leads && ask {
		w.ofStore, w.generated, w.asked = problems, generated, time.Now()
	}
	if leads {
		w.analyse()
	}
	jobs, due := w.jobs(time.Now(), dist)
	w.mu.Unlock()
	g := &errgroup.Group{}
	g.SetLimit(w.cfg.Limits.Workers)
	for _, j := range jobs {
		g.Go(func() error { // one write
			w.work(ctx, j)
			return nil
		})
	}
	_ = g.Wait() // the functions return no errors
	return due
}

// job is one write. If invalid is true, the store contains a newer version that is invalid, and
// the problems refer to that version.
type job struct {
	key        model.Key
	object     *object
	config     *model.Config
	generation int64
	epoch      uint64
	want       content
	invalid    bool
}

// work performs a job and records its result.
func (w *Writer) work(ctx context.Context, j job) {
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	written, err := w.write(ctx, j)
	if ctx.Err() != nil && errors.Is(ctx.Err(), context.Canceled) {
		return // shutdown
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	o := j.object
	if w.objects[j.key] != o || o.epoch != j.epoch {
		return // the object has changed and is marked
	}
	if said := err == nil || errors.Is(err, errOvertaken); said && written != nil && o.config != nil && o.config == j.config {
		o.config = written // the event of the store may arrive before or after this
	}
	switch {
	case errors.Is(err, errOvertaken):
		w.dirty[j.key] = true
		w.Wake()
	case err == nil, isFinal(err):
		w.finish(j.key, o, j.want)
	default:
		w.failed(j.key, o, err)
	}
}

// finish records that content was written. The caller holds mu.
func (w *Writer) finish(key model.Key, o *object, want content) {
	o.done, o.written, o.attempts = want, time.Now(), 0
	if w.failing {
		w.failing = false
		w.log.Info("the status of objects is written again")
	}
	if want.distribution != (verdict{}) {
		o.own, o.foreign = want.distribution, verdict{}
	}
	if want.distribution.status == isTrue {
		w.close(key, o)
	}
	delete(w.dirty, key)
}

func (w *Writer) close(key model.Key, o *object) {
	o.closed = true
	delete(w.open, key)
}

// isFinal reports whether a failed write would fail again.
func isFinal(err error) bool {
	for _, final := range []error{config.ErrNotFound, config.ErrNoKind, config.ErrReadOnly, config.ErrMalformed, config.ErrInvalid} {
		if errors.Is(err, final) {
			return true
		}
	}
	return false
}

// failed records that a write failed. The caller holds mu.
func (w *Writer) failed(key model.Key, o *object, err error) {
	wait := min(firstPause<<min(o.attempts, 10), longPause)
	o.attempts++
	switch {
	case w.cfg.Denied(err):
		wait = deniedTime
		if !w.denied {
			w.denied = true
			w.log.Warn("the status of objects is not written: a right is missing; allow update of the subresources status, as examples/kubernetes/rbac-config.yaml does, or set PILOT_ENABLE_STATUS=false",
				"kind", key.Kind, "name", key.Name, "namespace", key.Namespace, "err", err)
		}
	case !w.failing && !errors.Is(err, config.ErrConflict):
		w.failing = true
		w.log.Warn("the status of an object is not written; retrying", "kind", key.Kind, "name", key.Name, "namespace", key.Namespace, "err", err)
	}
	o.retry = time.Now().Add(wait)
	w.dirty[key] = true
}

// errOvertaken means that another replica has written a distribution verdict in the meantime, so
// that the decision must be made again.
var errOvertaken = errors.New("another replica was faster")

// errRead ends a patch that only reads.
var errRead = errors.New("it was read")

// read returns the newest version of an object, which the store may not have reported yet.
func (w *Writer) read(ctx context.Context, key model.Key) (*model.Config, error) {
	var out *model.Config
	_, err := w.store.Patch(ctx, key, func(c *model.Config) error {
		out = c.Clone()
		return errRead
	})
	if errors.Is(err, errRead) {
		return out, nil
	}
	if err == nil {
		err = fmt.Errorf("read %s: the store did not return it", key)
	}
	return nil, err
}

// write updates the status of an object, and returns the object after the write. It returns nil if
// the store will report a newer version.
func (w *Writer) write(ctx context.Context, j job) (*model.Config, error) {
	c := j.config
	var err error
	for range 3 {
		if c == nil {
			if c, err = w.read(ctx, j.key); err != nil {
				return nil, err
			}
		}
		want := j.want
		if c.SpecGeneration() != j.generation {
			if !j.invalid {
				return nil, nil
			}
			want.distribution = verdict{}
		}
		if j.config != nil && want.distribution != (verdict{}) && said(c) != said(j.config) {
			return c, errOvertaken
		}
		status, differs := want.apply(c, time.Now().UTC())
		if !differs {
			return c, nil
		}
		if err := w.limiter.Wait(ctx); err != nil {
			return nil, err
		}
		out := *c // the spec is shared and not modified
		out.Status = status
		if out.ResourceVersion, err = w.store.UpdateStatus(ctx, &out); !errors.Is(err, config.ErrConflict) {
			w.count(err)
			return &out, err
		}
		w.metrics.writes.WithLabelValues("conflict").Inc()
		c = nil
	}
	return nil, err
}

func (w *Writer) count(err error) {
	result := "ok"
	if err != nil {
		result = "error"
	}
	w.metrics.writes.WithLabelValues(result).Inc()
}
