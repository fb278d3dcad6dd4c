// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	grpccredentials "google.golang.org/grpc/credentials"
	grpcpeer "google.golang.org/grpc/peer"
	"k8s.io/client-go/util/workqueue"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery/debug"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery/mcpserver"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery/quarantine"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery/secrets"
	"github.com/outrigger-mesh/outrigger/controlplane/generate"
	"github.com/outrigger-mesh/outrigger/controlplane/jwks"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// shortTypes are the names of the served types in metrics.
var shortTypes = map[string]string{
	xds.TypeCluster:  "cds",
	xds.TypeEndpoint: "eds",
	xds.TypeListener: "lds",
	xds.TypeRoute:    "rds",

	xds.TypeVirtualHost: "vhds",

	xds.TypeExtension:   "ecds",
	xds.TypeSecret:      "sds",
	xds.TypeNameTable:   "nds",
	xds.TypeProxyConfig: "pcds",
	xds.TypeBootstrap:   "bds",
}

// isServed reports whether proxies can subscribe to a type.
func isServed(typeURL string) bool { _, ok := shortTypes[typeURL]; return ok }

// Generator generates the resources of one type for one proxy. It must be pure, and
// fast for repeated calls: every stream calls it in every round.
type Generator interface {
	Generate(mesh *snapshot.Mesh, proxy *model.Proxy, typeURL string) *xds.Set
}

// Config configures a [Server].
type Config struct {
	Generator Generator
	// Workers is the number of streams that are prepared for a push at a time.
	Workers int
	Secrets secrets.Config
	// CanaryPush sends a change of clusters, listeners or routes to one proxy
	// first, and to the others of its group after that one has accepted it.
	CanaryPush bool
	// CanaryWait returns how long the others wait for it; nil means 1 s.
	CanaryWait func() time.Duration
	// Objects serves other control planes; nil serves none.
	Objects *mcpserver.Server
	// NoVHDS sends virtual hosts inside routes to all proxies, even to those that
	// support them as separate resources.
	NoVHDS bool
	// OnHealth is called with the health that an agent reports of its
	// application, in the order of the reports of a stream. It must not block.
	// The message is the agent's text. It may be nil.
	OnHealth func(proxy *model.Proxy, healthy bool, message string)
	// OnUnknownKey is called with the sources of the keys with which a proxy
	// validates tokens, when it has refused one whose key is not among them. It must
	// not block. It may be nil.
	OnUnknownKey func(sources []jwks.Source)
	// OnGone is called when the stream of a proxy has ended, after its last
	// report. It must not block. It may be nil.
	OnGone func(proxy *model.Proxy)
	// Presence is notified of new proxies, and returns their labels.
	Presence PresenceConfig
	// Denied returns the reason why a caller is not served any more, or nil. It is
	// called with every push and request, and must not block. If it is nil, all
	// callers are served.
	Denied func(caller *authn.Caller) error
	// CallerStreams is the maximum number of streams of one identity from one
	// address, at least 64. More are needed for proxies that share an address
	// behind a NAT.
	CallerStreams int
	// OnProgress is called when [Server.Distribution] may have changed. It must
	// not block. It may be nil.
	OnProgress func()
	Logger     *slog.Logger
	// Registerer registers the metrics. It may be nil.
	Registerer prometheus.Registerer
}

// Server serves ADS.
type Server struct {
	gen     Generator
	workers int
	log     *slog.Logger
	metrics *metrics
	// queue contains the streams that wait for a push, each at most once. It contains no changes: a
	// worker reads the newest snapshot.
	queue  *workqueue.Typed[*stream]
	shared *shared
	// quarantine decides which versions of generated resources proxies receive.
	quarantine *quarantine.Quarantine
	secrets    *secrets.Server
	objects    *mcpserver.Server // may be nil
	noVHDS     bool
	// onHealth may be nil.
	onHealth func(proxy *model.Proxy, healthy bool, message string)
	onGone   func(proxy *model.Proxy) // may be nil
	gone     gone
	// onUnknownKey may be nil.
	onUnknownKey func(sources []jwks.Source)
	presence     PresenceConfig
	// onProgress may be nil.
	onProgress func()
	denied     func(caller *authn.Caller) error // may be nil
	// labelWait is how long a proxy waits for its workload to be known, as a
	// time.Duration.
	labelWait atomic.Int64
	// admission holds a token for each proxy whose first configuration is being
	// generated.
	admission chan struct{}
	// mesh is the newest snapshot; nil until the first Push.
	mesh atomic.Pointer[published]

	mu      sync.Mutex // guards streams and watching
	streams map[*stream]struct{}
	// watching are the streams that asked for secrets.
	watching map[*stream]struct{}
	count    atomic.Uint64 // streams so far, for their ids

	problems problems
	// callers limits the streams and requests of each caller.
	callers *callers
	// questions answers debug questions.
	questions atomic.Pointer[debug.Server]
}

// published is a snapshot and the start time of its push.
type published struct {
	*snapshot.Mesh
	since  time.Time
	denied deniedList
}

// New returns a server. It starts nothing; see Run.
func New(cfg Config) (*Server, error) {
	if cfg.Generator == nil {
		return nil, errors.New("discovery needs a generator")
	}
	if cfg.Workers <= 0 {
		return nil, fmt.Errorf("discovery needs at least one worker, not %d", cfg.Workers)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	q := workqueue.NewTyped[*stream]()
	s := &Server{
		gen: cfg.Generator, workers: cfg.Workers, log: cfg.Logger, queue: q,
		metrics: newMetrics(cfg.Registerer, func() float64 { return float64(q.Len()) }),
		streams: map[*stream]struct{}{}, watching: map[*stream]struct{}{}, shared: newShared(),
		onHealth: cfg.OnHealth, onGone: cfg.OnGone, onUnknownKey: cfg.OnUnknownKey, presence: cfg.Presence, onProgress: cfg.OnProgress, denied: cfg.Denied, noVHDS: cfg.NoVHDS,
	}
	s.questions.Store(debug.New(debug.Config{}, source{s}))
	s.callers = newCallers(cfg.CallerStreams)
	s.labelWait.Store(int64(labelWait))
	s.objects = cfg.Objects
	s.admission = make(chan struct{}, cfg.Workers)
	s.quarantine = quarantine.New(quarantine.Config{
		Canary: cfg.CanaryPush, Patience: cfg.CanaryWait, Diff: s.shared.diff, Guard: generate.Guard, Logger: cfg.Logger, Registerer: cfg.Registerer,
		Recovered: func(cause any) error { return s.fault(cause, "other") },
	})
	s.secrets = secrets.New(cfg.Secrets, cfg.Registerer, func(cause any) error { return s.fault(cause, "other") })
	s.secrets.OnChange(s.secretChanged)
	return s, nil
}

// watch makes a stream wake up when a Secret that it uses changes.
func (s *Server) watch(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watching[st] = struct{}{}
}

// secretChanged wakes the streams that asked for a Secret.
func (s *Server) secretChanged(namespace, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for st := range s.watching {
		secret, plugin := st.secrets.Changed(namespace, name), st.plugins.Changed(namespace, name)
		if secret || plugin {
			st.notify()
		}
	}
}

// report passes on a report of an authenticated agent: anybody else could take any
// workload out of service. It ignores the other requests that ignored selects.
func (s *Server) report(proxy *model.Proxy, caller *authn.Caller, q *request) {
	switch {
	case caller == nil:
	case q.typeURL == typeHealth && s.onHealth != nil:
		s.onHealth(proxy, q.rejected == "", clipped(q.message))
	case q.typeURL == node.UnknownKeyType && s.onUnknownKey != nil:
		s.onUnknownKey(s.mesh.Load().KeySourcesOf(proxy))
	}
}

// Ready reports whether there is a snapshot to serve.
func (s *Server) Ready() bool { return s.mesh.Load() != nil }

// Connected returns how many streams are open.
func (s *Server) Connected() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.streams)
}

// Push publishes a snapshot and queues every stream. It does not block.
func (s *Server) Push(mesh *snapshot.Mesh, change model.Change) {
	s.shared.reset()
	s.objects.Changed(change)
	next := &published{Mesh: mesh, since: time.Now()}
	next.denied = s.mesh.Load().deniedBefore().next(mesh, next.since)
	if before := s.mesh.Swap(next).deniedBefore(); before != next.denied {
		s.warnOfSerials()
	}
	s.problems.forget(mesh.Sequence)
	s.quarantine.Sweep()
	s.mu.Lock()
	defer s.mu.Unlock()
	for st := range s.streams {
		s.queue.Add(st)
	}
}

// Run serves the push queue until ctx ends. A worker generates the resources of a
// stream, which is the expensive part, and wakes the stream, which sends them: a
// slow proxy does not delay others.
func (s *Server) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	defer context.AfterFunc(ctx, s.queue.ShutDown)()
	for range s.workers {
		g.Go(func() error { // takes streams from the queue and wakes them
			for {
				st, down := s.queue.Get()
				if down || ctx.Err() != nil {
					return nil
				}
				s.prepare(st)
				s.queue.Done(st)
			}
		})
	}
	return g.Wait()
}

// prepare generates the resources of a stream from the newest snapshot and wakes
// the stream. A panic is counted and logged; other streams are unaffected.
func (s *Server) prepare(st *stream) {
	s.mu.Lock()
	_, open := s.streams[st]
	s.mu.Unlock()
	if !open || st.leaving.Load() {
		return // it has ended, or receives no newer snapshot
	}
	defer st.notify()
	defer func() {
		if cause := recover(); cause != nil {
			_ = s.fault(cause, "other") // the stream itself has not failed yet
		}
	}()
	if st.objects != nil {
		return // all control planes share the resources of objects
	}
	mesh, proxy := s.mesh.Load(), st.relabelled()
	s.metrics.waited.Observe(time.Since(mesh.since).Seconds())
	s.generateAll(mesh.Mesh, proxy)
	if st.named.Load() {
		s.generate(mesh.Mesh, proxy, xds.TypeNameTable)
	}
}

// newStream returns a stream that the server does not list yet.
func (s *Server) newStream(g grpc.ServerStream, proxy *model.Proxy, caller *authn.Caller, objects *mcpserver.Server) *stream {
	st := &stream{
		server: s, proxy: proxy, objects: objects, caller: caller, secure: caller != nil && private(g.Context()), sendMsg: g.SendMsg,
		subs: map[string]*subscription{},
		wake: make(chan struct{}, 1),
		// Earlier pushes do not count as convergence of this proxy.
		pushed: s.mesh.Load().since,
		number: s.count.Add(1), connected: time.Now(),
	}
	st.log = s.log.With("proxy", proxy.ID, "stream", st.id(), "address", address(g.Context()))
	if id := st.identity(); id != "" {
		st.log = st.log.With("identity", id)
	}
	st.verbose = st.log.Enabled(g.Context(), slog.LevelDebug)
	st.secrets, st.plugins = s.secrets.NewView(st.client()), s.secrets.NewPlugins(st.client(), s)
	return st
}

// enter adds a stream to the server's list. From then on other goroutines use it.
func (s *Server) enter(st *stream) {
	st.objects.Opened()
	s.mu.Lock()
	s.streams[st] = struct{}{}
	s.mu.Unlock()
	s.metrics.connected.Inc()
	s.gone.remove(st.proxy.ID)
	st.log.Info("proxy connected")
	if st.objects == nil && s.mesh.Load().denied.serials > 0 && ignoresSerials(st.proxy) {
		st.log.Warn("the proxy ignores the serial numbers of the deny list: it needs Envoy 1."+strconv.Itoa(serialsFrom), "version", st.proxy.Envoy)
	}
}

// client returns the proxy's description for package secrets.
func (s *stream) client() secrets.Client {
	return secrets.Client{Namespace: s.proxy.Namespace, Caller: s.caller, Secure: s.secure, Log: s.log}
}

// identity returns the authenticated identity of the caller, or "" on a port without
// authentication.
func (s *stream) identity() string {
	if s.caller == nil {
		return ""
	}
	return s.caller.ID.String()
}

// private reports whether a stream is encrypted.
func private(ctx context.Context) bool {
	p, ok := grpcpeer.FromContext(ctx)
	if !ok {
		return false
	}
	info, ok := p.AuthInfo.(interface {
		GetCommonAuthInfo() grpccredentials.CommonAuthInfo
	})
	return ok && info.GetCommonAuthInfo().SecurityLevel == grpccredentials.PrivacyAndIntegrity
}

func (s *Server) remove(st *stream) {
	s.mu.Lock()
	delete(s.streams, st)
	delete(s.watching, st)
	s.mu.Unlock()
	if st.member != nil {
		st.member.Leave()
	}
	st.objects.Closed()
	if st.objects == nil && !st.leaving.Load() { // one that moves to another replica is not lost
		s.gone.add(st)
	}
	s.notifyGone(st.proxy)
	s.progressed()
	s.metrics.connected.Dec()
	st.log.Info("proxy disconnected")
}
