// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package config

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// FileConfig says how a [FileStore] works.
type FileConfig struct {
	// Dir is read with all its subdirectories: every *.yaml and *.yml file
	// whose name does not begin with a dot.
	Dir string
	// Name names the store in the metrics; empty means Dir.
	Name string
	// LastGood is a directory for the last good version of objects that went
	// bad, so that a restart keeps them; empty means that it does not.
	LastGood string
	// Quiet is how long the directory has to be quiet before changes are
	// read; 0 means 10 ms. A directory that is never quiet is read after
	// ten times as long.
	Quiet time.Duration
	// Settle is how long a file that is gone or empty keeps its objects,
	// because many editors remove or empty a file before they write it
	// anew; 0 means 50 ms.
	Settle time.Duration
	// Rescan is how often the whole directory is looked at, in case an
	// event was lost; 0 means 30 s.
	Rescan time.Duration
	// Logger gets the problems as they come and go; nil means none.
	Logger *slog.Logger
	// Registerer takes the metrics; nil means none.
	Registerer prometheus.Registerer
}

const (
	defaultQuiet  = 10 * time.Millisecond
	defaultSettle = 50 * time.Millisecond
	defaultRescan = 30 * time.Second
	// pollInterval takes the place of Rescan while events do not come.
	pollInterval = 2 * time.Second
	// busyFactor bounds how long events can put off reading.
	busyFactor = 10
)

// FileStore is the [Store] of a directory of YAML files, which it follows.
// An object or file that goes bad keeps the last good version in force.
type FileStore struct {
	cfg      FileConfig
	log      *slog.Logger
	problems prometheus.Gauge
	// handlers is written before Run only.
	handlers []func(model.Change)
	state    atomic.Pointer[fileSnapshot]
	// synced is closed by Run's goroutine.
	synced chan struct{}
}

var _ Store = (*FileStore)(nil)

// NewFileStore gives the store of a directory, which has to exist.
func NewFileStore(cfg FileConfig) (*FileStore, error) {
	info, err := os.Stat(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("open config directory: %w", err)
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("open config directory %s: it is a file; name the directory that holds it", cfg.Dir)
	}
	cfg.Dir = filepath.Clean(cfg.Dir)
	if cfg.Name == "" {
		cfg.Name = cfg.Dir
	}
	if cfg.Quiet <= 0 {
		cfg.Quiet = defaultQuiet
	}
	if cfg.Settle <= 0 {
		cfg.Settle = defaultSettle
	}
	if cfg.Rescan <= 0 {
		cfg.Rescan = defaultRescan
	}
	s := &FileStore{cfg: cfg, log: cfg.Logger, synced: make(chan struct{})}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.problems, err = newProblemGauge(cfg.Registerer, cfg.Name); err != nil {
		return nil, err
	}
	s.state.Store(&fileSnapshot{})
	return s, nil
}

// List gives the objects of a kind; see [Store].
func (s *FileStore) List(kind model.Kind, namespace string) []*model.Config {
	return s.state.Load().lists[listKey{kind, namespace}]
}

// Get gives one object, or nil.
func (s *FileStore) Get(key model.Key) *model.Config { return s.state.Load().byKey[key] }

// RegisterEventHandler adds a handler; see [Store].
func (s *FileStore) RegisterEventHandler(handler func(model.Change)) {
	s.handlers = append(s.handlers, handler)
}

// HasSynced reports whether the directory was read once.
func (s *FileStore) HasSynced() bool { return isClosed(s.synced) }

// Synced is closed when the directory was read once.
func (s *FileStore) Synced() <-chan struct{} { return s.synced }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Problems lists what is wrong with the files now, in the order of their
// paths.
func (s *FileStore) Problems() []model.Problem { return s.state.Load().problems }

// Run reads the directory and follows it until ctx is done.
func (s *FileStore) Run(ctx context.Context) error {
	t := newTree(s.cfg.Dir, s.cfg.Settle, lastGood{s.cfg.LastGood, s.log})
	events, errs := t.watch(s.log)
	defer t.close()

	quiet, retry := stoppedTimer(), stoppedTimer()
	rescan := time.NewTimer(0) // the first scan is due at once
	defer quiet.Stop()
	defer retry.Stop()
	defer rescan.Stop()
	var busySince time.Time

	for {
		// Cases: the end; something happened in the directory; events
		// were lost; the directory is quiet; a file that was gone or
		// empty had time to come back; time to look at everything.
		select {
		case <-ctx.Done():
			return nil
		case event := <-events:
			if !t.note(event) {
				continue
			}
			if busySince.IsZero() {
				busySince = time.Now()
			}
			quiet.Reset(min(s.cfg.Quiet, max(0, busyFactor*s.cfg.Quiet-time.Since(busySince))))
			continue
		case err := <-errs:
			if !errors.Is(err, fsnotify.ErrEventOverflow) {
				s.log.Warn("watching the config directory has trouble; looking at all of it", "path", s.cfg.Dir, "err", err)
			}
			t.all = true
			quiet.Reset(s.cfg.Quiet)
			continue
		case <-quiet.C:
		case <-retry.C:
		case <-rescan.C:
			t.all = true
		}
		busySince = time.Time{}
		if t.refresh(time.Now()) {
			s.publish(t)
		}
		if t.waiting() {
			retry.Reset(s.cfg.Settle)
		}
		if next := s.cfg.Rescan; t.degraded() {
			rescan.Reset(min(next, pollInterval))
		} else {
			rescan.Reset(next)
		}
	}
}

// publish makes the state of the tree visible, logs what is new about
// problems, and then tells the handlers.
func (s *FileStore) publish(t *tree) {
	prev := s.state.Load()
	next := t.snapshot()
	s.state.Store(next)
	s.problems.Set(float64(len(next.problems)))
	s.logProblems(prev, next)

	first := !s.HasSynced()
	if first && !t.loaded {
		return
	}
	change := next.diff(prev)
	if first {
		change = model.Change{All: true}
	}
	if !change.Empty() {
		for _, handler := range s.handlers {
			handler(change)
		}
	}
	if first {
		close(s.synced)
	}
}

// logProblems says once that a problem is there and once that it is gone.
func (s *FileStore) logProblems(prev, next *fileSnapshot) {
	for i, p := range next.problems {
		if !prev.known[next.identity(i)] {
			s.log.Warn("a configuration object has a problem", "kind", string(p.Object.Kind), "name", p.Object.Name,
				"namespace", p.Object.Namespace, "source", p.Source, "reason", p.Reason)
		}
	}
	for i, p := range prev.problems {
		if !next.known[prev.identity(i)] {
			s.log.Info("a problem of a configuration object is gone", "kind", string(p.Object.Kind), "name", p.Object.Name,
				"namespace", p.Object.Namespace, "source", p.Source, "reason", p.Reason)
		}
	}
}

func stoppedTimer() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}
