// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package filewatch

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/fsnotify/fsnotify"
)

// maxLinks bounds the links of a path, as the kernel does.
const maxLinks = 40

// Watch reports changes of what some paths lead to, through any links. Where
// nothing can be watched it reports nothing, and its user has to look now and then,
// as it should anyway. The zero Watch watches nothing.
type Watch struct {
	fs     *fsnotify.Watcher // nil if nothing can be watched
	paths  []string
	points map[string]bool // names whose change matters
	dirs   map[string]bool // where they are
}

// New returns a Watch of some paths that watches nothing before [Watch.Aim]. The
// error says why it will never watch anything; the Watch can be used all the same.
func New(paths ...string) (*Watch, error) {
	w := &Watch{paths: paths}
	fs, err := fsnotify.NewWatcher()
	if err != nil {
		return w, err
	}
	w.fs = fs
	return w, nil
}

// Aim follows the paths anew: what they lead to may be elsewhere now.
func (w *Watch) Aim() {
	if w.fs == nil {
		return
	}
	w.points, w.dirs = map[string]bool{}, map[string]bool{}
	for _, path := range w.paths {
		for _, point := range Points(path) {
			w.points[point] = true
			w.dirs[filepath.Dir(point)] = true
		}
	}
	for _, dir := range w.fs.WatchList() {
		if !w.dirs[dir] {
			_ = w.fs.Remove(dir) // or it is gone, and its watch with it
		}
	}
	for dir := range w.dirs {
		_ = w.fs.Add(dir) // without it changes are seen a little later
	}
}

// Concerns reports whether an event may be one of the paths.
func (w *Watch) Concerns(e fsnotify.Event) bool { return w.points[e.Name] || w.dirs[e.Name] }

// Events returns the channel of events; nil if nothing can be watched.
func (w *Watch) Events() <-chan fsnotify.Event {
	if w.fs == nil {
		return nil
	}
	return w.fs.Events
}

// Errors returns the channel of errors; after one, events may be lost.
func (w *Watch) Errors() <-chan error {
	if w.fs == nil {
		return nil
	}
	return w.fs.Errors
}

// Close ends the watch.
func (w *Watch) Close() {
	if w.fs != nil {
		_ = w.fs.Close() // nothing is left to do with it
	}
}

// Points returns the names whose change can change what a path leads to: the
// file, and every link on the way to it, since Kubernetes replaces a link in the
// middle. Where something is missing it is the first missing name.
func Points(path string) (points []string) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil
	}
	dir, rest := "/", strings.Split(path, "/")
	for links := 0; len(rest) > 0 && links <= maxLinks; {
		name := rest[0]
		rest = rest[1:]
		if name == "" || name == "." {
			continue
		}
		at := filepath.Join(dir, name) // ".." goes up: dir has no links
		if target, err := os.Readlink(at); err == nil {
			points = append(points, at)
			links++
			if filepath.IsAbs(target) {
				dir = "/"
			}
			rest = append(strings.Split(target, "/"), rest...)
			continue
		}
		if _, err := os.Lstat(at); err != nil || len(rest) == 0 {
			return append(points, at)
		}
		dir = at
	}
	return points
}
