// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package memory

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strconv"
	"sync"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// Store is the [config.Store] that keeps its objects in memory only. Writes are
// visible at once.
type Store struct {
	*config.Cache
	name string
	// life begins the resource versions of this store, so that they differ
	// from those of other stores and of its former lives.
	life string

	mu sync.Mutex // guards the fields below and makes writes one after another
	// revision numbers the writes.
	revision int64
}

var _ config.Store = (*Store)(nil)

// Open is the [config.Driver] of memory://.
func Open(u *url.URL, cfg config.OpenConfig) (config.Store, error) {
	return New(cmp.Or(cfg.Name, u.Redacted())), nil
}

// New returns an empty store. Its name is for messages, for example
// "memory://".
func New(name string) *Store {
	return &Store{Cache: config.NewCache(schema.All()), name: name, life: fmt.Sprintf("%08x-", rand.Uint32())}
}

// Name returns the name of the store.
func (m *Store) Name() string { return m.name }

// Problems is empty: a memory store takes valid objects only.
func (m *Store) Problems() []model.Problem { return nil }

// Run calls the handlers until ctx is done. What was written before counts as
// the first load.
func (m *Store) Run(ctx context.Context) error {
	m.Loaded()
	return m.Deliver(ctx)
}

// Create adds an object; see [config.Store]. A creation time that it has is kept,
// to the second.
func (m *Store) Create(ctx context.Context, c *model.Config) (string, error) {
	next, err := config.CheckWrite("create", m, c)
	if err != nil {
		return "", err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return "", fmt.Errorf("create %s: %w", c.Key, err)
	}
	if m.Get(c.Key) != nil {
		return "", fmt.Errorf("create %s: %w", c.Key, config.ErrExists)
	}
	next.Generation, next.Status, next.UID = 1, nil, ""
	next.Created = config.Creation(next)
	return m.put(next), nil
}

// put makes a new state visible. The caller holds mu.
func (m *Store) put(c *model.Config) string {
	m.revision++
	c.ResourceVersion = m.life + strconv.FormatInt(m.revision, 10)
	if c.UID == "" {
		c.UID = c.ResourceVersion
	}
	m.Apply(map[model.Key]*model.Config{c.Key: c})
	return c.ResourceVersion
}

// Update replaces an object; see [config.Store].
func (m *Store) Update(ctx context.Context, c *model.Config) (string, error) {
	next, err := config.CheckWrite("update", m, c)
	if err != nil {
		return "", err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	old, err := m.current(ctx, "update", c.Key, c.ResourceVersion)
	if err != nil {
		return "", err
	}
	if config.SameContent(old, next) && old.APIVersion == next.APIVersion {
		return old.ResourceVersion, nil
	}
	if next, err = config.Successor(old, next); err != nil {
		return "", fmt.Errorf("update: %w", err)
	}
	return m.put(next), nil
}

// current returns the object that is to be written over, after the rules of
// writing. The caller holds mu.
func (m *Store) current(ctx context.Context, verb string, key model.Key, resourceVersion string) (*model.Config, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%s %s: %w", verb, key, err)
	}
	old := m.Get(key)
	return old, config.CheckVersion(verb, key, old, resourceVersion)
}

// UpdateStatus replaces the status of an object; see [config.Store].
func (m *Store) UpdateStatus(ctx context.Context, c *model.Config) (string, error) {
	const verb = "update the status of"
	status, err := config.CheckStatus(verb, m, c)
	if err != nil {
		return "", err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	old, err := m.current(ctx, verb, c.Key, c.ResourceVersion)
	if err != nil {
		return "", err
	}
	if model.SameSpec(old.Status, status) {
		return old.ResourceVersion, nil
	}
	next := *old // the spec is shared, and nobody writes to it
	next.Status = status
	return m.put(&next), nil
}

// Patch changes the newest state of an object; see [config.Store].
func (m *Store) Patch(ctx context.Context, key model.Key, change func(*model.Config) error) (string, error) {
	return config.PatchByUpdate(ctx, m, key, change)
}

// Delete removes an object; see [config.Store].
func (m *Store) Delete(ctx context.Context, key model.Key, resourceVersion string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.current(ctx, "delete", key, resourceVersion); err != nil {
		return err
	}
	m.Apply(map[model.Key]*model.Config{key: nil})
	return nil
}
