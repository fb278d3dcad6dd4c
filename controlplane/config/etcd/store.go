// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package etcd

import (
	"cmp"
	"context"
	"log/slog"
	"net/url"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

const (
	// probeEvery is how often etcd is asked how far it has come; a watch from
	// which nothing came for silence is given up.
	probeEvery = 2 * time.Second
	silence    = 7 * time.Second
)

// Store is the [config.Store] that keeps its objects in etcd. What it wrote
// itself is visible at once, what others wrote when etcd tells.
type Store struct {
	*config.Cache
	conn *connection
	log  *slog.Logger

	mu sync.Mutex // guards the fields below, and makes changes visible in order
	// entries are the keys below the prefix, by what follows it.
	entries map[string]entry
	// graves are the entries of keys that are gone. They stay until the watch
	// is past them, so that nothing older comes back.
	graves []grave
	// revision is the highest that was seen.
	revision int64
}

// entry is what is known of one key.
type entry struct {
	// revision is that of the key's last change.
	revision int64
	gone     bool
	// object is in force: what the key holds, or the last of it that could be
	// read; nil if there is none.
	object *model.Config
	// invalid is what the key holds, if that can be read and breaks a rule.
	invalid *model.Config
	// problem is nil if there is none.
	problem *model.Problem
}

type grave struct {
	path     string
	revision int64
}

var _ config.Store = (*Store)(nil)

// Open returns the store of a URL:
//
//	etcd://[user@]host[:2379][,host[:2379]...][/prefix][?parameters]
//
// The prefix is /outrigger by default. The parameters ca, cert, key and
// servername are paths of PEM files and the name in etcd's certificate; each
// of them, or tls=true, turns TLS on. passwordFile is the path of a file with
// the password of the user. The files are read again when etcd refuses them.
//
// Open checks the files and asks etcd nothing. Run goes on for as long as etcd
// cannot be reached.
func Open(u *url.URL, cfg config.OpenConfig) (config.Store, error) {
	o, err := parse(u)
	if err != nil {
		return nil, err
	}
	if o.policy = cfg.TLS; o.tls {
		if _, err := o.tlsConfig(); err != nil {
			return nil, err
		}
	}
	if o.user != "" {
		if _, err := o.password(); err != nil {
			return nil, err
		}
	}
	s := &Store{
		Cache: config.NewCache(schema.All()), conn: newConnection(o),
		log: cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)), entries: map[string]entry{},
	}
	if o.user != "" && !o.tls {
		s.log.Warn("the password for etcd travels in plain text: turn on TLS (ca= or tls=true)", "name", o.name)
	}
	return s, nil
}

// Name returns the URL of the store.
func (s *Store) Name() string { return s.conn.name }

// Run reads all objects, follows their changes and calls the handlers, until
// ctx is done. After it the store takes no writes.
func (s *Store) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.follow(ctx) })  // reads etcd, feeds the cache
	g.Go(func() error { return s.Deliver(ctx) }) // reads the cache, calls the handlers
	return g.Wait()
}

// Problems lists the keys that cannot be read now, in the order of the keys.
func (s *Store) Problems() []model.Problem {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []model.Problem
	for _, e := range s.entries {
		if e.problem != nil {
			all = append(all, *e.problem)
		}
	}
	slices.SortFunc(all, func(a, b model.Problem) int { return cmp.Compare(a.Source, b.Source) })
	return all
}
