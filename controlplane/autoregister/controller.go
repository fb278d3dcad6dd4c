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

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/health"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// Store is the store of the entries, which tells when it was read.
type Store interface {
	config.ReadWriter
	Synced() <-chan struct{}
}

// Config is what a [Controller] needs.
type Config struct {
	// Store holds the groups and the entries. [Controller.Hear] has to be
	// registered with it before it runs.
	Store Store
	// Instance names this replica in the entries. It is the best if a restart
	// does not change it, and no other replica has the same.
	Instance string
	// Grace is how long the entry of a proxy that has left stays.
	Grace time.Duration
	// Orphaned is how long another replica may be silent before it has to show
	// that it still has the proxies of its entries; 0 means 45 minutes, which is
	// Istio's.
	Orphaned time.Duration
	// StrictAddress takes only proxies whose address is the one from which their
	// connection comes.
	StrictAddress bool
	Logger        *slog.Logger
	// Registerer takes the metrics; nil for none.
	Registerer prometheus.Registerer
}

const (
	// returning is how long proxies have after a start to come back: several
	// times the longest pause of an agent that cannot connect.
	returning = time.Minute
	// slack is what another replica has beside twice the grace period before
	// somebody else removes its entry.
	slack    = 5 * time.Second
	orphaned = 45 * time.Minute
)

// Bounds of the writes.
const (
	workers   = 16
	writeTime = 10 * time.Second
	// Of all writes, in a second and at once.
	writesPerSecond, writesAtOnce = 200, 400
	// Of one identity: entries that are new, in a second and at once; and
	// entries in all.
	newPerSecond, newAtOnce, maxEntries = 20, 500, 10_000
	// The pauses after a write that failed.
	firstPause, longPause = 50 * time.Millisecond, 30 * time.Second
)

// ErrNoGroup means that a proxy names a WorkloadGroup that does not exist.
var ErrNoGroup = errors.New("cannot find WorkloadGroup")

// Controller keeps the entries of the proxies that are connected here. It is
// safe for concurrent use.
type Controller struct {
	cfg     Config
	store   Store
	log     *slog.Logger
	metrics *metrics
	index   *Index
	writes  *rate.Limiter
	// wake has a token while there is work.
	wake chan struct{}

	mu sync.Mutex // guards what follows
	// ended is true once Run has returned; started is when it began.
	ended   bool
	started time.Time
	// work are the entries that are looked after, ready those whose turn it is.
	work  map[model.Key]*item
	ready []model.Key
	// proxies are the entries of those that are connected.
	proxies map[*model.Proxy]model.Key
	// blocked are the entries that cannot be made because of another.
	blocked    map[model.Key]map[model.Key]bool
	identities map[identity]*budget
	// replicas are those that an item in work names, by their name in entries.
	replicas map[string]*replicaState
}

// replicaState says when a replica was last seen to take an entry, when it was
// last asked whether it still has one, and how many items name it.
type replicaState struct {
	seen, asked time.Time
	items       int
}

type identity struct{ namespace, account string }

func identityOf(p *model.Proxy) identity { return identity{p.Namespace, p.ServiceAccount} }

// budget is what an identity may register.
type budget struct {
	entries int // of proxies that are connected
	fresh   *rate.Limiter
}

// item is one entry, and what is connected here that it is of.
type item struct {
	conns []*connection // the newest last
	// claim is what this replica wrote last as the time of the connection, left
	// as the time when the proxy has left.
	claim, left string
	// state is what the entry says of its proxy, since when this replica sees
	// that.
	state string
	since time.Time
	// replica is the one that the entry names, if named.
	replica string
	named   bool
	// told is why there is no entry, as it was logged.
	told     string
	failures int

	queued, running, again bool
	timer                  *time.Timer // nil if none runs
}

// connection is one stream of a proxy.
type connection struct {
	peer model.ConnectedProxy
	// claimed means that the entry was given to this replica for it once.
	claimed bool
}

// New checks the configuration. Nothing runs before Run.
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
		cfg: cfg, store: cfg.Store, log: cfg.Logger, index: NewIndex(), wake: make(chan struct{}, 1), started: time.Now(),
		writes: rate.NewLimiter(writesPerSecond, writesAtOnce),
		work:   map[model.Key]*item{}, proxies: map[*model.Proxy]model.Key{}, blocked: map[model.Key]map[model.Key]bool{},
		identities: map[identity]*budget{}, replicas: map[string]*replicaState{},
	}
	var err error
	c.metrics, err = newMetrics(cfg.Registerer)
	return c, err
}

// Index returns the entries of the store, as far as they are known.
func (c *Controller) Index() *Index { return c.index }

// Connect takes a proxy that has connected. One that may not be registered is
// served like any other, and the log says why it is not; but it fails with
// [ErrNoGroup] if neither the group nor an entry is there, as in Istio. It does
// not wait for the store.
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
		c.refuse(p.Proxy, refusedFlood, fmt.Sprintf("%d proxies of its service account are registered, which is the most", maxEntries))
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

// unwelcome says why a proxy can have no entry, whatever the group.
func (c *Controller) unwelcome(p model.ConnectedProxy) string {
	if !p.Verified {
		return "nobody has proved on this port who connects: have the agent use the TLS port of the control plane"
	}
	return addressFault(p, c.cfg.StrictAddress)
}

// refuse tells that a proxy is not registered.
func (c *Controller) refuse(p *model.Proxy, kind, why string) {
	c.metrics.refused.WithLabelValues(kind).Inc()
	c.log.Warn("a proxy is served, but not registered as a workload of its group", "proxy", p.ID, "namespace", p.Namespace, "name", p.AutoRegisterGroup, "reason", why)
}

// Gone takes a proxy whose stream has ended. It does not wait.
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

// Hear takes events of the store, before or after anything was registered. It
// does not wait.
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
				c.enqueue(other) // they cannot both stay
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

// observe takes what an entry says of its proxy now. How long it says so counts
// from here: clocks of others do not. A change shows that the replica that
// has the entry is alive. The caller holds mu.
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

// name records the replica that an entry names, and returns what is known of it.
// The caller holds mu.
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

// unname records that an entry names no replica, and drops the replica if no other
// entry names it. The caller holds mu.
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

// newest returns the connection that came last; nil if there is none.
func (it *item) newest() *connection {
	if len(it.conns) == 0 {
		return nil
	}
	return it.conns[len(it.conns)-1]
}

// Run writes until ctx is done. What ends with ctx leaves no mark: proxies whose
// streams end because this replica does, come back to it or to another.
func (c *Controller) Run(ctx context.Context) error {
	defer c.end()
	select {
	case <-c.store.Synced():
	case <-ctx.Done():
		return nil
	}
	c.mu.Lock()
	c.started = time.Now()
	c.mu.Unlock()
	g, ctx := errgroup.WithContext(ctx)
	for range workers {
		g.Go(func() error { // reads what is ready, feeds the store
			for {
				key, ok := c.next(ctx)
				if !ok {
					return nil
				}
				c.attend(ctx, key)
			}
		})
	}
	return g.Wait()
}

// end stops the clocks.
func (c *Controller) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	for _, it := range c.work {
		if it.timer != nil {
			it.timer.Stop()
		}
	}
}
