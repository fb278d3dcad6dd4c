// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package health

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// Config is what a [Table] needs.
type Config struct {
	// OnChange takes the WorkloadEntry objects that go out of service or come
	// back. It is called by whoever calls Report, and must not wait.
	OnChange func(model.Change)
	Logger   *slog.Logger
	// Registerer takes the metric; nil for none.
	Registerer prometheus.Registerer
}

// Table holds the last reports. It is safe for concurrent use.
type Table struct {
	onChange func(model.Change)
	log      *slog.Logger

	mu sync.Mutex // guards what follows
	// entries are the objects, as they were at the last Update.
	entries index
	// live are the last reports of the streams that are open: an entry may
	// come after the report that concerns it.
	live map[*model.Proxy]*report
	// count numbers the reports: of two on one entry the later one counts.
	count uint64
	// down are the entries whose verdict is unhealthy.
	down map[model.Key]struct{}
}

// report is one report. It is never written to.
type report struct {
	proxy   *model.Proxy
	healthy bool
	message string
	number  uint64
}

// New checks the configuration and gives a table that knows of no entry.
func New(cfg Config) (*Table, error) {
	if cfg.OnChange == nil {
		return nil, errors.New("health needs somebody to tell of changes")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	t := &Table{
		onChange: cfg.OnChange, log: cfg.Logger,
		entries: newIndex(nil), live: map[*model.Proxy]*report{}, down: map[model.Key]struct{}{},
	}
	if cfg.Registerer == nil {
		return t, nil
	}
	err := cfg.Registerer.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "outrigger_control_unhealthy_workloads",
		Help: "Workload entries that are out of service because their agents say that the application is unhealthy.",
	}, t.countDown))
	if err != nil {
		return nil, fmt.Errorf("registering the metric of health: %w", err)
	}
	return t, nil
}

func (t *Table) countDown() float64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return float64(len(t.down))
}

// Report takes what an agent says of its application. The message is for
// people.
func (t *Table) Report(proxy *model.Proxy, healthy bool, message string) {
	t.mu.Lock()
	t.count++
	r := &report{proxy: proxy, healthy: healthy, message: message, number: t.count}
	t.live[proxy] = r
	concerned := t.entries.of(proxy)
	changed := t.apply(r, concerned)
	t.mu.Unlock()
	if len(concerned) == 0 && !healthy {
		t.log.Warn("an agent reports an unhealthy application, which concerns no WorkloadEntry and has no effect", "proxy", proxy.ID,
			"namespace", proxy.Namespace, "reason", "no entry of the namespace has the service account of the proxy and one of its addresses, or the name that WORKLOAD_ENTRY gives: "+
				"correct spec.address and spec.serviceAccount of the entry")
	}
	t.tell(changed)
	if len(changed) > 0 {
		keys := make([]model.Key, len(changed))
		for i, c := range changed {
			keys[i] = c.key
		}
		t.onChange(model.NewChange(keys...))
	}
}

// Gone takes a proxy whose stream has ended. Its verdicts stay.
func (t *Table) Gone(proxy *model.Proxy) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.live, proxy)
}

// Update takes all WorkloadEntry objects. Verdicts that it changes are told to
// nobody: who calls it builds a snapshot next.
func (t *Table) Update(objects []*model.Config) {
	t.mu.Lock()
	old := t.entries
	t.entries = newIndex(objects)
	t.down = map[model.Key]struct{}{}
	for key, before := range old.byKey {
		e := t.entries.byKey[key]
		if e == nil || before.verdict == nil || !t.entries.concerns(before.verdict.proxy, e) {
			continue
		}
		e.verdict = before.verdict
		if !e.verdict.healthy {
			t.down[key] = struct{}{}
		}
	}
	var changed []verdict
	newestFirst := func(a, b *report) int { return cmp.Compare(b.number, a.number) }
	for _, r := range slices.SortedFunc(maps.Values(t.live), newestFirst) { // so that none is overruled
		changed = append(changed, t.apply(r, t.entries.of(r.proxy))...)
	}
	t.mu.Unlock()
	t.tell(changed)
}

// Unhealthy gives the entries that are out of service. The map is the caller's.
func (t *Table) Unhealthy() map[model.Key]struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.down)
}

// verdict is one entry that went out of service, or came back.
type verdict struct {
	key model.Key
	by  *report
}

// apply makes a report the verdict of entries, and gives those for which it
// makes a difference. The caller holds mu.
func (t *Table) apply(r *report, entries []*entry) (changed []verdict) {
	for _, e := range entries {
		if e.verdict != nil && e.verdict.number >= r.number {
			continue
		}
		e.verdict = r
		if _, down := t.down[e.key]; down != r.healthy {
			continue // as before
		}
		if r.healthy {
			delete(t.down, e.key)
		} else {
			t.down[e.key] = struct{}{}
		}
		changed = append(changed, verdict{e.key, r})
	}
	return changed
}

// tell logs what changed.
func (t *Table) tell(changed []verdict) {
	for _, c := range changed {
		log := t.log.With("kind", c.key.Kind, "namespace", c.key.Namespace, "name", c.key.Name, "proxy", c.by.proxy.ID)
		if c.by.healthy {
			log.Info("a workload is healthy again and takes requests")
		} else {
			log.Warn("a workload is unhealthy and gets no more requests", "reason", c.by.message)
		}
	}
}
