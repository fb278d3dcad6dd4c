// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package file

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sync/errgroup"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/internal/filetree"
)

// Config says how a [Store] works.
type Config struct {
	// Dir is read with all its subdirectories: every *.yaml, *.yml and *.json file
	// whose name does not begin with a dot.
	Dir string
	// Name names the store in the metrics; empty means Dir.
	Name string
	// Links are directories, beside Dir, that symbolic links below Dir may lead
	// to; "/" stands for all. Other links that leave Dir are problems.
	Links []string
	// State is a directory for what the store keeps beside the objects: their
	// status, and the last good version of those that went bad. Empty means that
	// both are in memory only and end with the process.
	State string
	// Status is a directory for the status of objects instead of one below State, so that several
	// replicas share it. They must not share State.
	Status string
	// Keep makes the store write last good versions to State. One process keeps
	// them; others that have the same State read them.
	Keep bool
	// Quiet is how long the directory has to be quiet before changes are
	// read; 0 means 10 ms. A directory that is never quiet is read after
	// ten times as long.
	Quiet time.Duration
	// Settle is how long a file that is gone or empty keeps its objects,
	// because many editors remove or empty a file before they write it
	// again; 0 means 50 ms.
	Settle time.Duration
	// Rescan is how often the whole directory is looked at, in case an
	// event was lost; 0 means 30 s.
	Rescan time.Duration
	// Logger gets the problems as they come and go; nil means none.
	Logger *slog.Logger
}

const (
	defaultQuiet  = 10 * time.Millisecond
	defaultSettle = 50 * time.Millisecond
	defaultRescan = 30 * time.Second
	// pollInterval takes the place of Rescan while events do not come.
	pollInterval = 2 * time.Second
	// pollShare bounds how much of the time polling may take: a tenth.
	pollShare = 10
	// busyFactor bounds how long events can put off reading.
	busyFactor = 10
)

// Store is the [config.Store] of a directory of YAML and JSON files, which it follows and
// writes to. An object or file that goes bad keeps the last good version in
// force. An object is written where it stands; a new one gets a file of its
// own, see [Store.Create]. Resource versions are hashes of the content.
//
// Nothing but objects is in the directory: the status of objects is in the state
// directory, and writers lock the directory itself.
type Store struct {
	cfg Config
	log *slog.Logger
	*config.Cache
	state atomic.Pointer[fileSnapshot]
	// busy is when the look at the directory began that is under way, aside the
	// same for files that are read beside it; nil when there is none.
	busy, aside atomic.Pointer[time.Time]
	// writing holds a token while somebody writes. The lock file keeps out
	// other processes.
	writing chan struct{}
	// swept belongs to who holds the token: what killed writers left is gone.
	swept bool

	mu    sync.Mutex // guards the fields below
	tree  *tree
	index fileIndex
}

var _ config.Store = (*Store)(nil)

// New returns the store of a directory, which has to exist.
func New(cfg Config) (*Store, error) {
	info, err := os.Stat(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("open config directory: %w; create it, or name another one", err)
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("open config directory %s: it is a file; name its directory", cfg.Dir)
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
	s := &Store{cfg: cfg, log: cfg.Logger, Cache: config.NewCache(schema.All()), index: newFileIndex(), writing: make(chan struct{}, 1)}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.tree = newTree(filetree.Boundary{
		Root: cfg.Dir, Also: cfg.Links, Cure: "move the files, or allow it with ?links=/directory at the end of the source's URL",
	}, cfg.Settle, cmp.Or(cfg.Status, stateDir(cfg.State, "status")), lastGood{stateDir(cfg.State, "last-good"), cfg.Keep, s.log})
	s.state.Store(&fileSnapshot{})
	return s, nil
}

// Name returns the URL of the store.
func (s *Store) Name() string { return s.cfg.Name }

// Problems lists what is wrong with the files now, in the order of their
// paths.
func (s *Store) Problems() []model.Problem { return s.state.Load().problems }

// Run reads the directory, follows it, and calls the handlers, until ctx is
// done.
func (s *Store) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.followOrLeave(ctx) }) // reads the directory, feeds the cache
	g.Go(func() error { return s.Deliver(ctx) })       // reads the cache, calls the handlers
	g.Go(func() error { return s.report(ctx) })        // logs when the first one is stuck
	return g.Wait()
}

const (
	// behindAfter is how long a look at the directory may take before it counts
	// as stuck.
	behindAfter = 10 * time.Second
	// leaveAfter is how long the end waits for a look that is under way.
	leaveAfter = 5 * time.Second
)

// followOrLeave is follow, but returns although the file system does not: what
// hangs in a system call ends with the process.
func (s *Store) followOrLeave(ctx context.Context) error {
	done := make(chan error, 1)
	go func() { done <- s.follow(ctx) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-done:
		return err
	case <-time.After(leaveAfter):
		return fmt.Errorf("read the config directory %s: the file system does not respond", s.cfg.Dir)
	}
}

// Behind returns since when the store has been busy with one look at its
// directory, or with some files of it, and so does not apply changes. It is zero
// while that takes less than 10 s.
func (s *Store) Behind() time.Time {
	var oldest time.Time
	for _, since := range []*time.Time{s.busy.Load(), s.aside.Load()} {
		if since != nil && time.Since(*since) >= behindAfter && (oldest.IsZero() || since.Before(oldest)) {
			oldest = *since
		}
	}
	return oldest
}

// report logs once that the store is stuck, and once that it is not any more.
func (s *Store) report(ctx context.Context) error {
	tick := time.NewTicker(behindAfter)
	defer tick.Stop()
	for stuck := false; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		switch since := s.Behind(); {
		case !since.IsZero() && !stuck:
			stuck = true
			s.log.Error("configuration changes are not applied: reading the config directory does not finish", "path", s.cfg.Dir, "duration", time.Since(since))
		case since.IsZero() && stuck:
			stuck = false
			s.log.Info("configuration changes are applied again", "path", s.cfg.Dir)
		}
	}
}

// follow brings the cache up to date with the directory.
func (s *Store) follow(ctx context.Context) error {
	s.mu.Lock()
	events, errs := s.tree.watch(s.log)
	s.mu.Unlock()
	defer s.unwatch()

	quiet, retry := stoppedTimer(), stoppedTimer()
	rescan := time.NewTimer(0) // the first scan is due at once
	defer quiet.Stop()
	defer retry.Stop()
	defer rescan.Stop()
	var busySince time.Time
	aside := make(chan map[string]content, 1)

	for {
		// Cases: the end; something happened in the directory; events
		// were lost; the directory is quiet; a file that was gone or
		// empty had time to come back; time to look at everything; files were
		// read aside.
		select {
		case <-ctx.Done():
			if s.aside.Load() != nil {
				<-aside
			}
			return nil
		case event := <-events:
			if !s.note(event) {
				continue
			}
			if busySince.IsZero() {
				busySince = time.Now()
			}
			quiet.Reset(min(s.cfg.Quiet, max(0, busyFactor*s.cfg.Quiet-time.Since(busySince))))
			continue
		case err := <-errs:
			if !errors.Is(err, fsnotify.ErrEventOverflow) {
				s.log.Warn("error while watching the config directory; rescanning it", "path", s.cfg.Dir, "err", err)
			}
			s.WatchError(fmt.Errorf("watch the config directory %s: %w", s.cfg.Dir, err))
			s.lookAtAll()
			quiet.Reset(s.cfg.Quiet)
			continue
		case <-quiet.C:
		case <-retry.C:
		case <-rescan.C:
			s.lookAtAll()
		case contents := <-aside:
			if s.takeAside(ctx, contents) {
				retry.Reset(s.cfg.Settle)
			}
			s.readAside(ctx, aside)
			continue
		}
		busySince = time.Time{}
		began := time.Now()
		waiting, degraded := s.refresh(ctx)
		s.readAside(ctx, aside)
		if waiting {
			retry.Reset(s.cfg.Settle)
		}
		if next := s.cfg.Rescan; degraded {
			rescan.Reset(min(next, max(pollInterval, pollShare*time.Since(began))))
		} else {
			rescan.Reset(next)
		}
	}
}

// readAside reads files of the backlog in a goroutine, if there are some and
// none does.
func (s *Store) readAside(ctx context.Context, out chan<- map[string]content) {
	s.mu.Lock()
	read := s.tree.readAside()
	s.mu.Unlock()
	if read == nil {
		return
	}
	now := time.Now()
	s.aside.Store(&now)
	go func() { out <- read(ctx) }() // follow waits for it
}

// takeAside makes visible what was read aside. Waiting means that some file may
// come back.
func (s *Store) takeAside(ctx context.Context, contents map[string]content) (waiting bool) {
	s.aside.Store(nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tree.now = time.Now()
	s.tree.takeAside(ctx, contents)
	s.publish()
	return s.tree.waiting()
}

func (s *Store) note(e fsnotify.Event) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tree.note(e)
}

func (s *Store) lookAtAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tree.all = true
}

func (s *Store) unwatch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tree.close()
}

// refresh brings the cache up to date with what may have changed. Waiting means
// that some file may come back, degraded that events do not tell of all.
func (s *Store) refresh(ctx context.Context) (waiting, degraded bool) {
	now := time.Now()
	s.busy.Store(&now)
	defer s.busy.Store(nil)
	s.mu.Lock()
	s.tree.refresh(ctx, now)
	s.publish()
	waiting, degraded = s.tree.waiting(), s.tree.degraded()
	trouble, bad := s.tree.trouble[s.cfg.Dir]
	s.mu.Unlock()
	if bad {
		s.WatchError(fmt.Errorf("read the config directory %s: %s", s.cfg.Dir, trouble))
	}
	return waiting, degraded
}

// publish makes what changed in the tree visible and logs what is new about
// problems. The caller holds mu.
func (s *Store) publish() {
	t := s.tree
	keys, problems := s.index.update(t.changed)
	if problems || t.troubled {
		prev, next := s.state.Load(), t.report(s.index)
		s.state.Store(next)
		s.logProblems(prev, next)
	}
	for key := range t.status.changed {
		keys[key] = true
	}
	next := make(map[model.Key]*model.Config, len(keys))
	for key := range keys {
		h := s.index.winner(key)
		if h.file != nil && h.file.held() && s.Get(key) != nil {
			continue // it stays as it was until its file is back or gone
		}
		next[key] = t.status.dress(h.object)
	}
	t.changed, t.troubled, t.status.changed = map[*file]bool{}, false, map[model.Key]bool{}
	s.Apply(next)
	if t.loaded {
		s.Loaded()
	}
}

func stoppedTimer() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}
