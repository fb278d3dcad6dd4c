// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package file

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/outrigger-mesh/outrigger/internal/filetree"
)

// racy is how fresh a file may be so that its next change could show neither in
// its size nor in its time.
const racy = 2 * time.Second

// tree is the directory as it was last read. The mutex of its store guards it.
type tree struct {
	dir      string
	boundary filetree.Boundary
	settle   time.Duration
	good     lastGood
	files    map[string]*file
	status   statusDir
	watcher  *fsnotify.Watcher
	// known is what this process wrote last, so that it need not be decoded
	// again.
	known content
	// whole makes a refresh read all at once, however long that takes.
	whole bool
	// watchFailed means that some directory is not watched.
	watchFailed bool
	// all asks for a look at the whole tree; dirty at some files.
	all   bool
	dirty map[string]bool
	// loaded means that the whole tree was read once.
	loaded bool
	// trouble lists directories and links that cannot be read, with the reason.
	trouble map[string]string
	// backlog are files that wait to be read aside; see [tree.readAside]. Aside
	// means that a goroutine reads some, and reading are those of them whose
	// content nobody else has read meanwhile.
	backlog map[string]fs.FileInfo
	queue   []pathSize // the backlog in order, without what came to it since
	reading map[string]bool
	aside   bool
	// used is what all files count for, in bytes.
	used atomic.Int64
	// changed are the files that are different from what was published;
	// troubled means that trouble is.
	changed  map[*file]bool
	troubled bool
	// now is the time of the refresh.
	now time.Time
}

func newTree(boundary filetree.Boundary, settle time.Duration, status string, good lastGood) *tree {
	return &tree{
		dir: boundary.Root, boundary: boundary, settle: settle, good: good, status: newStatusDir(status, good.log),
		backlog: map[string]fs.FileInfo{}, reading: map[string]bool{},
		files: map[string]*file{}, dirty: map[string]bool{}, trouble: map[string]string{}, changed: map[*file]bool{},
	}
}

// watch begins to watch; without a watcher the tree is polled.
func (t *tree) watch(log *slog.Logger) (<-chan fsnotify.Event, <-chan error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		log.Warn("the config directory cannot be watched; polling it every 2 s", "path", t.dir, "err", err)
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
	case strings.HasPrefix(base, tempPrefix):
		return false // ours
	case t.status.dir != "" && filepath.Clean(dir) == t.status.dir:
		return t.status.note(e.Name)
	case t.status.dir != "" && filepath.Clean(dir) == filepath.Dir(t.status.dir):
		if base != filepath.Base(t.status.dir) {
			return false
		}
		t.all = true
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

// isConfigName reports whether a name is that of a configuration file, not of a temporary file of an
// editor.
func isConfigName(name string) bool {
	ext := filepath.Ext(name)
	return (ext == ".yaml" || ext == ".yml" || ext == jsonExt) && !strings.HasPrefix(name, ".") && !strings.HasPrefix(name, "#")
}

// refresh looks at what may have changed.
func (t *tree) refresh(ctx context.Context, now time.Time) {
	t.now = now
	dirty := t.dirty
	t.dirty = map[string]bool{}
	if !t.all {
		files := map[string]fs.FileInfo{}
		for path := range dirty {
			info, err := os.Lstat(path)
			switch {
			case err == nil && info.Mode().IsRegular():
				files[path] = info
			case err == nil && (info.IsDir() || info.Mode()&fs.ModeSymlink != 0):
				t.all = true // a walk tells where a link leads
			default:
				t.look(ctx, path, info, err, true)
			}
		}
		if !t.all {
			t.readSome(ctx, files)
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
	if t.watcher != nil && t.status.dir != "" {
		_ = os.MkdirAll(t.status.dir, stateMode) // others may write there; if it cannot be made, nobody does
		_ = t.watcher.Add(t.status.dir)
	}
	t.status.all = t.status.dir != ""
	complete, _ := filetree.Walk{ // it fails with ctx, which is looked at below
		Boundary: t.boundary,
		Wanted:   isConfigName,
		// The watch comes first, so that nothing falls between.
		Enter:   func(dir string) bool { t.watchDir(dir); return true },
		File:    func(path string, info fs.FileInfo) { found[path] = info },
		Trouble: func(path, reason string) { trouble[path] = reason },
	}.Run(ctx)
	changed := map[string]fs.FileInfo{}
	for path, info := range found {
		f := t.files[path]
		if f == nil || force[path] || f.held() || t.now.Sub(info.ModTime()) < racy || !sameFile(f.info, info) {
			changed[path] = info
		}
	}
	t.count()
	if !t.readSome(ctx, changed) {
		t.all = true
		return // what was not read looks like what is gone
	}
	for path := range t.files {
		if found[path] == nil && !below(path, trouble) && (complete || !exists(path)) {
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

// below reports whether a path, or a directory above it, is in a set.
func below(path string, dirs map[string]string) bool {
	for len(dirs) > 0 {
		if _, ok := dirs[path]; ok {
			return true
		}
		parent := filepath.Dir(path)
		if parent == path {
			break
		}
		path = parent
	}
	return false
}

// look brings one file up to date. Info and err are what Stat said.
func (t *tree) look(ctx context.Context, path string, info fs.FileInfo, err error, force bool) {
	f := t.files[path]
	if errors.Is(err, fs.ErrNotExist) {
		t.take(ctx, path, content{err: err})
		return
	}
	if err == nil && f != nil && !force && !f.held() && sameFile(f.info, info) {
		return
	}
	if err == nil && !info.Mode().IsRegular() {
		return
	}
	c := content{err: err}
	if err == nil {
		c = t.read(ctx, t.request(path, info.Size()))
	}
	if c.info == nil {
		c.info = info
	}
	t.take(ctx, path, c)
}

// take brings one file up to date with what was read of it.
func (t *tree) take(ctx context.Context, path string, c content) {
	if ctx.Err() != nil {
		return // it may not be complete
	}
	delete(t.backlog, path)
	delete(t.reading, path) // what is read aside is older
	f := t.files[path]
	if errors.Is(c.err, fs.ErrNotExist) {
		if f != nil && !t.hold(f) {
			t.drop(f)
		}
		return
	}
	if f == nil {
		f = &file{path: path, durable: t.good.dir != "", objects: t.good.load(path)}
		t.files[path] = f
		t.changed[f] = true
	}
	if c.err == nil && c.empty && t.hold(f) {
		return
	}
	if f.info = c.info; errors.Is(c.err, errStoreFull) {
		f.info = nil // there may be room later
	}
	if f.update(c) {
		t.good.save(f)
		t.changed[f] = true
	}
}

// drop forgets a file that is gone.
func (t *tree) drop(f *file) {
	delete(t.files, f.path)
	t.used.Add(-f.charge)
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
