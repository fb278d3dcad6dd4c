// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/controlplane/discovery/debug"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// newDebug answers debug questions, on streams and over HTTP.
func (s *Server) newDebug(cfg Config, reg prometheus.Registerer) {
	s.history = newHistory(s.objects.exists, cfg.Version, reg)
	s.debugHTTP = cfg.DebugHTTP
	s.discovery.Debug(debug.Config{
		Authenticator: s.identity.auth, Replica: cfg.PodName, Version: cfg.Version,
		Push:    func() { s.debounce.Add(model.Change{All: true}) },
		Objects: s.objects.store, Changed: s.history.changed,
		Problems: func() []debug.KnownProblem { return s.history.problems(s.objects.store.Problems()) },
		DenyListProblem: func() string {
			if err := s.denyList.Err(); err != nil {
				return err.Error()
			}
			return ""
		},
		Registerer: reg, ScopeGateways: cfg.Generate.ScopeGateways,
	})
}

// exists reports whether a store or a cluster has an object.
func (o *objects) exists(key model.Key) bool {
	if key.Kind == model.KubernetesService {
		return o.platform != nil && o.platform.Service(key.Namespace, key.Name) != nil
	}
	return o.store.Get(key) != nil
}

// serveDebug adds /debug to the servers, which may be the same one.
func (s *Server) serveDebug(servers ...*http.ServeMux) {
	if !s.debugHTTP {
		return
	}
	handler := s.discovery.DebugHandler()
	for _, mux := range slices.Compact(servers) {
		mux.Handle("/debug", handler)
		mux.Handle("/debug/", handler)
	}
}

// lookEvery is how often the stores are asked what is wrong.
const lookEvery = 2 * time.Second

// history is what is remembered for questions: when objects changed, and since when
// there are problems. Its size is bounded by the number of objects that exist.
type history struct {
	exists func(model.Key) bool

	mu sync.Mutex // guards what follows
	// first is the first snapshot, changes the last one that brought a change of
	// an object since. Those of objects that are gone are forgotten when there
	// are sweepAt.
	first   change
	changes map[model.Key]change
	sweepAt int
	// found are the problems of the newest snapshot; since is when each was seen
	// first, without its place, which moves with the lines of a file.
	found []model.Problem
	since map[model.Problem]time.Time

	triggers, updates *prometheus.CounterVec
	builds            prometheus.Histogram
	gathered          prometheus.Histogram
}

// change is a snapshot that brought one.
type change struct {
	sequence uint64
	at       time.Time
}

// minSweep is how many changes are remembered without a look at what is gone.
const minSweep = 1024

func newHistory(exists func(model.Key) bool, version string, reg prometheus.Registerer) *history {
	p := &history{
		exists: exists, sweepAt: minSweep,
		changes: map[model.Key]change{}, since: map[model.Problem]time.Time{},
		triggers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pilot_push_triggers", Help: "Pushes, by what made them.",
		}, []string{"type"}),
		updates: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pilot_inbound_updates", Help: "Objects, services and endpoints that changed, each counted once for a push.",
		}, []string{"type"}),
		builds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "pilot_pushcontext_init_seconds", Help: "Seconds that a snapshot took to build.", Buckets: []float64{.001, .01, .1, .5, 1, 3, 5},
		}),
	}
	p.gathered = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "pilot_debounce_time", Help: "Seconds that the first change of a push waited for others.", Buckets: []float64{.01, .1, .5, 1, 3, 5},
	})
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "pilot_info", Help: "The version of the control plane; always 1."}, []string{"version"})
	info.WithLabelValues(version).Set(1)
	reg.MustRegister(p.triggers, p.updates, p.builds, p.gathered, info)
	return p
}

// built notes a snapshot that was built, what had changed, and how long it took.
func (p *history) built(next *snapshot.Mesh, what model.Change, took time.Duration) {
	p.builds.Observe(took.Seconds())
	p.count(what)
	now := change{next.Sequence, time.Now()}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.first.sequence == 0 {
		p.first = now
	}
	for key := range what.Keys {
		if key.Kind != model.KubernetesPod && key.Kind != model.KubernetesEndpoints { // nobody asks for them
			p.changes[key] = now
		}
	}
	p.sweep()
	p.found = slices.Clone(next.Problems)
	for i := range p.found {
		p.found[i].Warning = true // of an object in force: a snapshot holds no others
		p.note(p.found[i], now.at)
	}
}

// sweep forgets the changes of what is gone: names that are used once, as of
// machines that register, would add up. The caller holds mu.
func (p *history) sweep() {
	if len(p.changes) < p.sweepAt {
		return
	}
	maps.DeleteFunc(p.changes, func(key model.Key, _ change) bool { return !p.exists(key) })
	p.sweepAt = max(minSweep, 2*len(p.changes))
}

// count counts a push by what made it.
func (p *history) count(what model.Change) {
	if what.All {
		p.triggers.WithLabelValues("global").Inc()
		return
	}
	reasons := map[string]bool{}
	for key := range what.Keys {
		reason, update := "config", "config"
		switch key.Kind {
		case model.KubernetesService:
			reason, update = "service", "svc"
		case model.KubernetesEndpoints, model.KubernetesPod:
			reason, update = "endpoint", "eds"
		case model.MeshConfigKind:
			reason = "global"
		}
		reasons[reason] = true
		p.updates.WithLabelValues(update).Inc()
	}
	for reason := range reasons {
		p.triggers.WithLabelValues(reason).Inc()
	}
}

// note remembers when a problem was seen first. The caller holds mu.
func (p *history) note(problem model.Problem, now time.Time) time.Time {
	problem.Source = ""
	if _, known := p.since[problem]; !known {
		p.since[problem] = now
	}
	return p.since[problem]
}

// run looks at the problems of the stores, so that it is known since when there
// are some that make no snapshot.
func (p *history) run(ctx context.Context, ofStores func() []model.Problem) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		p.problems(ofStores())
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// changed returns the snapshot that brought the last change of an object, and
// whether there was none since the start.
func (p *history) changed(key model.Key) (sequence uint64, at time.Time, first bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c, ok := p.changes[key]
	if !ok {
		c = p.first
	}
	return c.sequence, c.at, !ok
}

// problems returns those of the stores and of the newest snapshot. What is gone is
// forgotten: should it come back, it is news.
func (p *history) problems(ofStores []model.Problem) []debug.KnownProblem {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []debug.KnownProblem
	there := map[model.Problem]time.Time{}
	for _, problem := range slices.Concat(ofStores, p.found) {
		plain := problem
		plain.Source = ""
		there[plain] = p.note(problem, now)
		out = append(out, debug.KnownProblem{Problem: problem, Since: there[plain]})
	}
	p.since = there
	return out
}
