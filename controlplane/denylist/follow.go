// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package denylist

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// every is the time between two looks at the file.
const every = time.Second

// Config describes a [Follower].
type Config struct {
	Path     string // of the file
	OnChange func() // called after another list is in force; must not wait
	Logger   *slog.Logger
	// Registerer takes the metrics; nil means none.
	Registerer prometheus.Registerer
}

// Follower keeps the list of a file.
type Follower struct {
	cfg     Config
	current atomic.Pointer[List]
	last    []byte // the text of current
	said    string // the error that was logged last
	metrics *metrics
}

// NewFollower reads the file. It returns an error if the file is missing or invalid:
// a control plane that starts without the list would admit the denied identities.
func NewFollower(cfg Config) (*Follower, error) {
	f := &Follower{cfg: cfg, metrics: newMetrics()}
	if err := f.look(); err != nil {
		return nil, fmt.Errorf("deny list %s: %w", cfg.Path, err)
	}
	if err := f.metrics.register(cfg.Registerer); err != nil {
		return nil, err
	}
	return f, nil
}

// List returns the list in force. A nil Follower has none.
func (f *Follower) List() *List {
	if f == nil {
		return nil
	}
	return f.current.Load()
}

// Run follows the file until ctx ends.
func (f *Follower) Run(ctx context.Context) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		// Cases: the end; time for a look.
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		err := f.look()
		switch {
		case err == nil:
			f.said = ""
			f.metrics.rejected.Set(0)
		case f.said != err.Error():
			f.said = err.Error()
			f.metrics.rejected.Set(1)
			f.cfg.Logger.Error("the deny list has an error and the last good one stays in force", "path", f.cfg.Path, "err", err)
		}
	}
}

// look reads the file and takes what changed.
func (f *Follower) look() error {
	text, err := readFile(f.cfg.Path)
	if err != nil {
		return err
	}
	before := f.current.Load()
	if before != nil && bytes.Equal(text, f.last) {
		return nil
	}
	if len(bytes.TrimSpace(text)) == 0 && before.Len() > 0 {
		return errors.New("it is empty, as a file is while it is written; to deny nobody, write a comment such as # nobody")
	}
	list, err := Parse(text)
	if err != nil {
		return err
	}
	f.last = text
	if before != nil && list.Version() == before.Version() {
		return nil
	}
	f.current.Store(list)
	f.metrics.show(list)
	if before != nil || list.Len() > 0 {
		f.cfg.Logger.Info("a deny list is in force", "path", f.cfg.Path, "count", list.Len(), "version", list.Version())
	}
	if before != nil && f.cfg.OnChange != nil {
		f.cfg.OnChange()
	}
	return nil
}

// readFile reads a regular file of bounded size.
func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path) // before it is opened, which can block
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("it is no regular file but %s", info.Mode().Type())
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // it is only read
	return io.ReadAll(io.LimitReader(file, maxBytes+1))
}
