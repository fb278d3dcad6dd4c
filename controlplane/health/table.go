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
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// Config configures a [Table].
type Config struct {
	// OnChange receives the WorkloadEntry objects that go out of service or come back. It is
	// called by the goroutine that calls Report, and must not block.
	OnChange func(model.Change)
	// OnVerdict receives the entries with a new report, which [Table.Verdict] returns; it may be
	// nil. It must not block.
	OnVerdict func([]model.Key)
	Logger    *slog.Logger
	// Registerer registers the metric; nil disables it.
	Registerer prometheus.Registerer
}

// Table stores the last reports. It is safe for concurrent use.
type Table struct {
	onChange  func(model.Change)
	onVerdict func([]model.Key) // may be nil
	log       *slog.Logger

	mu sync.Mutex // guards the fields below
	// entries are the objects as of the last Update.
	entries index
	// live contains the last reports of open streams: an entry may be created after the report
	// that applies to it.
	live map[*model.Proxy]*report
	// count numbers the reports. The later of two reports for an entry wins.
	count uint64
	// down contains the entries that are out of service.
	down map[model.Key]struct{}
}

// report is one report. It is immutable.
type report struct {
	proxy   *model.Proxy
	healthy bool
	message string
	number  uint64
	at      time.Time
}

// New returns a table without entries. It returns an error for an invalid configuration.
func New(cfg Config) (*Table, error) {
	if cfg.OnChange == nil {
		return nil, errors.New("health needs a receiver of changes")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	t := &Table{
		onChange: cfg.OnChange, onVerdict: cfg.OnVerdict, log: cfg.Logger,
		entries: newIndex(nil), live: map[*model.Proxy]*report{}, down: map[model.Key]struct{}{},
	}
	if cfg.Registerer == nil {
		return t, nil
	}
	err := cfg.Registerer.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "outrigger_control_unhealthy_workloads",
		Help: "Workload entries that are out of service because their agents report an unhealthy application.",
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

// Report records the health that an agent reports for its application. The message is shown to
// users.
func (t *Table) Report(proxy *model.Proxy, healthy bool, message string) {
	t.mu.Lock()
	t.count++
	r := &report{proxy: proxy, healthy: healthy, message: message, number: t.count, at: time.Now().UTC()}
	t.live[proxy] = r
	concerned := t.entries.of(proxy)
	changed := t.apply(r, concerned)
	t.mu.Unlock()
	if len(concerned) == 0 && !healthy {
		t.log.Warn("an agent reports an unhealthy application that has no WorkloadEntry; the report has no effect", "proxy", proxy.ID,
			"namespace", proxy.Namespace, "reason", "no entry of the namespace has the service account of the proxy and one of its addresses, or the name in WORKLOAD_ENTRY: "+
				"correct spec.address and spec.serviceAccount of the entry")
	}
	t.tell(changed)
	t.changed(changed)
	t.spokenOf(concerned)
}

// changed calls OnChange for entries that went out of service or came back.
func (t *Table) changed(list []verdict) {
	if len(list) == 0 {
		return
	}
	keys := make([]model.Key, len(list))
	for i, c := range list {
		keys[i] = c.key
	}
	t.onChange(model.NewChange(keys...))
}

// spokenOf calls OnVerdict for entries with a new report.
func (t *Table) spokenOf(entries []*entry) {
	if t.onVerdict == nil || len(entries) == 0 {
		return
	}
	keys := make([]model.Key, len(entries))
	for i, e := range entries {
		keys[i] = e.key
	}
	t.onVerdict(keys)
}

// Gone records that the stream of a proxy has ended. Its verdicts stay.
func (t *Table) Gone(proxy *model.Proxy) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.live, proxy)
}

// Update replaces the WorkloadEntry objects. It does not call OnChange, because the caller builds
// a snapshot next.
func (t *Table) Update(objects []*model.Config) {
	var changed []verdict
	var spoken []*entry
	t.mu.Lock()
	old := t.entries
	t.entries = newIndex(objects)
	for key, e := range t.entries.byKey {
		before := old.byKey[key]
		if before == nil {
			continue
		}
		if before.verdict != nil && t.entries.concerns(before.verdict.proxy, e) {
			e.verdict = before.verdict
		}
		if e.reported == nil && before.account == e.account && before.address == e.address && !e.deaf {
			e.reported = before.reported
		}
		t.hear(e, e.reported)
	}
	for key := range t.down {
		if t.entries.byKey[key] == nil {
			delete(t.down, key)
		}
	}
	for _, e := range t.entries.byKey {
		changed = append(changed, t.settle(e)...)
	}
	newestFirst := func(a, b *report) int { return cmp.Compare(b.number, a.number) }
	for _, r := range slices.SortedFunc(maps.Values(t.live), newestFirst) { // each entry gets the newest report
		concerned := slices.DeleteFunc(t.entries.of(r.proxy), func(e *entry) bool { return e.verdict != nil && e.verdict.number >= r.number })
		spoken = append(spoken, concerned...)
		changed = append(changed, t.apply(r, concerned)...)
	}
	t.mu.Unlock()
	t.tell(changed)
	t.spokenOf(spoken)
}

// Unhealthy returns the entries that are out of service. The caller may modify the map.
func (t *Table) Unhealthy() map[model.Key]struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.down)
}

// verdict is an entry that went out of service or came back.
type verdict struct {
	key  model.Key
	down bool
	why  string
	by   *report // nil if the status of the entry decides
}

// apply sets a report as the verdict of entries. It returns the entries that go out of service or
// come back. The caller holds mu.
func (t *Table) apply(r *report, entries []*entry) (changed []verdict) {
	for _, e := range entries {
		if e.verdict != nil && e.verdict.number >= r.number {
			continue
		}
		e.verdict = r
		changed = append(changed, t.settle(e)...)
	}
	return changed
}

// settle updates the membership of an entry in down, and returns the entry if it changed. The
// caller holds mu.
func (t *Table) settle(e *entry) []verdict {
	_, was := t.down[e.key]
	down, why := e.isDown()
	if was == down {
		return nil
	}
	if down {
		t.down[e.key] = struct{}{}
	} else {
		delete(t.down, e.key)
	}
	return []verdict{{e.key, down, why, e.verdict}}
}

// tell logs the changes.
func (t *Table) tell(changed []verdict) {
	for _, c := range changed {
		log := t.log.With("kind", c.key.Kind, "namespace", c.key.Namespace, "name", c.key.Name)
		if c.by != nil {
			log = log.With("proxy", c.by.proxy.ID)
		}
		switch {
		case c.down && c.by == nil:
			log.Warn("a workload receives no requests: its status is unhealthy", "reason", c.why)
		case c.down:
			log.Warn("a workload is unhealthy and receives no more requests", "reason", c.why)
		default:
			log.Info("a workload is healthy again and receives requests")
		}
	}
}
