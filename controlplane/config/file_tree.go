// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package config

import (
	"context"
	"crypto/sha256"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sync/errgroup"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/internal/filetree"
)

const (
	// racy is how fresh a file may be so that its next change could show
	// neither in its size nor in its time.
	racy = 2 * time.Second
	// readBatch is how many files one goroutine reads at once.
	readBatch = 16
)

// tree is the directory as it was last read. The mutex of its store guards it.
type tree struct {
	dir     string
	settle  time.Duration
	good    lastGood
	files   map[string]*file
	status  statusDir
	watcher *fsnotify.Watcher
	// ahead holds what files hold, for a scan that is under way; known what
	// this process wrote last, so that it need not be decoded again.
	ahead map[string]content
	known content
	// watchFailed means that some directory is not watched.
	watchFailed bool
	// all asks for a look at the whole tree; dirty at some files.
	all   bool
	dirty map[string]bool
	// loaded means that the whole tree was read once.
	loaded bool
	// trouble lists directories that cannot be read, with the reason.
	trouble map[string]string
	// changed are the files that are different from what was published;
	// troubled means that trouble is.
	changed  map[*file]bool
	troubled bool
	// now is the time of the refresh.
	now time.Time
}

func newTree(dir string, settle time.Duration, good lastGood) *tree {
	return &tree{
		dir: dir, settle: settle, good: good, status: newStatusDir(dir, good.log),
		files: map[string]*file{}, dirty: map[string]bool{}, trouble: map[string]string{}, changed: map[*file]bool{},
	}
}

// watch begins to watch; without a watcher the tree is polled.
func (t *tree) watch(log *slog.Logger) (<-chan fsnotify.Event, <-chan error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		log.Warn("the config directory cannot be watched; looking at it every 2 s instead", "path", t.dir, "err", err)
		t.watchFailed = true
		return nil, nil
	}
	t.watcher = w
	return w.Events, w.Errors
}

func (t *tree) close() {
	if t.watcher != nil {
		_ = t.watcher.Close() // nothing is left to do with the watcher
	}
}

// degraded means that events alone do not tell of every change.
func (t *tree) degraded() bool { return t.watchFailed || len(t.trouble) > 0 }

// waiting means that some file was gone or empty and may come back.
func (t *tree) waiting() bool { return len(t.dirty) > 0 }

// note remembers what an event asks to look at.
func (t *tree) note(e fsnotify.Event) bool {
	switch dir, base := filepath.Split(e.Name); {
	case strings.HasPrefix(base, tempPrefix), filepath.Clean(dir) == filepath.Join(t.dir, ownDir) && base != filepath.Base(t.status.dir):
		return false // ours
	case filepath.Clean(dir) == t.status.dir:
		return t.status.note(e.Name)
	case isConfigName(base):
		t.dirty[e.Name] = true
	case e.Has(fsnotify.Create), e.Has(fsnotify.Remove), e.Has(fsnotify.Rename):
		// Perhaps a directory, or a symbolic link to one.
		t.all = true
	default:
		return false
	}
	return true
}

// isConfigName tells configuration from the temporary files of editors.
func isConfigName(name string) bool {
	ext := filepath.Ext(name)
	return (ext == ".yaml" || ext == ".yml") && !strings.HasPrefix(name, ".") && !strings.HasPrefix(name, "#")
}

// refresh looks at what may have changed.
func (t *tree) refresh(ctx context.Context, now time.Time) {
	t.now = now
	dirty := t.dirty
	t.dirty = map[string]bool{}
	if !t.all {
		for path := range dirty {
			info, err := os.Stat(path)
			if err == nil && info.IsDir() {
				t.all = true
				continue
			}
			t.look(ctx, path, info, err, true)
		}
	}
	if t.all {
		t.all = false
		t.scan(ctx, dirty)
	}
	t.status.refresh()
}

// scan looks at the whole tree; the files in force are read even if they
// seem unchanged.
func (t *tree) scan(ctx context.Context, force map[string]bool) {
	found := map[string]fs.FileInfo{}
	trouble := map[string]string{}
	t.watchFailed = t.watcher == nil
	t.watchLink()
	for _, dir := range []string{filepath.Dir(t.status.dir), t.status.dir} {
		if t.watcher != nil {
			_ = t.watcher.Add(dir) // it need not be there
		}
	}
	t.status.all = true
	_ = filetree.Walk{ // it fails with ctx, which is looked at below
		Wanted: isConfigName,
		// The watch comes first, so that nothing falls between.
		Enter:   func(dir string) bool { t.watchDir(dir); return true },
		File:    func(path string, info fs.FileInfo) { found[path] = info },
		Trouble: func(path, reason string) { trouble[path] = reason },
	}.Run(ctx, t.dir)
	look := func(path string) bool {
		f, info := t.files[path], found[path]
		return f == nil || force[path] || t.now.Sub(info.ModTime()) < racy || !sameFile(f.info, info)
	}
	t.readAhead(ctx, slices.DeleteFunc(slices.Collect(maps.Keys(found)), func(path string) bool { return !look(path) }))
	if ctx.Err() != nil {
		t.ahead, t.all = nil, true
		return // what was not read looks like what is gone
	}
	for path, info := range found {
		t.look(ctx, path, info, nil, look(path))
	}
	t.ahead = nil
	for path := range t.files {
		if found[path] == nil && !below(path, trouble) {
			t.look(ctx, path, nil, fs.ErrNotExist, true)
		}
	}
	if !maps.Equal(trouble, t.trouble) {
		t.trouble, t.troubled = trouble, true
	}
	if _, bad := trouble[t.dir]; !bad && !t.loaded {
		t.loaded = true
		t.good.prune(t.files)
	}
}

// readAhead reads files with all processors.
func (t *tree) readAhead(ctx context.Context, paths []string) {
	var (
		mu    sync.Mutex
		group errgroup.Group
	)
	t.ahead = make(map[string]content, len(paths))
	group.SetLimit(runtime.GOMAXPROCS(0))
	for batch := range slices.Chunk(paths, readBatch) {
		group.Go(func() error {
			for _, path := range batch {
				if ctx.Err() != nil {
					return nil
				}
				c := t.read(ctx, path)
				mu.Lock()
				t.ahead[path] = c
				mu.Unlock()
			}
			return nil
		})
	}
	_ = group.Wait() // its functions do not fail
}

// read gives what a file holds, decoded unless it is what it was.
func (t *tree) read(ctx context.Context, path string) content {
	data, err := readFile(path)
	if err != nil {
		return content{err: err}
	}
	c := content{sum: sha256.Sum256(data), empty: len(data) == 0}
	switch f := t.files[path]; {
	case f != nil && f.read && f.sum == c.sum:
		return c
	case t.known.path == path && t.known.sum == c.sum:
		return t.known
	}
	return decodeContent(ctx, path, data)
}

func (t *tree) watchDir(dir string) {
	if t.watcher != nil && t.watcher.Add(dir) != nil {
		t.watchFailed = true
	}
}

// watchLink watches the directory in which the tree's own symbolic link
// stands: the link may be turned to another directory.
func (t *tree) watchLink() {
	if info, err := os.Lstat(t.dir); t.watcher != nil && err == nil && info.Mode()&fs.ModeSymlink != 0 {
		if err := t.watcher.Add(filepath.Dir(t.dir)); err != nil {
			t.watchFailed = true
		}
	}
}

func below(path string, dirs map[string]string) bool {
	for dir := range dirs {
		if path == dir || strings.HasPrefix(path, dir+string(filepath.Separator)) {
			return true
		}
	}
	return false
}

// look brings one file up to date. Info and err are what Stat said.
func (t *tree) look(ctx context.Context, path string, info fs.FileInfo, err error, force bool) {
	f := t.files[path]
	if errors.Is(err, fs.ErrNotExist) {
		if f != nil && !t.hold(f) {
			t.drop(f)
		}
		return
	}
	if err == nil && f != nil && !force && !f.held() && sameFile(f.info, info) {
		return
	}
	if err == nil && !info.Mode().IsRegular() {
		return
	}
	if f == nil {
		f = &file{path: path, durable: t.good.dir != "", objects: t.good.load(path)}
		t.files[path] = f
		t.changed[f] = true
	}
	c, ok := t.ahead[path]
	switch {
	case err != nil:
		c = content{err: err}
	case !ok:
		c = t.read(ctx, path)
	}
	if ctx.Err() != nil {
		return
	}
	if errors.Is(c.err, fs.ErrNotExist) {
		t.look(ctx, path, nil, c.err, force)
		return
	}
	if c.err == nil && c.empty && t.hold(f) {
		return
	}
	f.info = info
	if f.update(c) {
		t.good.save(f)
		t.changed[f] = true
	}
}

// drop forgets a file that is gone.
func (t *tree) drop(f *file) {
	delete(t.files, f.path)
	t.good.save(&file{path: f.path})
	f.dropped = true
	t.changed[f] = true
}

// hold keeps the objects of a file that is gone or empty for a moment.
func (t *tree) hold(f *file) bool {
	if len(f.objects) == 0 || f.held() && t.now.Sub(f.heldSince) >= t.settle {
		return false
	}
	if !f.held() {
		f.heldSince = t.now
		t.changed[f] = true
	}
	t.dirty[f.path] = true
	return true
}

func sameFile(a, b fs.FileInfo) bool {
	return a != nil && b != nil && os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

// readFile reads no more than Decode takes.
func readFile(path string) ([]byte, error) {
	data, _, err := filetree.ReadFile(path, MaxFileSize+1)
	return data, err
}

// report gives all that is wrong now.
func (t *tree) report(index fileIndex) *fileSnapshot {
	s := &fileSnapshot{known: map[problemIdentity]bool{}}
	for _, dir := range slices.Sorted(maps.Keys(t.trouble)) {
		s.problem(dir, model.Problem{Source: dir, Reason: "it cannot be read: " + t.trouble[dir] +
			"; the objects that were read from it before stay in force"})
	}
	index.report(s)
	return s
}
