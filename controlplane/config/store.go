// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package config

import (
	"context"

	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// Store holds objects. What it returns is shared: nobody may write to it
// ([model.Config.Clone] returns a copy). Writes may be visible late; a handler
// never sees a store that is older than its event. All methods may be called by
// several goroutines at once.
//
// Consumers take the part that they need.
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

// Reader is the part of a [Store] that returns what it holds.
type Reader interface {
	// Name is the URL of the store, for messages and metrics.
	Name() string
	// Schemas lists the kinds that the store serves. Other kinds are never
	// there; writing them fails with [ErrNoKind].
	Schemas() []schema.Schema
	// Get returns one object, nil when there is none.
	Get(key model.Key) *model.Config
	// List returns the objects of a kind in canonical order ([model.Older]);
	// an empty namespace means all of them.
	List(kind model.Kind, namespace string) []*model.Config
	// Problems lists what is wrong now, in a stable order.
	Problems() []model.Problem
}

// Writer is the part of a [Store] that changes objects.
type Writer interface {
	// Create writes a new object and returns its resource version. It fails
	// with [ErrExists] and [ErrInvalid]. The caller keeps the object. A status
	// is not written; a creation time is kept where the store can.
	Create(ctx context.Context, c *model.Config) (string, error)
	// Update replaces labels, annotations and spec of an object and returns its
	// new resource version. The object's ResourceVersion has to be the stored
	// one, else it fails with [ErrConflict]; an empty one always wins. Where
	// nothing changes, the version may stay, and no event follows.
	Update(ctx context.Context, c *model.Config) (string, error)
	// UpdateStatus replaces the status of an object, and nothing else, under
	// the same rule.
	UpdateStatus(ctx context.Context, c *model.Config) (string, error)
	// Patch changes the newest state of an object: change gets a copy and
	// alters labels, annotations and spec. It is called again, with what is
	// newest then, when somebody else was faster.
	Patch(ctx context.Context, key model.Key, change func(*model.Config) error) (string, error)
	// Delete removes an object. A resource version that is not empty has to
	// be the stored one, else it fails with [ErrConflict].
	Delete(ctx context.Context, key model.Key, resourceVersion string) error
}

// Watcher is the part of a [Store] that reports changes.
type Watcher interface {
	// RegisterEventHandler adds a function that hears of every change of
	// some kinds, of all when none is named. It must be called before Run.
	// Handlers are called one at a time in the order in which they were
	// added. Events that became visible together come together; several
	// changes of one object may come as one.
	RegisterEventHandler(handler func([]Event), kinds ...model.Kind)
	// SetWatchErrorHandler sets the function that hears when the source
	// cannot be followed, each time it is tried. It must be called before
	// Run.
	SetWatchErrorHandler(handler func(error))
}

// Lifecycle is the part of a [Store] for the program that runs it.
type Lifecycle interface {
	// Run keeps the store up to date until ctx is done. It fails when the
	// source can never be read.
	Run(ctx context.Context) error
	// HasStarted reports whether Run was called.
	HasStarted() bool
	// HasSynced reports whether the first full load was delivered to the
	// handlers; Synced is closed when it was.
	HasSynced() bool
	Synced() <-chan struct{}
}

// Elector is a store that can choose one of several control planes.
type Elector interface {
	// Lead runs work while this replica, which calls itself identity, holds the
	// lease of this name, again and again until ctx is done. The context of work
	// ends when the lease is lost; Lead waits for work to return.
	Lead(ctx context.Context, name, identity string, work func(context.Context) error) error
}

// ElectorOf returns what chooses one of the control planes that write to a store;
// nil if it cannot.
func ElectorOf(s Store) Elector {
	if a, ok := s.(*Aggregate); ok {
		s = a.writer
	}
	e, _ := s.(Elector)
	return e
}
