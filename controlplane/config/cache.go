// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package config

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// Cache is the implementation that all stores share: the objects in memory, their
// order, and the queue of events. A store applies the changes of its source; Cache
// implements the reading methods of [Store] and calls the handlers.
//
// The queue has at most one event for each object: changes before its delivery are
// merged. A slow handler therefore costs no memory and blocks no writer.
type Cache struct {
	// handlers and watchError are written before Run only.
	handlers   handlers
	watchError func(error)
	started    atomic.Bool
	synced     chan struct{}
	// wake holds one token, which means that there are events to deliver.
	wake chan struct{}

	mu sync.RWMutex // guards the fields below
	// objects has an entry for each kind that is served.
	objects map[model.Kind]map[model.Key]*model.Config
	// lists are built on demand, and dropped when an object of their kind changes.
	// Empty lists are not cached, so that requests for namespaces that do not
	// exist use no memory.
	lists map[listKey][]*model.Config
	// queue are the keys with an event, in the order of their first change. before
	// has the state of each object that the handlers last received.
	queue  []model.Key
	before map[model.Key]*model.Config
	// loaded is true once the first full load is in the queue or delivered.
	loaded bool
}

// handlers are the functions that receive events, in the order in which they were
// added.
type handlers []handler

type handler struct {
	call  func([]Event)
	kinds []model.Kind // empty means all
}

// call calls each handler with the events of its kinds.
func (all handlers) call(events []Event) {
	for _, h := range all {
		of := events
		if len(h.kinds) > 0 {
			of = nil
			for _, e := range events {
				if slices.Contains(h.kinds, e.Current().Kind) {
					of = append(of, e)
				}
			}
		}
		if len(of) > 0 {
			h.call(of)
		}
	}
}

// listKey identifies a list; an empty namespace means all.
type listKey struct {
	kind      model.Kind
	namespace string
}

// NewCache returns an empty cache for some kinds.
func NewCache(kinds []schema.Schema) *Cache {
	c := &Cache{
		synced:  make(chan struct{}),
		wake:    make(chan struct{}, 1),
		objects: map[model.Kind]map[model.Key]*model.Config{},
		lists:   map[listKey][]*model.Config{},
		before:  map[model.Key]*model.Config{},
	}
	for _, s := range kinds {
		c.objects[s.Kind] = map[model.Key]*model.Config{}
	}
	return c
}

// Schemas returns the kinds of the cache.
func (c *Cache) Schemas() []schema.Schema {
	return slices.DeleteFunc(slices.Clone(schema.All()), func(s schema.Schema) bool { return !c.Serves(s.Kind) })
}

// Serves reports whether the cache has objects of a kind.
func (c *Cache) Serves(kind model.Kind) bool {
	_, ok := c.objects[kind] // the outer map is never written to after NewCache
	return ok
}

// Get returns the object with the given key, or nil if it does not exist.
func (c *Cache) Get(key model.Key) *model.Config {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.objects[key.Kind][key]
}

// List returns the objects of a kind in canonical order.
func (c *Cache) List(kind model.Kind, namespace string) []*model.Config {
	k := listKey{kind, namespace}
	c.mu.RLock()
	list, ok := c.lists[k]
	none := len(c.objects[kind]) == 0
	c.mu.RUnlock()
	if ok || none {
		return list
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	list = c.list(listKey{kind: kind})
	if namespace == "" {
		return list
	}
	if of, ok := c.lists[k]; ok {
		return of
	}
	var of []*model.Config
	for _, o := range list {
		if o.Namespace == namespace {
			of = append(of, o)
		}
	}
	if len(of) > 0 {
		c.lists[k] = of
	}
	return of
}

// list returns the list of all objects of a kind. The caller must hold mu.
func (c *Cache) list(k listKey) []*model.Config {
	list, ok := c.lists[k]
	if !ok && len(c.objects[k.kind]) > 0 {
		list = slices.SortedFunc(maps.Values(c.objects[k.kind]), model.Older)
		c.lists[k] = list
	}
	return list
}

// Apply makes new states visible at once and queues their events. next has the objects
// by key, nil for deleted ones. An object with the same pointer or the same resource
// version as before is unchanged.
func (c *Cache) Apply(next map[model.Key]*model.Config) {
	c.mu.Lock()
	for key, object := range next {
		c.apply(key, object)
	}
	c.mu.Unlock()
	c.nudge()
}

// Replace replaces all objects of some kinds.
func (c *Cache) Replace(objects []*model.Config, kinds ...model.Kind) {
	c.mu.Lock()
	there := make(map[model.Key]bool, len(objects))
	for _, o := range objects {
		there[o.Key] = true
		c.apply(o.Key, o)
	}
	for _, kind := range kinds {
		for key := range c.objects[kind] {
			if !there[key] {
				c.apply(key, nil)
			}
		}
	}
	c.mu.Unlock()
	c.nudge()
}

// apply changes one object. The caller must hold mu.
func (c *Cache) apply(key model.Key, object *model.Config) {
	old, of := c.objects[key.Kind][key], c.objects[key.Kind]
	switch {
	case object == nil && old == nil, of == nil:
		return
	case object == nil:
		delete(of, key)
	case old != nil && old.ResourceVersion == object.ResourceVersion && old.Source == object.Source:
		return
	default:
		of[key] = object
	}
	delete(c.lists, listKey{kind: key.Kind})
	for k := range c.lists {
		if k.kind == key.Kind && k.namespace == key.Namespace {
			delete(c.lists, k)
		}
	}
	if _, queued := c.before[key]; !queued {
		c.queue, c.before[key] = append(c.queue, key), old
	}
}

func (c *Cache) nudge() {
	select {
	case c.wake <- struct{}{}:
	default: // a token is there already
	}
}

// RegisterEventHandler adds a handler; see [Store].
func (c *Cache) RegisterEventHandler(call func([]Event), kinds ...model.Kind) {
	c.handlers = append(c.handlers, handler{call: call, kinds: kinds})
}

// SetWatchErrorHandler sets the handler of errors of the source; see [Store].
func (c *Cache) SetWatchErrorHandler(call func(error)) { c.watchError = call }

// WatchError calls the handler with an error of the source.
func (c *Cache) WatchError(err error) {
	if c.watchError != nil {
		c.watchError(err)
	}
}

// Loaded records that the first load was applied completely: the cache has synced once
// it is delivered to the handlers.
func (c *Cache) Loaded() {
	c.mu.Lock()
	c.loaded = true
	c.mu.Unlock()
	c.nudge()
}

// Deliver calls the handlers until ctx is done. It is the Run of a store, or one of its
// goroutines.
func (c *Cache) Deliver(ctx context.Context) error {
	c.started.Store(true)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.wake:
		}
		events, loaded := c.take()
		c.handlers.call(events)
		if loaded && !c.HasSynced() {
			close(c.synced)
		}
	}
}

// take empties the queue.
func (c *Cache) take() (events []Event, loaded bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	events = make([]Event, 0, len(c.queue))
	for _, key := range c.queue {
		before, now := c.before[key], c.objects[key.Kind][key]
		cameAndWent := before == now
		moved := before != nil && now != nil && before.ResourceVersion == now.ResourceVersion
		if !cameAndWent && !moved {
			events = append(events, newEvent(before, now))
		}
	}
	c.queue, c.before = nil, map[model.Key]*model.Config{}
	return events, c.loaded
}

// HasStarted reports whether the handlers are being called.
func (c *Cache) HasStarted() bool { return c.started.Load() }

// HasSynced reports whether the first load was delivered.
func (c *Cache) HasSynced() bool { return isClosed(c.synced) }

// Synced is closed when the first load was delivered.
func (c *Cache) Synced() <-chan struct{} { return c.synced }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
