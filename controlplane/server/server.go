// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/autoregister"
	"github.com/outrigger-mesh/outrigger/controlplane/ca"
	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/denylist"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery/mcpserver"
	"github.com/outrigger-mesh/outrigger/controlplane/generate"
	"github.com/outrigger-mesh/outrigger/controlplane/health"
	"github.com/outrigger-mesh/outrigger/controlplane/kube"
	"github.com/outrigger-mesh/outrigger/controlplane/meshsettings"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/objectstatus"
	"github.com/outrigger-mesh/outrigger/controlplane/push"
	"github.com/outrigger-mesh/outrigger/controlplane/replicas"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/internal/filetree"
	"github.com/outrigger-mesh/outrigger/internal/footprint"
)

// Server is the wiring: each part, and the listeners they serve on.
type Server struct {
	log *slog.Logger
	// mesh and networks are the settings of the newest snapshot; once it runs,
	// only the debouncer's goroutine uses them. The follower has the newest.
	mesh      *meshv1alpha1.MeshConfig
	networks  *meshv1alpha1.MeshNetworks
	settings  *meshsettings.Follower
	version   string
	domain    string
	denyList  *denylist.Follower // nil if nobody is denied
	store     *config.Aggregate
	debounce  *push.Debouncer
	discovery *discovery.Server
	health    *health.Table
	healthOn  bool // what agents say counts
	status    *objectstatus.Writer
	// registration is what makes the entries of machines; if registers is
	// false, it only knows what the store has.
	registration *autoregister.Controller
	registers    bool
	skipped      *prometheus.CounterVec // events that make no push
	kube         *kube.Client           // nil if no cluster is used
	platform     *kube.Registry         // nil if no services come from it
	// credentials are the certificates of gateways; nil if there are none.
	credentials credentialSource
	authority   *ca.Authority       // nil without the TLS server
	auth        authn.Authenticator // of callers; nil without the TLS server
	clients     clients             // a part of auth
	people      *people             // what is remembered for people
	debugHTTP   bool                // their questions are answered over HTTP, too
	// What runs beside the authority; empty or nil if nothing asks for it.
	tokens    []*authn.JWT
	roots     *kube.Roots
	rootFiles []*filetree.Follower
	// conversion is of the Gateway API and of Ingresses; nil if it is off.
	conversion *conversion
	// built is the newest snapshot; only the debouncer's goroutine uses it.
	built *snapshot.Mesh

	replicas *replicas.Balancer // nil if no others are known

	secure, plaintext *grpc.Server // nil when off
	// drains are of the streams of these.
	drains struct{ secure, plaintext drain }
	// stopping is true from when the end has begun; shutdown is how long that may
	// take.
	stopping         atomic.Bool
	shutdown         time.Duration
	http, monitoring *http.Server // monitoring is nil when merged into http
	// webhooks answers the API server on a port of its own; validator is what
	// it serves. Nil without a cluster.
	webhooks      *http.Server
	validator     *http.ServeMux
	webhookConfig *kube.Webhook
	listeners     listeners
	limits        *limits
}

// giveBackAfter is when what the start needed is given back: once it is ready,
// and once many proxies have come.
var giveBackAfter = []time.Duration{2 * time.Second, 30 * time.Second}

// listeners are bound before anything runs: a port in use is an exit, not a
// log line.
type listeners struct {
	secure, plaintext, http, webhooks, monitoring net.Listener
}

// New builds every part and binds every port. Nothing runs yet.
func New(ctx context.Context, cfg Config, log *slog.Logger) (*Server, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	reg := newRegistry()
	log = limitLog(log, reg)
	s := &Server{log: log, version: cfg.Version, domain: cfg.Domain, healthOn: cfg.Health, shutdown: cfg.Shutdown, limits: newLimits(log, cfg, reg)}
	var err error
	if s.kube, err = s.connect(cfg, reg); err != nil {
		return nil, err
	}
	s.settings, err = meshsettings.New(ctx, meshsettings.Config{
		File: cfg.Mesh.File, NetworksFile: cfg.Mesh.NetworksFile, Shared: cfg.Mesh.Shared,
		Client: s.kube, Namespace: cfg.Namespace, Revision: cfg.Revision, FilesOnly: cfg.ConfigDir != "",
		Logger: log.With("component", "control"), Registerer: reg,
	})
	if err != nil {
		return nil, err
	}
	s.mesh, s.networks = s.settings.Current().Mesh, s.settings.Current().Networks
	if err := s.newDenyList(cfg.DenyList, reg); err != nil {
		return nil, err
	}
	if s.store, err = s.openStores(cfg, reg); err != nil {
		return nil, err
	}
	if err := s.newPlatform(cfg, reg); err != nil {
		return nil, err
	}
	s.selectNamespaces(s.mesh)
	secrets, err := s.newCredentials(cfg.Credentials, reg)
	if err != nil {
		return nil, err
	}
	s.debounce = push.NewDebouncer(push.DebouncerConfig{After: cfg.DebounceAfter, Max: cfg.DebounceMax, Build: s.build, Waited: func(d time.Duration) { s.people.gathered.Observe(d.Seconds()) }})
	s.health, err = health.New(health.Config{
		OnChange: s.debounce.Add, OnVerdict: func(keys []model.Key) { s.status.Mark(keys) }, Logger: log.With("component", "health"), Registerer: reg,
	})
	if err != nil {
		return nil, err
	}
	if err := s.newRegistration(cfg, reg); err != nil {
		return nil, err
	}
	objects := s.newMCP(cfg)
	objects.Logger = log.With("component", "discovery")
	s.discovery, err = discovery.New(discovery.Config{
		Generator: generate.New(cfg.Generate), Workers: cfg.PushWorkers, CanaryPush: cfg.CanaryPush, NoVHDS: !cfg.VHDS, Secrets: secrets,
		OnHealth: s.reports(), OnGone: s.gone, Presence: s.presence(), OnProgress: func() { s.status.Wake() }, Denied: s.denied, Objects: mcpserver.New(objects),
		CallerStreams: callerStreams(cfg.ConnectionsPerAddress), Logger: log.With("component", "discovery"), Registerer: reg,
	})
	if err != nil {
		return nil, err
	}
	if err := s.newReplicas(cfg, reg); err != nil {
		return nil, err
	}
	if err := s.newStatus(cfg, reg); err != nil {
		return nil, err
	}
	if err := s.newGatewayAPI(cfg); err != nil {
		return nil, err
	}
	if err := s.newGRPC(ctx, cfg, reg); err != nil {
		return nil, err
	}
	if err := s.newWebhooks(cfg, reg); err != nil {
		return nil, err
	}
	if s.webhooks == nil {
		cfg.Listen.Webhooks = "" // nobody asks there
	}
	s.newDebug(cfg, reg)
	s.newHTTP(cfg, reg)
	return s, s.listeners.bind(cfg)
}

// Run serves until a context ends. Each line reads as the picture in ARCHITECTURE.md.
// At the end nobody new is sent here, then the streams end, and then what they are
// served from.
func (s *Server) Run(until context.Context) error {
	g, until := errgroup.WithContext(until)
	ctx, end := context.WithCancel(context.WithoutCancel(until))
	g.Go(func() error {
		defer end()
		<-until.Done()
		s.drain()
		return nil
	})
	g.Go(func() error { return s.store.Run(ctx) })                             // reads files, feeds changes
	g.Go(func() error { return s.settings.Run(ctx, s.adopt, s.pushSettings) }) // reads the mesh config and the networks, feeds changes
	g.Go(func() error { return s.debounce.Run(ctx) })                          // reads changes, feeds build: snapshot -> queue
	g.Go(func() error { return s.discovery.Run(ctx) })                         // reads the queue, feeds the streams
	g.Go(func() error { return s.conversion.run(ctx) })                        // reads namespaces and conversions, feeds changes and the stores
	g.Go(func() error { return s.firstBuild(ctx) })                            // reads the loaded store, feeds the first change
	g.Go(func() error { return s.status.Run(ctx) })                            // reads events, problems and what proxies have acknowledged, feeds the stores
	if s.denyList != nil {
		g.Go(func() error { return s.denyList.Run(ctx) }) // reads the deny list, feeds changes
	}
	if s.authority != nil {
		g.Go(func() error { return s.authority.Run(ctx) }) // reads plugged-in files and the store, feeds signing and handshakes
		g.Go(func() error { return s.followRoots(ctx) })   // reads the authority's roots, feeds changes
	}
	if s.registers {
		g.Go(func() error { return s.registration.Run(ctx) }) // reads who is connected, groups and entries, feeds the store
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
		g.Go(func() error { return file.Run(ctx) }) // reads roots of others, feeds the authority
	}
	g.Go(func() error { footprint.GiveBack(ctx, giveBackAfter...); return nil }) // gives the system what the start needed
	g.Go(func() error { return s.people.run(ctx, s.store.Problems) })            // reads problems of the stores, feeds answers to people
	if s.replicas != nil {
		g.Go(func() error { return s.replicas.Run(until) }) // reads the load of other replicas, ends streams
	}
	s.serveGRPC(g, "secure", s.secure, s.listeners.secure)
	s.serveGRPC(g, "plaintext", s.plaintext, s.listeners.plaintext)
	s.serveHTTP(ctx, g, "http", s.http, s.listeners.http)
	s.serveHTTP(ctx, g, webhooksPort, s.webhooks, s.listeners.webhooks)
	s.serveHTTP(ctx, g, "monitoring", s.monitoring, s.listeners.monitoring)
	s.log.Info("serving", "component", "control", "address", s.listeners.String())
	return g.Wait()
}

// firstBuild waits for the stores and the registry and starts the pipeline: a
// snapshot of a half-read configuration would take routes away from proxies that
// have them.
func (s *Server) firstBuild(ctx context.Context) error {
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
func (s *Server) build(change model.Change) {
	if !s.loaded() {
		return // firstBuild covers what is coming in
	}
	start := time.Now()
	settings := s.settings.Current()
	s.mesh, s.networks = settings.Mesh, settings.Networks
	change = s.convert(change)
	s.status.Building(change)
	if s.healthOn && change.Touches(model.WorkloadEntry) {
		s.health.Update(s.list(model.WorkloadEntry))
	}
	in := snapshot.Input{List: s.list, Get: s.get, Mesh: s.mesh, Networks: s.networks, Domain: s.domain, Denied: s.denyList.List(), Unhealthy: s.health.Unhealthy()}
	if s.authority != nil {
		in.Roots = s.authority.RootPEM()
	}
	if s.platform != nil {
		in.Platform = s.platform
	}
	next := snapshot.Build(s.built, in, change)
	s.people.built(next, change, time.Since(start))
	s.conclude(next)
	s.logProblems(next)
	s.built = next
	s.discovery.Push(next, change)
	s.status.Published(next.Sequence, change, next.Problems)
	s.log.Debug("pushed a snapshot", "component", "control", "count", s.discovery.Connected(), "duration", time.Since(start))
}

// logProblems tells what became wrong, once.
func (s *Server) logProblems(next *snapshot.Mesh) {
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
func (s *Server) newGRPC(ctx context.Context, cfg Config, reg *prometheus.Registry) error {
	if cfg.Listen.Plaintext != "" {
		s.plaintext = s.newGRPCServer(cfg, insecure.NewCredentials(), &s.drains.plaintext, grpc.ChainStreamInterceptor(useConnection))
		s.discovery.Register(s.plaintext, nil)
	}
	if cfg.Listen.Secure == "" {
		if cfg.Cluster.Kubeconfig != "" {
			s.log.Warn("--kubeconfig has no effect: without --secureGRPCAddr nobody is asked who they are", "component", "control")
		}
		return nil
	}
	extra, err := meshRoots(s.mesh)
	if err != nil {
		return err
	}
	if err := s.openAuthority(ctx, cfg, reg); err != nil {
		return err
	}
	if err := s.authority.SetRoots(rootsOfMesh, extra); err != nil {
		return err
	}
	auth, err := s.newAuthenticator(cfg, reg)
	if err != nil {
		return err
	}
	auth = trusting{auth}
	s.auth = auth
	tlsConfig, err := s.newTLS(cfg)
	if err != nil {
		return err
	}
	s.secure = s.newGRPCServer(cfg, credentials.NewTLS(tlsConfig), &s.drains.secure)
	s.discovery.Register(s.secure, auth)
	if err := s.registerCertificates(s.secure, cfg, auth, reg); err != nil {
		return err
	}
	s.roots, err = s.newRoots(cfg)
	return err
}
