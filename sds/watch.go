// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package sds

import (
	"fmt"
	"path/filepath"
	"slices"

	"github.com/fsnotify/fsnotify"
	"github.com/outrigger-mesh/outrigger/internal/filewatch"
)

// watch maps events to groups. Files.Run owns it.
type watch struct {
	open   func() (*fsnotify.Watcher, error)
	fs     *fsnotify.Watcher // nil until there is something to watch
	points map[*group][]string
	dirs   map[string]bool // directories that are watched
}

func newWatch(open func() (*fsnotify.Watcher, error)) *watch {
	return &watch{open: open, points: map[*group][]string{}, dirs: map[string]bool{}}
}

func (w *watch) close() {
	if w.fs != nil {
		_ = w.fs.Close() // nothing is left to be done with it
	}
}

func (w *watch) events() <-chan fsnotify.Event {
	if w.fs == nil {
		return nil
	}
	return w.fs.Events
}

func (w *watch) errors() <-chan error {
	if w.fs == nil {
		return nil
	}
	return w.fs.Errors
}

// set watches the files of a group and the links on their paths. It is called before the
// files are read, so that no change in between is missed.
func (w *watch) set(g *group) (err error) {
	if w.fs == nil {
		if w.fs, err = w.open(); err != nil {
			w.fs = nil
			return fmt.Errorf("watching files: %w; they are polled every %s instead", err, pollInterval)
		}
	}
	var points []string
	for _, p := range g.paths {
		points = append(points, filewatch.Points(p)...)
	}
	w.points[g] = points
	for _, p := range points {
		dir := filepath.Dir(p)
		// A watched directory is added again: it may have been replaced by another
		// one with the same name.
		if failed := w.fs.Add(dir); failed != nil {
			delete(w.dirs, dir)
			err = fmt.Errorf("watching files in %s: %w; they are polled every %s instead", dir, failed, pollInterval)
			continue
		}
		w.dirs[dir] = true
	}
	w.prune()
	return err
}

func (w *watch) remove(g *group) {
	delete(w.points, g)
	w.prune()
}

// prune stops watching directories that no group needs.
func (w *watch) prune() {
	needed := map[string]bool{}
	for _, points := range w.points {
		for _, p := range points {
			needed[filepath.Dir(p)] = true
		}
	}
	for dir := range w.dirs {
		if !needed[dir] {
			delete(w.dirs, dir)
			_ = w.fs.Remove(dir) // it may be gone, and its watch with it
		}
	}
}

// affected returns the groups that an event concerns.
func (w *watch) affected(event fsnotify.Event) []*group {
	if w.dirs[event.Name] && event.Has(fsnotify.Remove|fsnotify.Rename) {
		_ = w.fs.Remove(event.Name) // it may be gone, and its watch with it
	}
	var groups []*group
	for g, points := range w.points {
		if slices.ContainsFunc(points, func(p string) bool { return p == event.Name || filepath.Dir(p) == event.Name }) {
			groups = append(groups, g)
		}
	}
	return groups
}
