// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package config

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// Memory is the [Store] that keeps its objects in memory only. What it was
// told is visible at once.
type Memory struct {
	*Cache
	name string
	// life begins the resource versions of this store, so that they differ
	// from those of other stores and of its former lives.
	life string

	mu sync.Mutex // guards what follows and makes writes one after another
	// revision numbers the writes.
	revision int64
}

var _ Store = (*Memory)(nil)

// NewMemory gives an empty store. Its name is for messages, for example
// "memory://".
func NewMemory(name string) *Memory {
	return &Memory{Cache: NewCache(schemas), name: name, life: fmt.Sprintf("%08x-", rand.Uint32())}
}

// Name gives the name of the store.
func (m *Memory) Name() string { return m.name }

// Problems is empty: a memory store takes valid objects only.
func (m *Memory) Problems() []model.Problem { return nil }

// Run calls the handlers until ctx is done. What was written before counts as
// the first load.
func (m *Memory) Run(ctx context.Context) error {
	m.Loaded()
	return m.Deliver(ctx)
}

// Create adds an object; see [Store]. A creation time that it has is kept,
// to the second.
func (m *Memory) Create(ctx context.Context, c *model.Config) (string, error) {
	next, err := CheckWrite("create", m, c)
	if err != nil {
		return "", err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return "", keyError("create", c.Key, err)
	}
	if m.Get(c.Key) != nil {
		return "", keyError("create", c.Key, ErrExists)
	}
	next.Generation, next.Status, next.UID = 1, nil, ""
	next.Created = Creation(next)
	return m.put(next), nil
}

// put makes a new state visible. The caller holds mu.
func (m *Memory) put(c *model.Config) string {
	m.revision++
	c.ResourceVersion = m.life + strconv.FormatInt(m.revision, 10)
	if c.UID == "" {
		c.UID = c.ResourceVersion
	}
	m.Apply(map[model.Key]*model.Config{c.Key: c})
	return c.ResourceVersion
}

// Update replaces an object; see [Store].
func (m *Memory) Update(ctx context.Context, c *model.Config) (string, error) {
	next, err := CheckWrite("update", m, c)
	if err != nil {
		return "", err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	old, err := m.current(ctx, "update", c.Key, c.ResourceVersion)
	if err != nil {
		return "", err
	}
	if SameContent(old, next) && old.APIVersion == next.APIVersion {
		return old.ResourceVersion, nil
	}
	if next, err = Successor(old, next); err != nil {
		return "", fmt.Errorf("update: %w", err)
	}
	return m.put(next), nil
}

// current gives the object that is to be written over, after the rules of
// writing. The caller holds mu.
func (m *Memory) current(ctx context.Context, verb string, key model.Key, resourceVersion string) (*model.Config, error) {
	if err := ctx.Err(); err != nil {
		return nil, keyError(verb, key, err)
	}
	old := m.Get(key)
	return old, CheckVersion(verb, key, old, resourceVersion)
}

// UpdateStatus replaces the status of an object; see [Store].
func (m *Memory) UpdateStatus(ctx context.Context, c *model.Config) (string, error) {
	const verb = "update the status of"
	status, err := CheckStatus(verb, m, c)
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

// Patch changes the newest state of an object; see [Store].
func (m *Memory) Patch(ctx context.Context, key model.Key, change func(*model.Config) error) (string, error) {
	return PatchByUpdate(ctx, m, key, change)
}

// Delete removes an object; see [Store].
func (m *Memory) Delete(ctx context.Context, key model.Key, resourceVersion string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.current(ctx, "delete", key, resourceVersion); err != nil {
		return err
	}
	m.Apply(map[model.Key]*model.Config{key: nil})
	return nil
}
