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
	// pollInterval takes the place of Rescan where directories cannot be
	// watched.
	pollInterval = 2 * time.Second
	// settle is how long a file that is written in place has to be quiet before
	// it is read; one that is replaced as a whole is read at once.
	settle = 20 * time.Millisecond
	// settleMax bounds how long a file that is never quiet is waited for.
	settleMax = 10 * settle
)

// FilesConfig describes a Files.
type FilesConfig struct {
	// Debounce is the first wait before files that are missing, broken or do
	// not belong together are read again; it doubles up to Rescan. Zero means
	// 100 ms. A change is looked at without waiting for it.
	Debounce time.Duration
	// Rescan is how often files are read although nothing was seen to change;
	// zero means a minute.
	Rescan     time.Duration
	Logger     *slog.Logger          // nil means slog.Default()
	Registerer prometheus.Registerer // nil means no metrics
}

// Files follows the files that secrets are made of. It watches nothing as long
// as nobody needs a file.
type Files struct {
	cfg     FilesConfig
	metrics *fileMetrics
	kick    chan struct{} // holds one: groups were added or taken away
	open    func() (*fsnotify.Watcher, error)

	mu      sync.Mutex // guards what follows
	groups  map[*group]bool
	secrets map[string]*fileSecret // by name
	changed chan struct{}          // closed when one of secrets changes
}

// group is one or two files that count only together. Its owner fills in the
// first fields and does not touch the others.
type group struct {
	paths    []string
	optional bool // missing files are no problem
	// take puts the contents of the files in force, or says why they cannot be.
	// It is called by Run only, and only with contents that differ from those
	// which it took last.
	take func(contents [][]byte) error

	// What follows belongs to Files.Run.
	hash     [sha256.Size]byte
	taken    bool
	failures int
	reason   string        // of the last failure that was logged
	wait     time.Duration // before the next look after a failure
	due      time.Time     // of the next look
	writing  time.Time     // since when the files are written in place
}

// NewFiles returns a Files. It reads nothing before Run.
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

// follow reads the files of a group, now and whenever they change.
func (f *Files) follow(g *group) {
	for i, p := range g.paths {
		// Without a working directory the path stays as it is, and is not found.
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
			f.cfg.Logger.Debug("events of files were lost, all are read", "err", err)
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

// mark notes which groups an event, and those that wait behind it, make due.
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

// round looks at the groups that are due and returns when the next one is; zero
// if there is none.
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

// look reads the files of a group and has them taken if they changed.
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

// healed is called when the files can be read, even though they may not be
// watched.
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

// failed notes that the files cannot be taken; what was taken before stays in
// force.
func (f *Files) failed(g *group, err error) {
	f.metrics.secretFailures.Inc()
	g.failures++
	g.wait = min(max(2*g.wait, f.cfg.Debounce), f.cfg.Rescan)
	// One failure of files that were good before may only mean that they were
	// read while they changed.
	if g.taken && g.failures == 1 || err.Error() == g.reason {
		return
	}
	g.reason = err.Error()
	message := "files are not usable yet, Envoy waits for them"
	if g.taken {
		message = "files are not usable, what they held before stays in force"
	}
	f.cfg.Logger.Warn(message, "path", strings.Join(g.paths, " "), "err", err)
}

func readFiles(paths []string) ([][]byte, error) {
	contents := make([][]byte, len(paths))
	for i, p := range paths {
		var err error
		if contents[i], err = readFile(p); err != nil {
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
