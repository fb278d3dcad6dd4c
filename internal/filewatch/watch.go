// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package filewatch

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/fsnotify/fsnotify"
)

// maxLinks is the maximum number of links in a path, the same as the kernel's.
const maxLinks = 40

// Watch reports changes of the files that its paths resolve to, through any links. If the system
// does not support watching, it reports nothing; callers should poll at long intervals in any case.
// The zero Watch watches nothing.
type Watch struct {
	fs     *fsnotify.Watcher // nil if watching is not supported
	paths  []string
	points map[string]bool // names whose changes are relevant
	dirs   map[string]bool // the directories of points
}

// New returns a Watch for some paths. It watches nothing until [Watch.Aim] is called. If New
// returns an error, the Watch can be used but never reports events.
func New(paths ...string) (*Watch, error) {
	w := &Watch{paths: paths}
	fs, err := fsnotify.NewWatcher()
	if err != nil {
		return w, err
	}
	w.fs = fs
	return w, nil
}

// Aim resolves the paths again and updates what is watched.
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
			_ = w.fs.Remove(dir) // if the directory is gone, so is its watch
		}
	}
	for dir := range w.dirs {
		_ = w.fs.Add(dir) // on failure, the caller's polling detects changes later
	}
}

// Concerns reports whether an event may affect one of the paths.
func (w *Watch) Concerns(e fsnotify.Event) bool { return w.points[e.Name] || w.dirs[e.Name] }

// Events returns the channel of events, or nil if watching is not supported.
func (w *Watch) Events() <-chan fsnotify.Event {
	if w.fs == nil {
		return nil
	}
	return w.fs.Events
}

// Errors returns the channel of errors. After an error, events may have been lost.
func (w *Watch) Errors() <-chan error {
	if w.fs == nil {
		return nil
	}
	return w.fs.Errors
}

// Close stops the watch.
func (w *Watch) Close() {
	if w.fs != nil {
		_ = w.fs.Close() // there is nothing to do about an error
	}
}

// Points returns the names whose changes can change what a path resolves to: the file and every
// link on the way to it. Kubernetes replaces a link in the middle. If a component is missing, it
// returns the first missing name.
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
		at := filepath.Join(dir, name) // ".." can be resolved lexically: dir has no links
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
