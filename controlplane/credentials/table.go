// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package credentials

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// Table stores validated credentials. While a Secret is invalid, its previous version stays in
// use, so that replacing a certificate and its key in two steps breaks no connections.
type Table struct {
	log    *slog.Logger
	broken prometheus.Counter
	// absent returns the error of a credential without an entry.
	absent func(key) error
	// handlers must not be modified after the first change.
	handlers []func(namespace, name string)
	synced   chan struct{}
	once     sync.Once // closes synced

	// mu guards entries.
	mu      sync.RWMutex
	entries map[key]entry
}

type key struct{ namespace, name string }

type entry struct {
	good *Credential // nil if no version was valid
	err  error       // error of the newest version; nil if it is valid
}

// NewTable returns an empty Table. A nil Logger means slog.Default(); a nil Registerer disables
// metrics. Several tables may share a Registerer.
func NewTable(log *slog.Logger, reg prometheus.Registerer) (*Table, error) {
	if log == nil {
		log = slog.Default()
	}
	t := &Table{log: log, absent: noSecret, entries: map[key]entry{}, synced: make(chan struct{}), broken: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "pilot_sds_certificate_errors_total",
		Help: "Number of credentials that are invalid.",
	})}
	if reg == nil {
		return t, nil
	}
	err := reg.Register(t.broken)
	var there prometheus.AlreadyRegisteredError
	if errors.As(err, &there) {
		if c, ok := there.ExistingCollector.(prometheus.Counter); ok {
			t.broken = c
			return t, nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("registering metrics of credentials: %w", err)
	}
	return t, nil
}

// Get implements Source.
func (t *Table) Get(namespace, name string) (*Credential, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	e, ok := t.entries[key{namespace, name}]
	switch {
	case !ok:
		return nil, t.absent(key{namespace, name})
	case e.good == nil:
		return nil, e.err
	}
	return e.good, nil
}

func noSecret(k key) error {
	return fmt.Errorf("%w: there is no Secret %s/%s with a certificate", ErrNotFound, k.namespace, k.name)
}

// OnChange implements Source.
func (t *Table) OnChange(f func(namespace, name string)) { t.handlers = append(t.handlers, f) }

// Synced implements Source.
func (t *Table) Synced() <-chan struct{} { return t.synced }

// SetSynced closes the channel of Synced. The owner of the table calls it.
func (t *Table) SetSynced() { t.once.Do(func() { close(t.synced) }) }

// Set stores a Secret. It keeps a reference to data without copying it. A Secret without any key
// of DataKeys is treated as missing.
func (t *Table) Set(namespace, name string, data map[string][]byte) {
	if !Holds(data) {
		t.Delete(namespace, name)
		return
	}
	c, err := Parse(namespace, name, data)
	t.put(key{namespace, name}, c, err)
}

// put stores a version of a credential, valid or not.
func (t *Table) put(k key, c *Credential, err error) {
	t.mu.Lock()
	before, known := t.entries[k]
	next := entry{good: c, err: err}
	if err != nil {
		next.good = before.good
	}
	t.entries[k] = next
	t.mu.Unlock()

	switch {
	case err != nil && !sameText(err, before.err):
		t.broken.Inc()
		if next.good != nil {
			t.log.Warn("invalid credential; the previous version stays in force", "namespace", k.namespace, "name", k.name, "err", err)
		} else {
			t.log.Warn("invalid credential", "namespace", k.namespace, "name", k.name, "err", err)
		}
	case err == nil && !before.good.same(c):
		for _, w := range c.Warnings {
			t.log.Warn("a credential may be unusable", "namespace", k.namespace, "name", k.name, "reason", w)
		}
	}
	if !known || !before.good.same(next.good) || next.good == nil && !sameText(err, before.err) {
		t.tell(k)
	}
}

func sameText(a, b error) bool { return b != nil && a.Error() == b.Error() }

// Delete removes a Secret from the table.
func (t *Table) Delete(namespace, name string) {
	k := key{namespace, name}
	t.mu.Lock()
	_, known := t.entries[k]
	delete(t.entries, k)
	t.mu.Unlock()
	if known {
		t.tell(k)
	}
}

// Refuse records why a credential cannot be used. Its previous version does not stay in use.
func (t *Table) Refuse(namespace, name string, err error) {
	k := key{namespace, name}
	t.mu.Lock()
	before, known := t.entries[k]
	t.entries[k] = entry{err: err}
	t.mu.Unlock()
	if !known || before.good != nil || !sameText(err, before.err) {
		t.tell(k)
	}
}

func (t *Table) tell(k key) {
	for _, f := range t.handlers {
		f(k.namespace, k.name)
	}
}

// keep deletes all entries but those with the given keys.
func (t *Table) keep(held map[key]bool) {
	t.mu.RLock()
	keys := slices.Collect(maps.Keys(t.entries))
	t.mu.RUnlock()
	for _, k := range keys {
		if !held[k] {
			t.Delete(k.namespace, k.name)
		}
	}
}

var _ Source = (*Table)(nil)
