// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mcp

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// Config holds what the stores of a control plane say of it.
type Config struct {
	// Revision is that of the control plane: objects with another value of the
	// label istio.io/rev are left out. Empty means "default".
	Revision string
	// Namespace is where the control plane is, which the server may compare
	// with who opens the stream. Empty means "istio-system".
	Namespace string
	// Name is the name of this instance; empty means "outrigger-control".
	Name string
}

// Store is the [config.Store] that takes its objects from another control
// plane. It takes no writes.
type Store struct {
	*config.Cache
	options
	node     node
	revision string
	log      *slog.Logger
	// order are the types in the order in which they are asked for, the mesh
	// config first; watches are the same by type URL.
	order   []*watch
	watches map[string]*watch

	// lost is the fault that was logged last, and lasting how long the
	// connection is silent before it is probed; only Run uses them.
	lost    string
	lasting time.Duration

	mu sync.Mutex // guards the fields below, and the watches
	// changes counts the states of objects, for their versions.
	changes uint64
	// mesh is nil if there is none.
	mesh *meshv1alpha1.MeshConfig
}

var _ config.Store = (*Store)(nil)

// Driver opens the store of a URL:
//
//	xds://host:port[?parameters]
//
// The parameters ca, cert, key and servername are paths of PEM files and the
// name in the server's certificate; each of them, or tls=true, turns TLS on.
// token is the path of a file with a token that is sent as Bearer. All files
// are read again for each connection. delta=true asks for changes instead of
// full states; versions=v1 is for servers that keep Istio's kinds as v1, such
// as Istio 1.22 and later.
//
// Opening checks the files and asks the server nothing. Run goes on for as
// long as the server cannot be reached.
func Driver(cfg Config) config.Driver {
	return func(u *url.URL, open config.OpenConfig) (config.Store, error) {
		o, err := parse(u)
		if err != nil {
			return nil, err
		}
		o.policy = open.TLS
		s := newStore(o, cfg, open.Logger)
		if _, _, err := s.credentials(); err != nil {
			return nil, fmt.Errorf("config source %q: %w", o.name, err)
		}
		return s, nil
	}
}

func newStore(o options, cfg Config, log *slog.Logger) *Store {
	s := &Store{
		Cache: config.NewCache(schema.All()), options: o, revision: cmp.Or(cfg.Revision, "default"),
		log: cmp.Or(log, slog.New(slog.DiscardHandler)), watches: map[string]*watch{}, lasting: keepAlive,
		node: newNode(cmp.Or(cfg.Name, "outrigger-control"), cmp.Or(cfg.Namespace, "istio-system"), cmp.Or(cfg.Revision, "default")),
	}
	s.watch(&watch{typeURL: MeshConfigType})
	for _, sch := range s.Schemas() {
		s.watch(&watch{typeURL: typeURL(sch, o.newest), schema: sch})
	}
	return s
}

func (s *Store) watch(w *watch) {
	w.entries = map[string]entry{}
	s.order, s.watches[w.typeURL] = append(s.order, w), w
}

// Name returns the URL of the store.
func (s *Store) Name() string { return s.name }

// MeshConfig returns the mesh wide settings of the server, nil if it has none or
// did not answer yet. Nobody may write to it.
func (s *Store) MeshConfig() *meshv1alpha1.MeshConfig {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mesh
}

// Waiting lists the types that the server has not answered yet, without which
// the store has not synced.
func (s *Store) Waiting() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var types []string
	for _, w := range s.order {
		if !w.answered {
			types = append(types, w.typeURL)
		}
	}
	return types
}

// Run follows the server and calls the handlers, until ctx is done.
func (s *Store) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.follow(ctx) })  // reads the server, feeds the cache
	g.Go(func() error { return s.Deliver(ctx) }) // reads the cache, calls the handlers
	return g.Wait()
}

// refuse returns the error of every write.
func (s *Store) refuse(verb string, key model.Key) error {
	return fmt.Errorf("%s %s: it is from %s: %w; change it there", verb, key, s.name, config.ErrReadOnly)
}

// keyOf is the key of an object that may be nil.
func keyOf(c *model.Config) model.Key {
	if c == nil {
		return model.Key{}
	}
	return c.Key
}

// Create fails with [config.ErrReadOnly].
func (s *Store) Create(_ context.Context, c *model.Config) (string, error) {
	return "", s.refuse("create", keyOf(c))
}

// Update fails with [config.ErrReadOnly].
func (s *Store) Update(_ context.Context, c *model.Config) (string, error) {
	return "", s.refuse("update", keyOf(c))
}

// UpdateStatus fails with [config.ErrReadOnly].
func (s *Store) UpdateStatus(_ context.Context, c *model.Config) (string, error) {
	return "", s.refuse("update the status of", keyOf(c))
}

// Patch fails with [config.ErrReadOnly].
func (s *Store) Patch(_ context.Context, key model.Key, _ func(*model.Config) error) (string, error) {
	return "", s.refuse("patch", key)
}

// Delete fails with [config.ErrReadOnly].
func (s *Store) Delete(_ context.Context, key model.Key, _ string) error {
	return s.refuse("delete", key)
}
