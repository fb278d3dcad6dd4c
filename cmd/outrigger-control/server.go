// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/ca"
	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery"
	"github.com/outrigger-mesh/outrigger/controlplane/generate"
	"github.com/outrigger-mesh/outrigger/controlplane/health"
	"github.com/outrigger-mesh/outrigger/controlplane/kube"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/objectstatus"
	"github.com/outrigger-mesh/outrigger/controlplane/push"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// server is the wiring: each part, and the listeners they serve on.
type server struct {
	log       *slog.Logger
	mesh      *meshv1alpha1.MeshConfig
	domain    string
	store     *config.Aggregate
	debounce  *push.Debouncer
	discovery *discovery.Server
	health    *health.Table
	healthOn  bool // what agents say counts
	status    *objectstatus.Writer
	skipped   *prometheus.CounterVec // events that make no push
	kube      *kube.Client           // nil if no cluster is used
	platform  *kube.Registry         // nil if no services come from it
	// credentials are the certificates of gateways; nil if there are none.
	credentials credentialSource
	authority   *ca.Authority // nil without the TLS server
	// What runs beside the authority; empty or nil if nothing asks for it.
	tokens    []*authn.JWT
	roots     *kube.Roots
	rootFiles []*rootFile
	// built is the newest snapshot; only the debouncer's goroutine uses it.
	built *snapshot.Mesh

	secure, plaintext *grpc.Server // nil when off
	// drains are of the streams of these.
	drains           struct{ secure, plaintext drain }
	http, monitoring *http.Server // monitoring is nil when merged into http
	// webhooks answers the API server on a port of its own; validator is what
	// it serves. Nil without a cluster.
	webhooks      *http.Server
	validator     *http.ServeMux
	webhookConfig *kube.Webhook
	listeners     listeners
}

// listeners are bound before anything runs: a port in use is an exit, not a
// log line.
type listeners struct {
	secure, plaintext, http, webhooks, monitoring net.Listener
}

// newServer builds every part and binds every port. Nothing runs yet.
func newServer(ctx context.Context, f flags, env environment, log *slog.Logger) (*server, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	mesh, err := loadMesh(f.meshConfig)
	if err != nil {
		return nil, err
	}
	for _, field := range withoutEffect(mesh) {
		log.Warn("a field of the mesh config has no effect in this version", "component", "control", "source", f.meshConfig, "name", field)
	}
	for _, name := range f.ineffects {
		log.Warn("a flag of pilot-discovery is accepted and has no effect", "component", "control", "name", name)
	}
	reg := newRegistry()
	s := &server{log: log, mesh: mesh, domain: f.domain, healthOn: env.status.health}
	if s.kube, err = s.connect(f, env, reg); err != nil {
		return nil, err
	}
	if s.store, err = s.openStores(f, env, reg); err != nil {
		return nil, err
	}
	if err := s.newPlatform(f, env, reg); err != nil {
		return nil, err
	}
	secrets, err := s.newCredentials(env.credentials, reg)
	if err != nil {
		return nil, err
	}
	s.debounce = push.NewDebouncer(push.DebouncerConfig{After: env.debounceAfter, Max: env.debounceMax, Build: s.build})
	s.health, err = health.New(health.Config{
		OnChange: s.debounce.Add, OnVerdict: func(keys []model.Key) { s.status.Mark(keys) }, Logger: log.With("component", "health"), Registerer: reg,
	})
	if err != nil {
		return nil, err
	}
	s.discovery, err = discovery.New(discovery.Config{
		Generator: generate.New(generate.Config{}), Workers: env.pushWorkers, CanaryPush: env.canaryPush, NoVHDS: !env.vhds, Secrets: secrets,
		OnHealth: s.reports(), OnGone: s.health.Gone, OnProgress: func() { s.status.Wake() }, MCP: s.newMCP(env),
		Logger: log.With("component", "discovery"), Registerer: reg,
	})
	if err != nil {
		return nil, err
	}
	if err := s.newStatus(f, env, reg); err != nil {
		return nil, err
	}
	if err := s.newGRPC(ctx, f, env, reg); err != nil {
		return nil, err
	}
	if err := s.newWebhooks(f, env, reg); err != nil {
		return nil, err
	}
	if s.webhooks == nil {
		f.httpsAddr = "" // nobody asks there
	}
	s.newHTTP(f, reg)
	return s, s.listeners.bind(f)
}

// run serves until ctx ends. Each line reads as the picture in ARCHITECTURE.md.
func (s *server) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.store.Run(ctx) })     // reads files, feeds changes
	g.Go(func() error { return s.debounce.Run(ctx) })  // reads changes, feeds build: snapshot -> queue
	g.Go(func() error { return s.discovery.Run(ctx) }) // reads the queue, feeds the streams
	g.Go(func() error { return s.firstBuild(ctx) })    // reads the loaded store, feeds the first change
	g.Go(func() error { return s.status.Run(ctx) })    // reads events, problems and what proxies have acknowledged, feeds the stores
	if s.authority != nil {
		g.Go(func() error { return s.authority.Run(ctx) }) // reads plugged-in files and the store, feeds signing and handshakes
		g.Go(func() error { return s.followRoots(ctx) })   // reads the authority's roots, feeds changes
	}
	if s.platform != nil {
		g.Go(func() error { return s.platform.Run(ctx) }) // reads services and pods, feeds changes
	}
	if s.credentials != nil {
		g.Go(func() error { return s.credentials.Run(ctx) }) // reads Secrets, wakes the streams that asked for them
	}
	for _, token := range s.tokens {
		g.Go(func() error { return token.Run(ctx) }) // reads an issuer's keys, feeds authentication
	}
	if s.roots != nil {
		g.Go(func() error { return s.roots.Run(ctx) }) // reads namespaces and the authority, feeds ConfigMaps
	}
	if s.webhookConfig != nil {
		g.Go(func() error { return s.webhookConfig.Run(ctx) }) // reads webhook configurations and the authority, feeds the former
	}
	for _, file := range s.rootFiles {
		g.Go(func() error { return file.run(ctx) }) // reads roots of others, feeds the authority
	}
	serveGRPC(ctx, g, s.secure, s.listeners.secure, &s.drains.secure)
	serveGRPC(ctx, g, s.plaintext, s.listeners.plaintext, &s.drains.plaintext)
	serveHTTP(ctx, g, s.http, s.listeners.http)
	serveHTTP(ctx, g, s.webhooks, s.listeners.webhooks)
	serveHTTP(ctx, g, s.monitoring, s.listeners.monitoring)
	s.log.Info("serving", "component", "control", "address", s.listeners.String())
	return g.Wait()
}

// firstBuild waits for the stores and the registry and starts the pipeline: a
// snapshot of a half-read configuration would take routes away from proxies that
// have them.
func (s *server) firstBuild(ctx context.Context) error {
	for _, synced := range s.waits() {
		select {
		case <-ctx.Done():
			return nil
		case <-synced:
		}
	}
	s.debounce.Add(model.Change{All: true})
	return nil
}

// build makes a snapshot of what the stores hold and publishes it.
func (s *server) build(change model.Change) {
	if !s.loaded() {
		return // firstBuild covers what is coming in
	}
	start := time.Now()
	list := func(kind model.Kind) []*model.Config { return s.store.List(kind, "") }
	s.status.Building(change)
	if s.healthOn && change.Touches(model.WorkloadEntry) {
		s.health.Update(list(model.WorkloadEntry))
	}
	in := snapshot.Input{List: list, Get: s.store.Get, Mesh: s.mesh, Domain: s.domain, Unhealthy: s.health.Unhealthy()}
	if s.authority != nil {
		in.Roots = s.authority.RootPEM()
	}
	if s.platform != nil {
		in.Platform = s.platform
	}
	next := snapshot.Build(s.built, in, change)
	s.logProblems(next)
	s.built = next
	s.discovery.Push(next, change)
	s.status.Published(next.Sequence, change, next.Problems)
	s.log.Debug("pushed a snapshot", "component", "control", "count", s.discovery.Connected(), "duration", time.Since(start))
}

// logProblems tells what became wrong, once.
func (s *server) logProblems(next *snapshot.Mesh) {
	before := map[model.Problem]bool{}
	if s.built != nil {
		for _, p := range s.built.Problems {
			before[p] = true
		}
	}
	for _, p := range next.Problems {
		if !before[p] {
			s.log.Warn("an object does not take full effect", "component", "snapshot",
				"source", p.Source, "kind", p.Object.Kind, "name", p.Object.Name, "namespace", p.Object.Namespace, "reason", p.Reason)
		}
	}
}

// newGRPC makes the TLS and the plaintext server. Certificates are signed on
// the TLS one only.
func (s *server) newGRPC(ctx context.Context, f flags, env environment, reg *prometheus.Registry) error {
	if f.grpcAddr != "" {
		s.plaintext = newGRPCServer(f, env, nil, &s.drains.plaintext)
		s.discovery.Register(s.plaintext, nil)
	}
	if f.secureGRPCAddr == "" {
		if f.kubeconfig != "" {
			s.log.Warn("--kubeconfig has no effect: without --secureGRPCAddr nobody is asked who they are", "component", "control")
		}
		return nil
	}
	extra, err := meshRoots(s.mesh)
	if err != nil {
		return err
	}
	if err := s.openAuthority(ctx, f, env, reg); err != nil {
		return err
	}
	if err := s.authority.SetRoots("caCertificates of the mesh config", extra); err != nil {
		return err
	}
	auth, err := s.newAuthenticator(f, env, reg)
	if err != nil {
		return err
	}
	tlsConfig, err := s.newTLS(f, env)
	if err != nil {
		return err
	}
	s.secure = newGRPCServer(f, env, tlsConfig, &s.drains.secure)
	s.discovery.Register(s.secure, auth)
	if err := s.registerCertificates(s.secure, env, auth, reg); err != nil {
		return err
	}
	s.roots, err = s.newRoots(env)
	return err
}
