// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package storetest

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// guard is a [config.Store] that detects modifications of shared objects. It keeps a copy of every
// object and list that it has returned.
type guard struct {
	config.Store

	mu     sync.Mutex // guards the fields below
	copies map[*model.Config]*model.Config
	// lists contains shared lists and their copies, by the address of the first element. Keeping
	// the list prevents that its address is reused.
	lists map[**model.Config]sharedList
}

type sharedList struct{ shared, was []*model.Config }

// newGuard returns a guard for s.
func newGuard(s config.Store) *guard {
	return &guard{Store: s, copies: map[*model.Config]*model.Config{}, lists: map[**model.Config]sharedList{}}
}

func (g *guard) remember(objects ...*model.Config) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, o := range objects {
		if o != nil && g.copies[o] == nil {
			g.copies[o] = o.Clone()
		}
	}
}

// Get returns the object with the given key, or nil if it does not exist.
func (g *guard) Get(key model.Key) *model.Config {
	c := g.Store.Get(key)
	g.remember(c)
	return c
}

// List returns the objects of a kind.
func (g *guard) List(kind model.Kind, namespace string) []*model.Config {
	list := g.Store.List(kind, namespace)
	g.remember(list...)
	if len(list) > 0 {
		g.mu.Lock()
		defer g.mu.Unlock()
		if len(g.lists[&list[0]].shared) < len(list) {
			g.lists[&list[0]] = sharedList{list, slices.Clone(list)}
		}
	}
	return list
}

// RegisterEventHandler adds a handler.
func (g *guard) RegisterEventHandler(handler func([]config.Event), kinds ...model.Kind) {
	g.Store.RegisterEventHandler(func(events []config.Event) {
		for _, e := range events {
			g.remember(e.Old, e.New)
		}
		handler(events)
	}, kinds...)
}

// Verify returns an error that names the shared objects and lists that were modified.
func (g *guard) Verify() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	var errs []error
	for shared, was := range g.copies {
		if !unchanged(shared, was) {
			errs = append(errs, fmt.Errorf("%s: an object that the store shares was modified: modify a Clone", was.Key))
		}
	}
	for _, l := range g.lists {
		if !slices.Equal(l.shared, l.was) {
			errs = append(errs, fmt.Errorf("a list of %s that the store shares was modified: modify a Clone", l.was[0].Kind))
		}
	}
	return errors.Join(errs...)
}

func unchanged(a, b *model.Config) bool {
	return config.SameContent(a, b) && model.SameSpec(a.Status, b.Status) && a.APIVersion == b.APIVersion &&
		a.ResourceVersion == b.ResourceVersion && a.Generation == b.Generation && a.UID == b.UID &&
		a.Created.Equal(b.Created) && a.Source == b.Source
}
