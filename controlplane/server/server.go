// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/denylist"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery/mcpserver"
	"github.com/outrigger-mesh/outrigger/controlplane/generate"
	"github.com/outrigger-mesh/outrigger/controlplane/health"
	"github.com/outrigger-mesh/outrigger/controlplane/jwks"
	"github.com/outrigger-mesh/outrigger/controlplane/kube"
	"github.com/outrigger-mesh/outrigger/controlplane/meshsettings"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/objectstatus"
	"github.com/outrigger-mesh/outrigger/controlplane/patch"
	"github.com/outrigger-mesh/outrigger/controlplane/push"
	"github.com/outrigger-mesh/outrigger/controlplane/replicas"
	"github.com/outrigger-mesh/outrigger/controlplane/revisions"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/internal/footprint"
	"github.com/outrigger-mesh/outrigger/internal/sdnotify"
	"github.com/outrigger-mesh/outrigger/internal/tlspolicy"
)

// Server contains the components of the control plane.
type Server struct {
	log *slog.Logger

	settings  *meshsettings.Follower // the mesh config and the networks
	kube      *kube.Client           // nil if no cluster is used
	objects   objects                // inputs of snapshots
	machines  machines               // workloads that report about themselves
	debounce  *push.Debouncer        // changes to snapshots
	snapshots snapshots
	discovery *discovery.Server    // snapshots to proxies
	status    *objectstatus.Writer // writes the status of objects
	skipped   *prometheus.CounterVec
	history   *history           // data for debug answers
	revisions *revisions.Log     // versions of objects
	services  *revisions.Log     // versions of services of clusters; nil without clusters
	identity  identity           // certificates and authentication
	joining   *joining           // tokens of machines; nil without the TLS server
	replicas  *replicas.Balancer // nil if no others are configured
	webhooks  *http.ServeMux     // serves the API server; nil without a cluster
	injection *injection         // nil if it is off
	manager   sdnotify.Manager   // receives reports about this server
	faults    faults
	ports     ports
}

// objects are the inputs of snapshots.
type objects struct {
	store    *config.Aggregate
	platform *kube.Registry // nil if services are not read from a cluster
	// credentials are the certificates of gateways; nil if there are none.
	credentials credentialSource
	// roots are those in ConfigMaps; nil if there are none. rootMaps are the same if they are read
	// from a cluster.
	roots    rootSource
	rootMaps *kube.RootMaps
	// conversion is of the Gateway API and of Ingresses; nil if it is off.
	conversion *conversion
	// denyList is nil without a deny list.
	denyList *denylist.Follower
	// keySets are the keys of token issuers.
	keySets *jwks.Follower
	// keysTried is closed once the first snapshot need not wait for keys of token issuers.
	keysTried chan struct{}
}

// run runs the components until ctx is done.
func (o *objects) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return o.store.Run(ctx) })      // reads files, feeds changes
	g.Go(func() error { return o.conversion.run(ctx) }) // reads namespaces and conversions, feeds changes and the store
	if o.platform != nil {
		g.Go(func() error { return o.platform.Run(ctx) }) // reads services and pods, feeds changes
	}
	if o.credentials != nil {
		g.Go(func() error { return o.credentials.Run(ctx) }) // reads Secrets, wakes the streams that use them
	}
	if o.rootMaps != nil {
		g.Go(func() error { return o.rootMaps.Run(ctx) }) // reads ConfigMaps, feeds changes, wakes streams
	}
	if o.denyList != nil {
		g.Go(func() error { return o.denyList.Run(ctx) }) // reads the deny list, feeds changes
	}
	g.Go(func() error { return o.keySets.Run(ctx) }) // reads keys of token issuers, feeds changes
	return g.Wait()
}

// snapshots are the newest snapshot and the settings that it was built from. Once the
// server runs, only the goroutine of the debouncer uses it; the follower of the
// settings has the newest ones.
type snapshots struct {
	domain   string // of the services of a cluster
	patches  patch.Limits
	policy   tlspolicy.Policy
	built    *snapshot.Mesh
	mesh     *meshv1alpha1.MeshConfig
	networks *meshv1alpha1.MeshNetworks
}

// earlierVersions is how many versions of each EnvoyFilter are read at the start: patches that Envoy
// would refuse are replaced by those of the newest valid one.
const earlierVersions = 4

// giveBackAfter are the times after which the memory of the start is returned to the
// system: once the server is ready, and once many proxies have connected.
var giveBackAfter = []time.Duration{2 * time.Second, 30 * time.Second}

// New creates every component and binds every port. It starts nothing.
func New(ctx context.Context, cfg Config, log *slog.Logger) (*Server, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	reg := newRegistry()
	log = limitLog(log, reg)
	s := &Server{log: log, manager: cfg.Manager, snapshots: snapshots{domain: cfg.Domain, patches: cfg.Patches, policy: cfg.Compliance}}
	s.ports.linger, s.ports.hurry, s.ports.shutdown, s.ports.limits = cfg.Linger, cfg.Hurry, cfg.Shutdown, newLimits(log, cfg, reg)
	var err error
	if s.kube, err = s.connect(cfg, reg); err != nil {
		return nil, err
	}
	s.settings, err = meshsettings.New(ctx, meshsettings.Config{
		File: cfg.Mesh.File, NetworksFile: cfg.Mesh.NetworksFile, Shared: cfg.Mesh.Shared,
		Client: s.kube, Namespace: cfg.Namespace, Revision: cfg.Revision, FilesOnly: cfg.ConfigDir != "",
		Logger: log.With("component", "control"), Registerer: reg, Fault: s.faults.set,
	})
	if err != nil {
		return nil, err
	}
	s.snapshots.mesh, s.snapshots.networks = s.settings.Current().Mesh, s.settings.Current().Networks
	if err := s.newDenyList(cfg.DenyList, reg); err != nil {
		return nil, err
	}
	if s.objects.store, err = s.openStores(cfg, reg); err != nil {
		return nil, err
	}
	if err := s.newKeySets(cfg, reg); err != nil {
		return nil, err
	}
	if err := s.newPlatform(cfg, reg); err != nil {
		return nil, err
	}
	s.selectNamespaces(s.snapshots.mesh)
	secrets, err := s.newCredentials(cfg.Credentials, reg)
	if err != nil {
		return nil, err
	}
	s.debounce = push.NewDebouncer(push.DebouncerConfig{After: cfg.DebounceAfter, Max: cfg.DebounceMax, Build: s.build, Waited: func(d time.Duration) { s.history.gathered.Observe(d.Seconds()) }})
	s.machines, err = newMachines(cfg, &s.objects, log, health.Config{OnChange: s.debounce.Add, OnVerdict: func(keys []model.Key) { s.status.Mark(keys) }, Registerer: reg})
	if err != nil {
		return nil, err
	}
	objects := s.newMCP(cfg)
	objects.Logger = log.With("component", "discovery")
	s.discovery, err = discovery.New(discovery.Config{
		Generator: generate.New(cfg.Generate), Workers: cfg.PushWorkers, CanaryPush: cfg.CanaryPush, NoVHDS: !cfg.VHDS, Secrets: secrets,
		OnHealth: s.machines.reports(), OnGone: s.machines.gone, OnUnknownKey: s.objects.keySets.Refresh, Presence: s.machines.presence(), OnProgress: func() { s.status.Wake() }, Denied: s.denied, Objects: mcpserver.New(objects),
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
	if s.ports.webhooks == nil {
		cfg.Listen.Webhooks = "" // no API server calls it
	}
	s.newDebug(cfg, reg)
	s.newHTTP(cfg, reg)
	s.newAdmin(cfg)
	return s, s.ports.listeners.bind(cfg)
}

// Run serves until a context ends. Its lines follow the picture in ARCHITECTURE.md.
// At the end the server first reports that it is not ready, then the streams end, and
// then the components that serve them. If the context ends, the ports serve for
// [Config.Linger] before that, or until [Config.Hurry]; if a component fails, they do not.
func (s *Server) Run(asked context.Context) error {
	g, until := errgroup.WithContext(asked)
	ctx, end := context.WithCancel(context.WithoutCancel(until))
	g.Go(func() error {
		defer end()
		<-until.Done()
		s.ports.stopping.Store(true)
		if asked.Err() != nil {
			select {
			case <-time.After(s.ports.linger):
			case <-s.ports.hurry:
			}
		}
		s.ports.drain()
		return nil
	})
	g.Go(func() error { return s.objects.run(ctx) })                           // reads stores and clusters, feeds changes
	g.Go(func() error { return s.settings.Run(ctx, s.adopt, s.pushSettings) }) // reads the mesh config and the networks, feeds changes
	g.Go(func() error { return s.identity.run(ctx, s.rootsChanged) })          // reads keys, roots and tokens, feeds signing, handshakes and changes
	g.Go(func() error { return s.firstBuild(ctx) })                            // reads the loaded store, feeds the first change
	g.Go(func() error { return s.debounce.Run(ctx) })                          // reads changes, feeds build: snapshot -> queue
	g.Go(func() error { return s.discovery.Run(ctx) })                         // reads the queue, feeds the streams
	g.Go(func() error { return s.status.Run(ctx) })                            // reads events, problems and acknowledgements of proxies, feeds the stores
	g.Go(func() error { return s.machines.run(ctx) })                          // reads connected proxies, groups and entries, feeds the store
	if s.injection != nil {
		g.Go(func() error { return s.injection.run(ctx) }) // reads the configuration of the injector, feeds its webhook
	}
	g.Go(func() error { footprint.GiveBack(ctx, giveBackAfter...); return nil }) // frees memory of the start
	g.Go(func() error {                                                          // reads the state of the pipeline, feeds the service manager
		s.manager.Run(ctx, until.Done(), s.log.With("component", "sdnotify"), s.state)
		return nil
	})
	g.Go(func() error { return s.history.run(ctx, s.objects.store.Problems) }) // reads problems of the stores, feeds debug answers
	g.Go(func() error { return s.revisions.Run(ctx) })                         // reads changed objects, feeds debug answers
	if s.services != nil {
		g.Go(func() error { return s.services.Run(ctx) }) // reads changed services, feeds debug answers
	}
	if s.replicas != nil {
		g.Go(func() error { return s.replicas.Run(until) }) // reads the load of other replicas, ends streams
	}
	g.Go(func() error { return s.ports.run(ctx) }) // reads calls, feeds discovery, signing and debug answers
	s.log.Info("serving", "component", "control", "address", s.ports.listeners.String())
	return g.Wait()
}

// firstBuild waits for the stores and the registry, and starts the pipeline: a snapshot
// of a partially loaded configuration would remove routes from proxies.
func (s *Server) firstBuild(ctx context.Context) error {
	for _, synced := range s.objects.waits() {
		select {
		case <-ctx.Done():
			return nil
		case <-synced:
		}
	}
	s.waitForKeys(ctx)
	s.debounce.Add(model.Change{All: true})
	return nil
}

// build builds a snapshot from the stores and publishes it.
func (s *Server) build(change model.Change) {
	if !s.objects.ready() {
		return // firstBuild includes the change
	}
	start := time.Now()
	settings := s.settings.Current()
	s.snapshots.mesh, s.snapshots.networks = settings.Mesh, settings.Networks
	change = s.convert(change)
	s.status.Building(change)
	if s.machines.reported && change.Touches(model.WorkloadEntry) {
		s.machines.health.Update(s.objects.list(model.WorkloadEntry))
	}
	in := s.input(settings)
	if s.snapshots.built == nil && len(s.objects.list(model.EnvoyFilter)) > 0 {
		var err error
		if in.Earlier, err = s.revisions.Earlier(model.EnvoyFilter, earlierVersions); err != nil {
			s.log.Warn("versions of EnvoyFilters cannot be read; patches that Envoy would refuse have no valid one", "component", "control", "err", err)
		}
	}
	next := snapshot.Build(s.snapshots.built, in, change)
	next.Problems = model.LimitProblems(append(next.Problems, s.uninjected()...))
	s.history.built(next, change, time.Since(start))
	s.note(change, start)
	s.objects.conclude(next)
	s.logProblems(next)
	if s.snapshots.built == nil || s.snapshots.built.RequestAuthentications != next.RequestAuthentications {
		s.objects.keySets.Follow(next.RequestAuthentications.KeySources())
	}
	s.snapshots.built = next
	s.discovery.Push(next, change)
	s.status.Published(next.Sequence, change, next.Problems)
	s.log.Debug("snapshot pushed", "component", "control", "count", s.discovery.Connected(), "duration", time.Since(start))
}

// input returns the current data for a snapshot.
func (s *Server) input(settings *meshsettings.Settings) snapshot.Input {
	in := snapshot.Input{
		List: s.objects.list, Get: s.objects.get, Mesh: settings.Mesh, Networks: settings.Networks, Domain: s.snapshots.domain,
		Denied: s.objects.denyList.List(), Unhealthy: s.machines.health.Unhealthy(), Keys: s.objects.keySets.Sets(), Patches: s.snapshots.patches, Compliance: s.snapshots.policy,
	}
	if s.identity.authority != nil {
		in.Roots = s.identity.authority.RootPEM()
	}
	if s.objects.platform != nil {
		in.Platform = s.objects.platform
	}
	return in
}

// logProblems logs the new problems of a snapshot.
func (s *Server) logProblems(next *snapshot.Mesh) {
	before := map[model.Problem]bool{}
	if s.snapshots.built != nil {
		for _, p := range s.snapshots.built.Problems {
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

// newGRPC creates the TLS and the plaintext server. Only the TLS server signs
// certificates.
func (s *Server) newGRPC(ctx context.Context, cfg Config, reg *prometheus.Registry) error {
	if cfg.Listen.Plaintext != "" {
		s.ports.plaintext = s.ports.newGRPCServer(cfg, insecure.NewCredentials(), &s.ports.drains.plaintext, grpc.ChainStreamInterceptor(useConnection))
		s.discovery.Register(s.ports.plaintext, nil)
	}
	if cfg.Listen.Secure == "" {
		if cfg.Cluster.Kubeconfig != "" {
			s.log.Warn("--kubeconfig has no effect: without --secureGRPCAddr no caller is authenticated", "component", "control")
		}
		return nil
	}
	extra, err := meshRoots(s.snapshots.mesh)
	if err != nil {
		return err
	}
	if err := s.openAuthority(ctx, cfg, reg); err != nil {
		return err
	}
	if err := s.identity.authority.SetRoots(rootsOfMesh, extra); err != nil {
		return err
	}
	auth, err := s.newAuthenticator(cfg, reg)
	if err != nil {
		return err
	}
	auth = trusting{auth}
	s.identity.auth = auth
	tlsConfig, err := s.newTLS(cfg, xdsPort)
	if err != nil {
		return err
	}
	s.ports.secure = s.ports.newGRPCServer(cfg, credentials.NewTLS(tlsConfig), &s.ports.drains.secure)
	s.discovery.Register(s.ports.secure, auth)
	s.joining = s.newJoining(cfg, tlsConfig)
	if err := s.registerCertificates(s.ports.secure, cfg, auth, reg); err != nil {
		return err
	}
	s.identity.roots, err = s.newRoots(cfg)
	return err
}
