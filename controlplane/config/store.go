// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package config

import (
	"context"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// Store is a store of objects. Returned objects are shared and must not be modified
// ([model.Config.Clone] returns a copy). A write may become visible later, but a handler
// never sees a store that is older than its event. All methods are safe for concurrent
// use.
//
// Consumers should accept the smallest of the interfaces below that they need.
type Store interface {
	Reader
	Writer
	Watcher
	Lifecycle
}

// ReadWriter is the part of a [Store] for programs that change objects.
type ReadWriter interface {
	Reader
	Writer
}

// Reader is the part of a [Store] that returns objects.
type Reader interface {
	// Name is the URL of the store, for messages and metrics.
	Name() string
	// Schemas returns the kinds that the store serves. There are no objects of
	// other kinds; writing them fails with [ErrNoKind].
	Schemas() []schema.Schema
	// Get returns the object with the given key, or nil if it does not exist.
	Get(key model.Key) *model.Config
	// List returns the objects of a kind in canonical order ([model.Older]);
	// an empty namespace means all of them.
	List(kind model.Kind, namespace string) []*model.Config
	// Problems returns the current problems, in a stable order.
	Problems() []model.Problem
}

// Writer is the part of a [Store] that changes objects.
type Writer interface {
	// Create writes a new object and returns its resource version. It fails with
	// [ErrExists] and [ErrInvalid]. It does not retain the object. It does not
	// write the status; it writes the creation time if the store supports that.
	Create(ctx context.Context, c *model.Config) (string, error)
	// Update replaces labels, annotations and spec of an object and returns its
	// new resource version. If ResourceVersion is neither the stored one nor
	// empty, it fails with [ErrConflict]. If nothing changes, the version may stay
	// the same, and there is no event.
	Update(ctx context.Context, c *model.Config) (string, error)
	// UpdateStatus replaces only the status of an object, with the same check of
	// the version.
	UpdateStatus(ctx context.Context, c *model.Config) (string, error)
	// Patch changes the newest state of an object: change modifies labels,
	// annotations and spec of a copy. After a concurrent write it is called again
	// with the new state.
	Patch(ctx context.Context, key model.Key, change func(*model.Config) error) (string, error)
	// Delete removes an object. If resourceVersion is neither the stored one nor
	// empty, it fails with [ErrConflict].
	Delete(ctx context.Context, key model.Key, resourceVersion string) error
}

// Watcher is the part of a [Store] that reports changes.
type Watcher interface {
	// RegisterEventHandler adds a function that is called with every change of
	// some kinds, or of all kinds if none is named. It must be called before Run.
	// Handlers are called one at a time in the order in which they were added.
	// Changes that became visible together are passed in one call; several changes
	// of one object may be merged.
	RegisterEventHandler(handler func([]Event), kinds ...model.Kind)
	// SetWatchErrorHandler sets the function that is called with the error of each
	// attempt to follow the source that fails. It must be called before Run.
	SetWatchErrorHandler(handler func(error))
}

// Lifecycle is the part of a [Store] for the program that runs it.
type Lifecycle interface {
	// Run keeps the store up to date until ctx is done. It fails if the source can
	// never be read.
	Run(ctx context.Context) error
	// HasStarted reports whether Run was called.
	HasStarted() bool
	// HasSynced reports whether the first full load was delivered to the handlers.
	// Synced is closed at that time.
	HasSynced() bool
	Synced() <-chan struct{}
}

// Elector is a store that supports leader election.
type Elector interface {
	// Lead runs work whenever this replica, whose name is identity, holds the lease
	// of this name, until ctx is done. The context of work ends when the lease is
	// lost; Lead waits for work to return.
	Lead(ctx context.Context, name, identity string, work func(context.Context) error) error
}

// ElectorOf returns the elector among the control planes that write to a store, or nil
// if the store has none.
func ElectorOf(s Store) Elector {
	if a, ok := s.(*Aggregate); ok {
		s = a.writer
	}
	e, _ := s.(Elector)
	return e
}

// MaxDeposits is the maximum number of values in a [Depository].
const MaxDeposits = 1000

// Depository is a store with values that can be read once, by any of the control planes that share
// the store.
type Depository interface {
	// Deposit stores a value for a time. It fails with [ErrFull] if there are too many.
	Deposit(ctx context.Context, name string, value []byte, life time.Duration) error
	// Withdraw removes a value and returns it, or nil if there is none. Of several concurrent calls
	// one returns it.
	Withdraw(ctx context.Context, name string) ([]byte, error)
}

// DepositoryOf returns the depository among the stores that a control plane writes to, or nil if it
// has none.
func DepositoryOf(s Store) Depository {
	if a, ok := s.(*Aggregate); ok {
		s = a.writer
	}
	d, _ := s.(Depository)
	return d
}
