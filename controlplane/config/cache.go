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

// Cache is the part that all stores share: the objects in memory, their
// order, and the queue to the handlers. A store applies what it hears from
// its source; Cache answers [Store]'s reading methods and calls the handlers.
//
// The queue holds at most one event for each object: what happens to an
// object before its event is delivered merges into it. A slow handler so costs
// no memory and holds up no writer.
type Cache struct {
	// handlers and watchError are written before Run only.
	handlers   handlers
	watchError func(error)
	started    atomic.Bool
	synced     chan struct{}
	// wake has room for one token: there is something to deliver.
	wake chan struct{}

	mu sync.RWMutex // guards what follows
	// objects has an entry for each kind that is served, and no others.
	objects map[model.Kind]map[model.Key]*model.Config
	// lists are made when they are asked for, and dropped when their kind
	// changes. Empty ones are not kept, so that who asks for namespaces that
	// do not exist fills no memory.
	lists map[listKey][]*model.Config
	// queue are the keys with an event, in the order of their first change;
	// before holds what each object was when its handlers last heard of it.
	queue  []model.Key
	before map[model.Key]*model.Config
	// loaded means that the first full load is in the queue or delivered.
	loaded bool
}

// handlers are the functions that hear of events, in the order in which they
// were added.
type handlers []handler

type handler struct {
	call  func([]Event)
	kinds []model.Kind // empty means all
}

// call tells each handler of the events of its kinds.
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

// listKey names a list; an empty namespace means all.
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

// Schemas lists the kinds of the cache.
func (c *Cache) Schemas() []schema.Schema {
	return slices.DeleteFunc(slices.Clone(schema.All()), func(s schema.Schema) bool { return !c.Serves(s.Kind) })
}

// Serves reports whether the cache holds objects of a kind.
func (c *Cache) Serves(kind model.Kind) bool {
	_, ok := c.objects[kind] // the outer map is never written to after NewCache
	return ok
}

// Get returns one object, or nil.
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

// list returns the list of all objects of a kind. The caller holds mu.
func (c *Cache) list(k listKey) []*model.Config {
	list, ok := c.lists[k]
	if !ok && len(c.objects[k.kind]) > 0 {
		list = slices.SortedFunc(maps.Values(c.objects[k.kind]), model.Older)
		c.lists[k] = list
	}
	return list
}

// Apply makes new states visible and queues their events: object by key, nil
// for one that is gone. States become visible together. What is the same
// pointer, or the same resource version, as before changes nothing.
func (c *Cache) Apply(next map[model.Key]*model.Config) {
	c.mu.Lock()
	for key, object := range next {
		c.apply(key, object)
	}
	c.mu.Unlock()
	c.nudge()
}

// Replace makes objects all there are of some kinds.
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

// apply changes one object. The caller holds mu.
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

// SetWatchErrorHandler sets who hears of trouble with the source; see [Store].
func (c *Cache) SetWatchErrorHandler(call func(error)) { c.watchError = call }

// WatchError tells the handler of trouble with the source.
func (c *Cache) WatchError(err error) {
	if c.watchError != nil {
		c.watchError(err)
	}
}

// Loaded says that everything of the first load was applied: the cache has
// synced when the handlers have heard of it.
func (c *Cache) Loaded() {
	c.mu.Lock()
	c.loaded = true
	c.mu.Unlock()
	c.nudge()
}

// Deliver calls the handlers until ctx is done. It is the Run of a store, or
// one goroutine of it.
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
