// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package sds

import (
	"context"
	"crypto/sha256"
	"errors"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/prometheus/client_golang/prometheus"
)

const (
	defaultDebounce = 100 * time.Millisecond
	defaultRescan   = time.Minute
	// pollInterval replaces Rescan if directories cannot be watched.
	pollInterval = 2 * time.Second
	// settle is how long a file that is written in place must be quiet before it is
	// read. A file that is replaced by a rename is read at once.
	settle = 20 * time.Millisecond
	// settleMax is the maximum time to wait for a file to become quiet.
	settleMax = 10 * settle
)

// FilesConfig configures a Files.
type FilesConfig struct {
	// Debounce is the delay before files that are missing, invalid or do not
	// match each other are read again; it doubles up to Rescan. Zero means 100 ms.
	// A change of a file is processed without this delay.
	Debounce time.Duration
	// Rescan is how often files are read without an event; zero means a minute.
	Rescan     time.Duration
	Logger     *slog.Logger          // nil means slog.Default()
	Registerer prometheus.Registerer // nil means no metrics
}

// Files follows the files of secrets. It watches nothing while no file is needed.
type Files struct {
	cfg     FilesConfig
	metrics *fileMetrics
	kick    chan struct{} // holds one token: groups were added or removed
	open    func() (*fsnotify.Watcher, error)

	mu      sync.Mutex // guards the fields below
	groups  map[*group]bool
	secrets map[string]*fileSecret // by name
	changed chan struct{}          // closed when one of secrets changes
}

// group is one or two files that are used together. Its owner sets the first fields; the
// others belong to Files.
type group struct {
	paths    []string
	optional bool // missing files are no problem
	// take applies the contents of the files, or returns an error if they are
	// invalid. Only Run calls it, and only with contents that differ from those
	// that it accepted last.
	take func(contents [][]byte) error

	// What follows belongs to Files.Run.
	hash     [sha256.Size]byte
	taken    bool
	failures int
	reason   string        // the last failure that was logged
	wait     time.Duration // delay of the next read after a failure
	due      time.Time     // time of the next read
	writing  time.Time     // since when the files are being written in place
}

// NewFiles returns a Files. It starts nothing; see Run.
func NewFiles(cfg FilesConfig) (*Files, error) {
	if cfg.Debounce <= 0 {
		cfg.Debounce = defaultDebounce
	}
	if cfg.Rescan <= 0 {
		cfg.Rescan = defaultRescan
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	f := &Files{
		cfg: cfg, kick: make(chan struct{}, 1), changed: make(chan struct{}), open: fsnotify.NewWatcher,
		groups: map[*group]bool{}, secrets: map[string]*fileSecret{},
	}
	var err error
	f.metrics, err = newFileMetrics(cfg.Registerer)
	return f, err
}

// follow makes Run read the files of a group, now and whenever they change.
func (f *Files) follow(g *group) {
	for i, p := range g.paths {
		// Without a working directory the path stays relative, and is not found.
		if abs, err := filepath.Abs(p); err == nil {
			g.paths[i] = abs
		}
	}
	f.mu.Lock()
	f.groups[g] = true
	f.mu.Unlock()
	f.wake()
}

func (f *Files) unfollow(g *group) {
	f.mu.Lock()
	delete(f.groups, g)
	f.mu.Unlock()
	f.wake()
}

func (f *Files) wake() {
	select {
	case f.kick <- struct{}{}:
	default: // it is awake already
	}
}

// Run follows the files until ctx is done.
func (f *Files) Run(ctx context.Context) error {
	w := newWatch(f.open)
	defer w.close()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		if next := f.round(w); next.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(time.Until(next))
		}
		// Cases: groups came or went, something in a directory changed, events
		// were lost, a group is due, the end.
		select {
		case <-f.kick:
		case event := <-w.events():
			f.mark(w, event)
		case err := <-w.errors():
			f.cfg.Logger.Debug("file events were lost; reading all files", "err", err)
			f.metrics.watcherFailures.Inc()
			for g := range w.points {
				g.due = time.Time{}
			}
		case <-timer.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// mark records which groups are due because of an event and of further pending events.
func (f *Files) mark(w *watch, event fsnotify.Event) {
	for {
		now := time.Now()
		for _, g := range w.affected(event) {
			if !event.Has(fsnotify.Write) {
				g.due = now
				continue
			}
			if g.writing.IsZero() {
				g.writing = now
			}
			g.due = earlier(now.Add(settle), g.writing.Add(settleMax))
		}
		select {
		case event = <-w.events():
		default:
			return
		}
	}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// round reads the groups that are due, and returns the time of the next one, or zero if
// there is none.
func (f *Files) round(w *watch) (next time.Time) {
	f.mu.Lock()
	groups := make([]*group, 0, len(f.groups))
	for g := range f.groups {
		groups = append(groups, g)
	}
	for g := range w.points {
		if !f.groups[g] {
			w.remove(g)
		}
	}
	f.mu.Unlock()
	for _, g := range groups {
		if !time.Now().Before(g.due) {
			f.look(w, g)
		}
		if next.IsZero() {
			next = g.due
		}
		next = earlier(next, g.due)
	}
	return next
}

// look reads the files of a group, and applies them if they have changed.
func (f *Files) look(w *watch, g *group) {
	interval := f.cfg.Rescan
	watchErr := w.set(g)
	if watchErr != nil {
		f.metrics.watcherFailures.Inc()
		interval = min(interval, pollInterval)
	}
	g.writing = time.Time{}
	contents, err := readFiles(g.paths)
	if err == nil {
		hash := hashOf(contents)
		if !g.taken || hash != g.hash {
			if err = g.take(contents); err == nil {
				g.hash, g.taken = hash, true
			}
		}
	}
	switch {
	case err == nil:
		f.healed(g, watchErr)
	case g.optional && errors.Is(err, fs.ErrNotExist):
		f.healed(g, watchErr)
	default:
		f.failed(g, err)
		interval = min(interval, g.wait)
	}
	g.due = time.Now().Add(interval)
}

// healed resets the failures of a group once its files can be read, even if they cannot
// be watched.
func (f *Files) healed(g *group, watchErr error) {
	reason := ""
	if watchErr != nil {
		reason = watchErr.Error()
	}
	if reason != g.reason {
		if reason != "" {
			f.cfg.Logger.Warn("files are read but not watched", "path", strings.Join(g.paths, " "), "err", watchErr)
		} else {
			f.cfg.Logger.Info("files can be read again", "path", strings.Join(g.paths, " "))
		}
	}
	g.reason, g.failures, g.wait = reason, 0, 0
}

// failed records that the files cannot be used; the last good contents stay in force.
func (f *Files) failed(g *group, err error) {
	f.metrics.secretFailures.Inc()
	g.failures++
	g.wait = min(max(2*g.wait, f.cfg.Debounce), f.cfg.Rescan)
	// A single failure of files that were valid before may mean that they were read
	// while they changed.
	if g.taken && g.failures == 1 || err.Error() == g.reason {
		return
	}
	g.reason = err.Error()
	message := "files are not usable yet; Envoy waits for them"
	if g.taken {
		message = "files are not usable; their previous content stays in force"
	}
	f.cfg.Logger.Warn(message, "path", strings.Join(g.paths, " "), "err", err)
}

func readFiles(paths []string) ([][]byte, error) {
	contents := make([][]byte, len(paths))
	for i, p := range paths {
		var err error
		if contents[i], err = ReadFile(p); err != nil {
			return nil, err
		}
	}
	return contents, nil
}

func hashOf(contents [][]byte) [sha256.Size]byte {
	var sums []byte
	for _, c := range contents {
		sum := sha256.Sum256(c)
		sums = slices.Concat(sums, sum[:])
	}
	return sha256.Sum256(sums)
}
