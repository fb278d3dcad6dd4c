// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package denylist

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/internal/filetree"
)

// every is the interval at which the file is checked.
const every = time.Second

// Config configures a [Follower].
type Config struct {
	Path     string // of the file
	OnChange func() // called after the list has changed; must not block
	Logger   *slog.Logger
	// Registerer registers the metrics; nil disables them.
	Registerer prometheus.Registerer
}

// Follower watches the file of a list.
type Follower struct {
	cfg     Config
	file    *filetree.Follower
	current atomic.Pointer[List]
	metrics *metrics
}

// NewFollower reads the file. It returns an error if the file is missing or invalid: a control
// plane that starts without the list would admit the denied identities.
func NewFollower(cfg Config) (*Follower, error) {
	f := &Follower{cfg: cfg, metrics: newMetrics()}
	f.file = filetree.NewFollower(filetree.FollowerConfig{Path: cfg.Path, MaxBytes: maxBytes, Every: every, Take: f.take, Report: f.report})
	if err := f.file.Look(); err != nil {
		return nil, fmt.Errorf("deny list %s: %w", cfg.Path, err)
	}
	if err := f.metrics.register(cfg.Registerer); err != nil {
		return nil, err
	}
	return f, nil
}

// List returns the list in force, or nil for a nil Follower.
func (f *Follower) List() *List {
	if f == nil {
		return nil
	}
	return f.current.Load()
}

// Err returns why the newest version of the file is not in force, or nil if it is. It returns nil
// for a nil Follower.
func (f *Follower) Err() error {
	if f == nil {
		return nil
	}
	return f.file.Err()
}

// Run watches the file until ctx is done.
func (f *Follower) Run(ctx context.Context) error { return f.file.Run(ctx) }

// report logs why the newest version of the file is not in force.
func (f *Follower) report(err error) {
	if err == nil {
		f.metrics.rejected.Set(0)
		return
	}
	f.metrics.rejected.Set(1)
	if errors.Is(err, filetree.ErrEmpty) {
		err = fmt.Errorf("%w; to deny nobody, write a comment such as # nobody", err)
	}
	f.cfg.Logger.Error("the deny list has an error; the last valid one stays in force", "path", f.cfg.Path, "err", err)
}

// take parses a list and puts it in force.
func (f *Follower) take(text []byte) error {
	list, err := Parse(text)
	if err != nil {
		return err
	}
	before := f.current.Load()
	if before != nil && list.Version() == before.Version() {
		return nil
	}
	f.current.Store(list)
	f.metrics.show(list)
	if before != nil || list.Len() > 0 {
		f.cfg.Logger.Info("the control plane applies a new deny list and sends it to the proxies", "path", f.cfg.Path, "count", list.Len(), "version", list.Version())
	}
	if before != nil && f.cfg.OnChange != nil {
		f.cfg.OnChange()
	}
	return nil
}
