// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package jwks

import (
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/internal/clip"
	"github.com/outrigger-mesh/outrigger/internal/specialaddr"
	"github.com/outrigger-mesh/outrigger/internal/tlspolicy"
)

const (
	// MaxSources is the maximum number of sources that are followed. All of them have a goroutine.
	MaxSources = 1000
	// maxPerHost is the number of concurrent fetches from one host.
	maxPerHost = 4
	// keepUnused is how long the keys of a source remain known after its last use.
	keepUnused = 7 * 24 * time.Hour
	// staleAfter is how long keys cannot be fetched until that is a problem of the objects.
	staleAfter = time.Hour
	// RuleTimeout limits a fetch of a rule without a timeout, and maxRuleTimeout of any.
	RuleTimeout, maxRuleTimeout = 5 * time.Second, time.Minute
	// maxReason is the maximum number of bytes of an error in a problem.
	maxReason  = 400
	sweepEvery = time.Hour
)

// FollowerConfig configures a [Follower].
type FollowerConfig struct {
	// Dir is the directory of the last good keys; empty keeps none. It belongs to the follower.
	Dir string
	// Allowed are the special addresses from which keys may be fetched.
	Allowed specialaddr.Allowed
	// RootCAs returns the certificates that verify the servers; nil means the system roots.
	RootCAs func() (*x509.CertPool, error)
	// TLS restricts the connections to the servers.
	TLS tlspolicy.Policy
	// Transport sends the requests, as in FetchConfig.
	Transport http.RoundTripper
	// Refresh is the interval for fetching keys, as in RemoteConfig.
	Refresh time.Duration
	// OnChange is called with the objects whose keys or problems have changed, after Sets returns
	// the new ones. It must not block.
	OnChange func(objects []model.Key)
	Logger   *slog.Logger
	// Registerer registers the metrics; nil registers none.
	Registerer prometheus.Registerer
}

// Wanted is a source that objects name.
type Wanted struct {
	// Source has either a URL or an issuer, so that objects with the same URL share its keys.
	Source
	Timeout time.Duration // of a fetch; zero means RuleTimeout
	Objects []model.Key
}

// Follower follows the keys of many issuers. Each issuer has its own goroutine and its own
// back-off, so that none delays the others.
type Follower struct {
	cfg     FollowerConfig
	disk    *disk
	metrics *metrics
	sets    atomic.Pointer[Sets]
	// wake asks Run to start and stop fetching. Its capacity is one.
	wake chan struct{}
	// tried is closed once each source of the first call of Follow has keys or was tried.
	tried chan struct{}

	// mu guards the fields below.
	mu      sync.Mutex
	entries map[Source]*entry
	waiting map[Source]bool // sources that tried waits for; nil before the first call of Follow
	hosts   map[string]chan struct{}
}

// entry is what is known of a source.
type entry struct {
	set     *Set // nil means none yet
	keys    *Keys
	fetched time.Time // last success
	used    time.Time // when it was last wanted; zero while it is
	saved   string    // version of the keys on disk
	wanted  Wanted
	problem string
	remote  *Remote // that fetches them; nil while nobody does
}

// NewFollower reads the last good keys from disk.
func NewFollower(cfg FollowerConfig) (*Follower, error) {
	f := &Follower{
		cfg: cfg, metrics: newMetrics(), entries: map[Source]*entry{}, hosts: map[string]chan struct{}{},
		wake: make(chan struct{}, 1), tried: make(chan struct{}),
	}
	if err := f.metrics.register(cfg.Registerer); err != nil {
		return nil, err
	}
	f.disk = openDisk(cfg.Dir, cfg.Logger)
	f.entries = f.disk.load(time.Now())
	f.publish()
	return f, nil
}

// Sets returns the newest keys of all sources.
func (f *Follower) Sets() *Sets { return f.sets.Load() }

// Tried returns a channel that is closed once each source of the first call of Follow has keys or
// was tried.
func (f *Follower) Tried() <-chan struct{} { return f.tried }

// Follow sets the sources to follow. It does not wait for keys. Sources above MaxSources are
// ignored.
func (f *Follower) Follow(wanted []Wanted) {
	wanted = wanted[:min(len(wanted), MaxSources)]
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	gone := maps.Clone(f.entries)
	for _, w := range wanted {
		delete(gone, w.Source)
		e := f.entries[w.Source]
		if e == nil {
			e = &entry{}
			f.entries[w.Source] = e
		}
		e.wanted, e.used = w, time.Time{}
	}
	for source, e := range gone {
		if e.set == nil {
			delete(f.entries, source)
		} else if e.used.IsZero() {
			e.wanted, e.used, e.problem = Wanted{}, now, ""
		}
	}
	if f.waiting == nil {
		f.waiting = map[Source]bool{}
		for _, w := range wanted {
			if f.entries[w.Source].set == nil {
				f.waiting[w.Source] = true
			}
		}
		f.noteTried()
	}
	f.limit()
	if len(gone) > 0 {
		f.publish()
	}
	f.metrics.sources.Set(float64(len(wanted)))
	select {
	case f.wake <- struct{}{}:
	default: // Run will see the new sources
	}
}

// limit removes the sources that were not used for the longest time, if there are too many. The
// caller holds mu.
func (f *Follower) limit() {
	excess := len(f.entries) - maxStored
	if excess <= 0 {
		return
	}
	var unused []Source
	for source, e := range f.entries {
		if !e.used.IsZero() {
			unused = append(unused, source)
		}
	}
	slices.SortFunc(unused, func(a, b Source) int { return f.entries[a].used.Compare(f.entries[b].used) })
	for _, source := range unused[:min(excess, len(unused))] {
		delete(f.entries, source)
		f.disk.remove(source)
	}
}

// noteTried closes tried if nothing is waited for. The caller holds mu.
func (f *Follower) noteTried() {
	select {
	case <-f.tried:
	default:
		if f.waiting != nil && len(f.waiting) == 0 {
			close(f.tried)
		}
	}
}

// worker is a running goroutine of Run.
type worker struct {
	cancel  context.CancelFunc
	timeout time.Duration
}

// Run fetches keys until ctx is done.
func (f *Follower) Run(ctx context.Context) error {
	var group sync.WaitGroup
	defer group.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	sweep := time.NewTicker(sweepEvery)
	defer sweep.Stop()
	running := map[Source]worker{}
	for {
		wanted := f.wanted()
		for source, w := range running {
			if now, ok := wanted[source]; !ok || now.Timeout != w.timeout {
				w.cancel()
				delete(running, source)
			}
		}
		for source, w := range wanted {
			if _, ok := running[source]; ok {
				continue
			}
			one, stop := context.WithCancel(ctx)
			running[source] = worker{stop, w.Timeout}
			group.Go(func() { f.follow(one, w) })
		}
		// Cases: the end; other sources; time to forget.
		select {
		case <-ctx.Done():
			return nil
		case <-f.wake:
		case <-sweep.C:
			f.forget(time.Now())
		}
	}
}

// wanted returns the sources to follow.
func (f *Follower) wanted() map[Source]Wanted {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := map[Source]Wanted{}
	hosts := map[string]chan struct{}{}
	for source, e := range f.entries {
		if !e.used.IsZero() {
			continue
		}
		out[source] = e.wanted
		host := source.host()
		if hosts[host] = f.hosts[host]; hosts[host] == nil {
			hosts[host] = make(chan struct{}, maxPerHost)
		}
	}
	f.hosts = hosts
	return out
}

// follow fetches the keys of one source until ctx is done.
func (f *Follower) follow(ctx context.Context, w Wanted) {
	f.mu.Lock()
	slots := f.hosts[w.host()]
	var set *Set
	if e := f.entries[w.Source]; e != nil {
		set = e.set
	}
	f.mu.Unlock()
	timeout := w.Timeout
	if timeout <= 0 {
		timeout = RuleTimeout
	}
	remote, err := NewRemote(RemoteConfig{
		FetchConfig: FetchConfig{AnyHost: true, Allowed: f.cfg.Allowed, RootCAs: f.cfg.RootCAs, TLS: f.cfg.TLS, Transport: f.cfg.Transport, Timeout: min(timeout, maxRuleTimeout)},
		Source:      w.Source, Refresh: f.cfg.Refresh, MaxStale: -1, Set: set, Logger: f.cfg.Logger,
		Slot: func(ctx context.Context) (func(), error) {
			select {
			case slots <- struct{}{}:
				return func() { <-slots }, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		},
		Observe: func(set *Set, err error) { f.note(w.Source, set, err) },
	})
	if err != nil {
		f.note(w.Source, nil, err)
		return
	}
	f.fetches(w.Source, remote)
	_ = remote.Run(ctx) // always returns nil
}

// fetches notes what fetches the keys of a source.
func (f *Follower) fetches(source Source, remote *Remote) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e := f.entries[source]; e != nil {
		e.remote = remote
	}
}

// Refresh fetches the keys of sources now, except of those that were fetched less than 10 s ago. It
// does not wait.
func (f *Follower) Refresh(sources []Source) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, source := range sources {
		if e := f.entries[source]; e != nil && e.remote != nil && e.used.IsZero() {
			e.remote.Refresh()
		}
	}
}

// note records the result of a fetch.
func (f *Follower) note(source Source, set *Set, err error) {
	now := time.Now()
	if err == nil {
		if keys := newKeys(set); len(keys.List) == 0 {
			set, err = nil, fmt.Errorf("the key set of %s contains no key for signatures", source)
		}
	}
	f.metrics.fetched(err)
	changed := f.record(source, set, err, now)
	if len(changed) > 0 && f.cfg.OnChange != nil {
		f.cfg.OnChange(changed)
	}
	if err == nil {
		f.save(source, now)
	}
}

// record returns the objects whose keys or problems have changed.
func (f *Follower) record(source Source, set *Set, err error, now time.Time) []model.Key {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.waiting, source)
	defer f.noteTried()
	e := f.entries[source]
	if e == nil {
		return nil
	}
	problem, differs := "", false
	if err == nil {
		keys := newKeys(set)
		if differs = e.keys == nil || e.keys.Version != keys.Version; differs {
			e.set, e.keys = set, keys
		}
		e.fetched = now
	} else {
		problem = e.reason(source, err, now)
	}
	if !differs && problem == e.problem {
		return nil
	}
	e.problem = problem
	f.publish()
	return slices.Clone(e.wanted.Objects)
}

// save writes the keys of a source to disk, unless they are there. It does not hold mu meanwhile,
// because disks are slow.
func (f *Follower) save(source Source, now time.Time) {
	f.mu.Lock()
	e := f.entries[source]
	if e == nil {
		f.mu.Unlock()
		return
	}
	keys, saved := e.keys, e.saved
	f.mu.Unlock()
	if saved == keys.Version {
		f.disk.touch(source, now)
		return
	}
	if f.disk.save(source, keys, now) {
		f.mu.Lock()
		e.saved = keys.Version
		f.mu.Unlock()
	}
}

// reason returns the problem of the objects after an error, or "" if there is none yet.
func (e *entry) reason(source Source, err error, now time.Time) string {
	why := clip.Text(err.Error(), maxReason)
	switch {
	case e.keys == nil:
		return fmt.Sprintf("the keys of %s cannot be fetched; tokens of this issuer are refused until then: %s", source, why)
	case now.Sub(e.fetched) > staleAfter:
		return fmt.Sprintf("the keys of %s cannot be fetched, and those of %s stay in use: %s", source, e.fetched.UTC().Format(time.RFC3339), why)
	}
	return ""
}

// publish makes the current entries visible. The caller holds mu, or nobody else uses f.
func (f *Follower) publish() {
	sets := make(map[Source]Keys, len(f.entries))
	for source, e := range f.entries {
		var k Keys
		if e.keys != nil {
			k = *e.keys
		}
		k.Problem = e.problem
		if e.keys != nil || e.problem != "" {
			sets[source] = k
		}
	}
	f.sets.Store(NewSets(sets))
}

// forget removes the sources that were not used for long.
func (f *Follower) forget(now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for source, e := range f.entries {
		if e.used.IsZero() {
			f.disk.touch(source, now)
		} else if now.Sub(e.used) > keepUnused {
			delete(f.entries, source)
			f.disk.remove(source)
		}
	}
	f.publish()
}
