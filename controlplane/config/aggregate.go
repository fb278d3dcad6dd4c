// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package config

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// Aggregate joins several stores into one. When two hold the same object,
// that of the first store counts.
type Aggregate struct {
	stores []Store
	// deliver keeps the handlers from being called twice at once; it
	// guards nothing else.
	deliver sync.Mutex
	// synced is closed by Run.
	synced chan struct{}
}

var _ Store = (*Aggregate)(nil)

// NewAggregate joins stores; the order is their precedence.
func NewAggregate(stores ...Store) *Aggregate {
	return &Aggregate{stores: stores, synced: make(chan struct{})}
}

// List gives the objects of all stores.
func (a *Aggregate) List(kind model.Kind, namespace string) []*model.Config {
	if len(a.stores) == 1 {
		return a.stores[0].List(kind, namespace)
	}
	var all []*model.Config
	seen := map[model.Key]bool{}
	for _, s := range a.stores {
		for _, c := range s.List(kind, namespace) {
			if !seen[c.Key] {
				seen[c.Key] = true
				all = append(all, c)
			}
		}
	}
	slices.SortStableFunc(all, model.Older)
	return all
}

// Get gives one object.
func (a *Aggregate) Get(key model.Key) *model.Config {
	for _, s := range a.stores {
		if c := s.Get(key); c != nil {
			return c
		}
	}
	return nil
}

// RegisterEventHandler adds the handler to every store. An object that
// another store hides may be reported as changed although it is not.
func (a *Aggregate) RegisterEventHandler(handler func(model.Change)) {
	for _, s := range a.stores {
		s.RegisterEventHandler(func(c model.Change) {
			a.deliver.Lock()
			defer a.deliver.Unlock()
			handler(c)
		})
	}
}

// Run runs all stores until ctx is done or one of them fails.
func (a *Aggregate) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, s := range a.stores {
		g.Go(func() error { return s.Run(ctx) })
	}
	g.Go(func() error {
		for _, s := range a.stores {
			select {
			case <-s.Synced():
			case <-ctx.Done():
				return nil
			}
		}
		close(a.synced)
		return nil
	})
	return g.Wait()
}

// HasSynced reports whether all stores have.
func (a *Aggregate) HasSynced() bool { return isClosed(a.synced) }

// Synced is closed when all stores have synced.
func (a *Aggregate) Synced() <-chan struct{} { return a.synced }

// Problems gives those of all stores, and the objects that are hidden by
// another store.
func (a *Aggregate) Problems() []model.Problem {
	var all []model.Problem
	first := map[model.Key]*model.Config{}
	for i, s := range a.stores {
		all = append(all, s.Problems()...)
		if len(a.stores) == 1 {
			break
		}
		for _, kind := range servedKinds() {
			for _, c := range s.List(kind.kind, "") {
				if winner := first[c.Key]; winner == nil {
					first[c.Key] = c
				} else if i > 0 {
					all = append(all, model.Problem{Object: c.Key, Source: c.Source, Reason: fmt.Sprintf(
						"the same object stands in %s, which comes first: remove one of them", winner.Source)})
				}
			}
		}
	}
	return all
}
