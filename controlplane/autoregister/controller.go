// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package autoregister

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	"k8s.io/client-go/util/workqueue"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/health"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// Store is the store of the entries. Synced is closed after the initial read.
type Store interface {
	config.ReadWriter
	Synced() <-chan struct{}
}

// Config configures a [Controller].
type Config struct {
	// Store contains the groups and the entries. [Controller.Hear] must be registered with it
	// before Run is called.
	Store Store
	// Instance is the name of this replica in the entries. It should survive restarts and be
	// unique among the replicas.
	Instance string
	// Grace is the time for which the entry of a disconnected proxy is kept.
	Grace time.Duration
	// Orphaned is the time for which another replica may be silent before it must prove that the
	// proxies of its entries are still connected; 0 means 45 minutes, as in Istio.
	Orphaned time.Duration
	// StrictAddress refuses proxies whose address differs from the source address of their
	// connection.
	StrictAddress bool
	Logger        *slog.Logger
	// Registerer registers the metrics; nil disables them.
	Registerer prometheus.Registerer
}

const (
	// returning is the time that proxies have to reconnect after a start. It is several times the
	// longest reconnect delay of an agent.
	returning = time.Minute
	// slack is added to twice the grace period before another replica's entry is removed.
	slack    = 5 * time.Second
	orphaned = 45 * time.Minute
)

// Limits of the writes.
const (
	workers   = 16
	writeTime = 10 * time.Second
	// All writes: per second, and burst.
	writesPerSecond, writesAtOnce = 200, 400
	// Per identity: new entries per second, burst, and total number of entries.
	newPerSecond, newAtOnce, maxEntries = 20, 500, 10_000
	// The first and the longest delay after a failed write.
	firstPause, longPause = 50 * time.Millisecond, 30 * time.Second
)

// ErrNoGroup is returned for a proxy that names a WorkloadGroup that does not exist.
var ErrNoGroup = errors.New("cannot find WorkloadGroup")

// Controller maintains the entries of the proxies that are connected to this replica. It is safe
// for concurrent use.
type Controller struct {
	cfg     Config
	store   Store
	log     *slog.Logger
	metrics *metrics
	index   *Index
	writes  *rate.Limiter

	mu sync.Mutex // guards the fields below
	// started is when Run started.
	started time.Time
	// work contains the entries to reconcile; queue contains those that are due, now or later. It
	// is nil before Run and processes an entry by one worker at a time.
	work  map[model.Key]*item
	queue workqueue.TypedDelayingInterface[model.Key]
	// proxies maps each connected proxy to its entry.
	proxies map[*model.Proxy]model.Key
	// blocked maps an entry to the entries that cannot be created because of it.
	blocked    map[model.Key]map[model.Key]bool
	identities map[identity]*budget
	// replicas contains the replicas that an item in work names, by instance name.
	replicas map[string]*replicaState
}

// replicaState records when a replica last showed a sign of life, when it was last asked whether
// it still has a proxy, and how many items name it.
type replicaState struct {
	seen, asked time.Time
	items       int
}

type identity struct{ namespace, account string }

func identityOf(p *model.Proxy) identity { return identity{p.Namespace, p.ServiceAccount} }

// budget limits the registrations of an identity.
type budget struct {
	entries int // number of entries of connected proxies
	fresh   *rate.Limiter
}

// item is one entry and the connections of its proxy to this replica.
type item struct {
	conns []*connection // the newest last
	// claim is the connection time, and left the disconnection time, that this replica last wrote
	// into the entry.
	claim, left string
	// state is the connection state in the entry; since is when this replica first saw it.
	state string
	since time.Time
	// replica is the replica that the entry names, if named is true.
	replica string
	named   bool
	// refusal is the reason why there is no entry, as last logged.
	refusal  string
	failures int
}

// connection is one stream of a proxy.
type connection struct {
	peer model.ConnectedProxy
	// claimed is true if the entry was once assigned to this replica for this connection.
	claimed bool
}

// New returns a controller. It returns an error for an invalid configuration. The controller is
// idle until Run is called.
func New(cfg Config) (*Controller, error) {
	switch {
	case cfg.Store == nil || cfg.Instance == "":
		return nil, errors.New("registration needs a store and a name of this replica")
	case cfg.Grace < 0 || cfg.Orphaned < 0:
		return nil, fmt.Errorf("registration needs times that are not negative: %s, %s", cfg.Grace, cfg.Orphaned)
	}
	if cfg.Orphaned == 0 {
		cfg.Orphaned = orphaned
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	c := &Controller{
		cfg: cfg, store: cfg.Store, log: cfg.Logger, index: NewIndex(), started: time.Now(),
		writes: rate.NewLimiter(writesPerSecond, writesAtOnce),
		work:   map[model.Key]*item{}, proxies: map[*model.Proxy]model.Key{}, blocked: map[model.Key]map[model.Key]bool{},
		identities: map[identity]*budget{}, replicas: map[string]*replicaState{},
	}
	var err error
	c.metrics, err = newMetrics(cfg.Registerer)
	return c, err
}

// Index returns an index of the entries that the store has reported.
func (c *Controller) Index() *Index { return c.index }

// Connect registers a connected proxy. A proxy that may not be registered is served like any
// other, and the reason is logged. As in Istio, Connect returns [ErrNoGroup] if neither the group
// nor an entry exists. It does not wait for the store.
func (c *Controller) Connect(p model.ConnectedProxy) error {
	names := health.RegisteredNames(p.Proxy)
	if len(names) == 0 {
		return nil
	}
	if why := c.unwelcome(p); why != "" {
		c.refuse(p.Proxy, refusedProxy, why)
		return nil
	}
	key := model.Key{Kind: model.WorkloadEntry, Namespace: p.Proxy.Namespace, Name: names[0]}
	group := groupOf(p.Proxy)
	if c.store.Get(group) == nil && c.store.Get(key) == nil {
		c.metrics.refused.WithLabelValues(refusedGroup).Inc()
		return fmt.Errorf("%w %s/%s: create it, or correct ISTIO_META_AUTO_REGISTER_GROUP at the agent of %s", ErrNoGroup, group.Namespace, group.Name, p.Proxy.ID)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.identities[identityOf(p.Proxy)]
	if b == nil {
		b = &budget{fresh: rate.NewLimiter(newPerSecond, newAtOnce)}
		c.identities[identityOf(p.Proxy)] = b
	}
	if b.entries >= maxEntries {
		c.refuse(p.Proxy, refusedFlood, fmt.Sprintf("%d proxies of its service account are registered, which is the limit", maxEntries))
		return nil
	}
	b.entries++
	c.proxies[p.Proxy] = key
	it := c.item(key)
	it.conns = append(it.conns, &connection{peer: p})
	c.enqueue(key)
	return nil
}

func groupOf(p *model.Proxy) model.Key {
	return model.Key{Kind: model.WorkloadGroup, Namespace: p.Namespace, Name: p.AutoRegisterGroup}
}

// unwelcome returns why a proxy cannot have an entry in any group, or "".
func (c *Controller) unwelcome(p model.ConnectedProxy) string {
	if !p.Verified {
		return "callers are not authenticated on this port: have the agent use the TLS port of the control plane"
	}
	return addressFault(p, c.cfg.StrictAddress)
}

// refuse logs and counts that a proxy is not registered.
func (c *Controller) refuse(p *model.Proxy, kind, why string) {
	c.metrics.refused.WithLabelValues(kind).Inc()
	c.log.Warn("a proxy is served, but not registered as a workload of its group", "proxy", p.ID, "namespace", p.Namespace, "name", p.AutoRegisterGroup, "reason", why)
}

// Gone records that the stream of a proxy has ended. It does not block.
func (c *Controller) Gone(p *model.Proxy) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key, ok := c.proxies[p]
	if !ok {
		return
	}
	delete(c.proxies, p)
	id := identityOf(p)
	if b := c.identities[id]; b != nil {
		if b.entries--; b.entries == 0 && b.fresh.Tokens() >= newAtOnce {
			delete(c.identities, id)
		}
	}
	it := c.item(key)
	it.conns = slices.DeleteFunc(it.conns, func(n *connection) bool { return n.peer.Proxy == p })
	c.enqueue(key)
}

// Hear processes events of the store, at any time. It does not block.
func (c *Controller) Hear(events []config.Event) {
	c.index.Hear(events)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range events {
		key := e.Current().Key
		switch key.Kind {
		case model.WorkloadEntry:
			if c.work[key] != nil || isRegistered(e.New) {
				c.observe(key, e.New)
				if e.New == nil {
					c.work[key].claim = ""
				}
				c.enqueue(key)
			}
			for other := range c.blocked[key] {
				c.enqueue(other)
			}
			delete(c.blocked, key)
			for _, other := range c.index.beside(e.Current()) {
				c.enqueue(other) // two entries with the same address conflict
			}
		case model.WorkloadGroup:
			for key, it := range c.work {
				if n := it.newest(); n != nil && groupOf(n.peer.Proxy) == e.Current().Key {
					c.enqueue(key)
				}
			}
		}
	}
}

// observe records the connection state in an entry. The age of the state is measured from its
// first observation, because the clocks of other replicas may differ. A change proves that the
// replica that owns the entry is alive. The caller holds mu.
func (c *Controller) observe(key model.Key, stored *model.Config) {
	state := ""
	if stored != nil {
		a := stored.Annotations
		state = fmt.Sprintf("%q", []string{stored.UID, a[controllerAnnotation], a[connectedAnnotation], a[disconnectedAnnotation]})
	}
	it := c.item(key)
	if state == it.state && !it.since.IsZero() {
		return
	}
	it.state, it.since = state, time.Now()
	if !isRegistered(stored) {
		c.unname(it)
		return
	}
	r := c.name(it, stored.Annotations[controllerAnnotation])
	if stored.Annotations[connectedAnnotation] != "" {
		r.seen = it.since
	}
}

// name records the replica that an entry names and returns its state. The caller holds mu.
func (c *Controller) name(it *item, instance string) *replicaState {
	if it.named && it.replica == instance {
		return c.replicas[instance]
	}
	c.unname(it)
	it.named, it.replica = true, instance
	r := c.replicas[instance]
	if r == nil {
		r = &replicaState{}
		c.replicas[instance] = r
	}
	r.items++
	return r
}

// unname records that an entry names no replica, and removes the replica if no other entry names
// it. The caller holds mu.
func (c *Controller) unname(it *item) {
	if !it.named {
		return
	}
	it.named = false
	r := c.replicas[it.replica]
	if r.items--; r.items == 0 {
		delete(c.replicas, it.replica)
	}
}

// newest returns the most recent connection, or nil if there is none.
func (it *item) newest() *connection {
	if len(it.conns) == 0 {
		return nil
	}
	return it.conns[len(it.conns)-1]
}

// Run writes entries until ctx is done. Streams that end during the shutdown are not recorded in
// entries: their proxies reconnect to this replica or another.
func (c *Controller) Run(ctx context.Context) error {
	select {
	case <-c.store.Synced():
	case <-ctx.Done():
		return nil
	}
	c.begin()
	g, ctx := errgroup.WithContext(ctx)
	defer context.AfterFunc(ctx, c.queue.ShutDown)()
	for range workers {
		g.Go(func() error { return c.serve(ctx) }) // takes keys from the queue and writes to the store
	}
	return g.Wait()
}

// begin makes the queue with all entries.
func (c *Controller) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.started = time.Now()
	c.queue = workqueue.NewTypedDelayingQueue[model.Key]()
	for key := range c.work {
		c.queue.Add(key)
	}
}
