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

// guard is a [config.Store] that detects writes to shared objects: it keeps a
// copy of every object and list that it returned.
type guard struct {
	config.Store

	mu     sync.Mutex // guards the fields below
	copies map[*model.Config]*model.Config
	// lists holds shared lists and their copies, by the place of the first
	// element; keeping the list keeps the place from being used again.
	lists map[**model.Config]sharedList
}

type sharedList struct{ shared, was []*model.Config }

// newGuard returns a guard of what s returns.
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

// Get returns one object, or nil.
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

// Verify names the objects that somebody wrote to after they were handed out,
// and says when somebody wrote to a list.
func (g *guard) Verify() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	var errs []error
	for shared, was := range g.copies {
		if !unchanged(shared, was) {
			errs = append(errs, fmt.Errorf("%s: somebody wrote to the object that the store shares: write to a Clone", was.Key))
		}
	}
	for _, l := range g.lists {
		if !slices.Equal(l.shared, l.was) {
			errs = append(errs, fmt.Errorf("a list of %s: somebody wrote to the list that the store shares: write to a Clone", l.was[0].Kind))
		}
	}
	return errors.Join(errs...)
}

func unchanged(a, b *model.Config) bool {
	return config.SameContent(a, b) && model.SameSpec(a.Status, b.Status) && a.APIVersion == b.APIVersion &&
		a.ResourceVersion == b.ResourceVersion && a.Generation == b.Generation && a.UID == b.UID &&
		a.Created.Equal(b.Created) && a.Source == b.Source
}
