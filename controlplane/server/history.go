// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"context"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/controlplane/discovery/debug"
	"github.com/outrigger-mesh/outrigger/controlplane/generate"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/registry"
	"github.com/outrigger-mesh/outrigger/controlplane/revisions"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// newDebug configures the answers to debug questions, on streams and over HTTP.
func (s *Server) newDebug(cfg Config, reg prometheus.Registerer) {
	reg.MustRegister(endsCollector{s.ends})
	s.history = newHistory(s.objects.exists, cfg.Version, reg)
	dir, log := filepath.Join(filepath.Dir(cfg.stateDir()), "history"), s.log.With("component", "config")
	s.revisions = revisions.New(revisions.Config{Dir: dir, Source: revisions.WithMesh(revisions.Objects(s.objects.store), s.meshSettings), Logger: log})
	var services debug.Past
	var clusters func() []debug.ClusterState
	if s.objects.platform != nil {
		s.services = revisions.New(revisions.Config{Dir: filepath.Join(dir, "services"), Source: revisions.Services(s.objects.platform), Logger: log})
		services, clusters = s.services, s.clusters
	}
	var credential func(namespace, name string) error
	if s.objects.credentials != nil {
		credential = s.objects.certificate
	}
	s.discovery.Debug(debug.Config{
		Credential:    credential,
		Authenticator: s.identity.auth, Replica: cfg.PodName, Version: cfg.Version,
		Push:    func() { s.debounce.Add(model.Change{All: true}) },
		Preview: func() debug.Generator { return generate.New(cfg.Generate) }, Propose: s.propose,
		Objects: s.objects.store, Stores: s.objects.store.Names(), Changed: s.history.changed, Past: s.revisions, PastServices: services,
		Problems: func() []debug.KnownProblem { return s.history.problems(s.objects.store.Problems()) },
		Pending:  func(key model.Key) bool { return s.debounce.Holds(key) },
		Faults:   s.faultsNow, Credentials: s.ends,
		DenyListProblem: func() string {
			if err := s.objects.denyList.Err(); err != nil {
				return err.Error()
			}
			return ""
		},
		Clusters: clusters, Registerer: reg, GatewaysOwnNamespace: cfg.Generate.GatewaysOwnNamespace,
	})
}

// meshSettings returns the mesh config and the networks in force.
func (s *Server) meshSettings() revisions.MeshSettings {
	now := s.settings.Current()
	out := revisions.MeshSettings{Mesh: now.Mesh, Networks: now.Networks}
	out.MeshSource, out.NetworksSource = now.Sources()
	return out
}

// clusters lists the Kubernetes clusters.
func (s *Server) clusters() []debug.ClusterState {
	var out []debug.ClusterState
	for _, c := range s.objects.platform.Clusters() {
		out = append(out, debug.ClusterState(c))
	}
	return out
}

// note records the objects and services that a change affects.
func (s *Server) note(change model.Change, at time.Time) {
	s.revisions.Note(change, at)
	if s.services != nil {
		s.services.Note(change, at)
	}
}

// pastPlatform is a platform on which some services are, or were, different; nil ones do not exist.
type pastPlatform struct {
	registry.Platform
	services map[model.Key]*registry.PlatformService
}

// Service implements [registry.Platform].
func (p pastPlatform) Service(namespace, name string) *registry.PlatformService {
	if svc, ok := p.services[model.Key{Kind: model.KubernetesService, Namespace: namespace, Name: name}]; ok {
		return svc
	}
	return p.Platform.Service(namespace, name)
}

// Services implements [registry.Platform].
func (p pastPlatform) Services() []*registry.PlatformService {
	out := slices.DeleteFunc(slices.Clone(p.Platform.Services()), func(svc *registry.PlatformService) bool {
		_, ok := p.services[model.Key{Kind: model.KubernetesService, Namespace: svc.Service.Namespace, Name: svc.Name}]
		return ok
	})
	for _, svc := range p.services {
		if svc != nil {
			out = append(out, svc)
		}
	}
	return out
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
	handler := s.discovery.DebugHandler()
	for _, mux := range slices.Compact(servers) {
		mux.Handle("/debug", handler)
		mux.Handle("/debug/", handler)
	}
}

// lookEvery is how often the problems of the stores are read.
const lookEvery = 2 * time.Second

// history records, for debug questions, when objects changed and when problems were
// first seen. Its size is bounded by the number of objects.
type history struct {
	exists func(model.Key) bool

	mu sync.Mutex // guards the fields below
	// first is the first snapshot, and changes are the last snapshots that changed
	// an object. Entries of objects that do not exist any more are removed when
	// there are sweepAt entries.
	first   change
	changes map[model.Key]change
	sweepAt int
	// found are the problems of the newest snapshot. since is when each was first
	// seen; its key has no line number, which changes with other edits of a file.
	found []model.Problem
	since map[model.Problem]time.Time

	triggers, updates *prometheus.CounterVec
	builds            prometheus.Histogram
	gathered          prometheus.Histogram
}

// change is a snapshot that changed an object.
type change struct {
	sequence uint64
	at       time.Time
}

// minSweep is the number of entries below which nothing is removed.
const minSweep = 1024

func newHistory(exists func(model.Key) bool, version string, reg prometheus.Registerer) *history {
	p := &history{
		exists: exists, sweepAt: minSweep,
		changes: map[model.Key]change{}, since: map[model.Problem]time.Time{},
		triggers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pilot_push_triggers", Help: "Pushes, by their cause.",
		}, []string{"type"}),
		updates: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pilot_inbound_updates", Help: "Changed objects, services and endpoints, each counted once per push.",
		}, []string{"type"}),
		builds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "pilot_pushcontext_init_seconds", Help: "Seconds to build a snapshot.", Buckets: []float64{.001, .01, .1, .5, 1, 3, 5},
		}),
	}
	p.gathered = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "pilot_debounce_time", Help: "Seconds that the first change of a push waited for others.", Buckets: []float64{.01, .1, .5, 1, 3, 5},
	})
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "pilot_info", Help: "The version of the control plane; always 1."}, []string{"version"})
	info.WithLabelValues(version).Set(1)
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "istio_build", Help: "The version of the program, as tag; always 1."}, []string{"component", "tag"})
	build.WithLabelValues("pilot", version).Set(1)
	reg.MustRegister(p.triggers, p.updates, p.builds, p.gathered, info, build)
	return p
}

// built records a new snapshot, its changes, and the duration of its build.
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
		if key.Kind != model.KubernetesPod && key.Kind != model.KubernetesEndpoints { // no question is about them
			p.changes[key] = now
		}
	}
	p.sweep()
	p.found = slices.Clone(next.Problems)
	for i := range p.found {
		p.found[i].Warning = true // a snapshot contains only objects in force
		p.note(p.found[i], now.at)
	}
}

// sweep removes the changes of objects that do not exist any more, so that names that
// are used once, such as those of machines, do not accumulate. The caller must hold mu.
func (p *history) sweep() {
	if len(p.changes) < p.sweepAt {
		return
	}
	maps.DeleteFunc(p.changes, func(key model.Key, _ change) bool { return !p.exists(key) })
	p.sweepAt = max(minSweep, 2*len(p.changes))
}

// count counts a push by its cause.
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

// note records when a problem was first seen. The caller must hold mu.
func (p *history) note(problem model.Problem, now time.Time) time.Time {
	problem.Source = ""
	if _, known := p.since[problem]; !known {
		p.since[problem] = now
	}
	return p.since[problem]
}

// run records the problems of the stores, including those that cause no snapshot.
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

// changed returns the snapshot of the last change of an object. first is true if the
// object has not changed since the start.
func (p *history) changed(key model.Key) (sequence uint64, at time.Time, first bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c, ok := p.changes[key]
	if !ok {
		c = p.first
	}
	return c.sequence, c.at, !ok
}

// problems returns the problems of the stores and of the newest snapshot. It forgets
// fixed problems, so that they count as new if they recur.
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
