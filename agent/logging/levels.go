// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package logging

import (
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Levels are the lowest levels of a log by component. They can change while the log is in use.
type Levels struct {
	first   map[string]slog.Level
	current atomic.Pointer[map[string]slog.Level]
	mu      sync.Mutex // held while current changes
}

// newLevels returns the levels of the flags.
func newLevels(first map[string]slog.Level) *Levels {
	l := &Levels{first: first}
	l.current.Store(&first)
	return l
}

// of returns the level of a component.
func (l *Levels) of(component string) slog.Level { return levelOf(*l.current.Load(), component) }

// components returns the components that log something, and the one for all without a level of their own.
func components() []string {
	return []string{"ca", defaultComponent, "dns", "envoy", "healthcheck", "lastgood", "platform", "sdnotify", "sds", "status", "wasm", "xdsproxy"}
}

// change changes levels as the fields of a query say, all of them or none: those of components by name,
// all with the field level, and with reset to those of the flags.
func (l *Levels) change(query url.Values) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	next := maps.Clone(*l.current.Load())
	if query.Has("reset") {
		next = maps.Clone(l.first)
	}
	names := slices.Sorted(maps.Keys(query))
	if i := slices.Index(names, "level"); i > 0 {
		names = slices.Insert(slices.Delete(names, i, i+1), 0, "level") // it replaces all others
	}
	for _, name := range names {
		if name == "reset" {
			continue
		}
		level, ok := levelNames()[query.Get(name)]
		if !ok {
			return fmt.Errorf("%s is %q: the level must be debug, info, warn, error, fatal or none", name, query.Get(name))
		}
		switch component, known := componentOf(name); {
		case name == "level" || component == allComponents:
			next = map[string]slog.Level{defaultComponent: level}
		case known:
			next[component] = level
		default:
			return fmt.Errorf("there is no component %q: GET lists them", name)
		}
	}
	l.current.Store(&next)
	return nil
}

// ServeHTTP prints the levels, and with POST changes them first. Query and answer are those of Envoy's
// /logging, except that reset restores the levels of the flags.
func (l *Levels) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	query := r.URL.Query()
	if r.Method == http.MethodPost {
		if err := l.change(query); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
	} else if len(query) > 0 {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "only POST changes levels", http.StatusMethodNotAllowed)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	for _, component := range components() {
		_, _ = fmt.Fprintf(w, "%s: %s\n", component, nameOf(l.of(component))) // a disconnected peer needs no answer
	}
}

// nameOf returns the name of a level.
func nameOf(level slog.Level) string {
	if level >= levelNone {
		return "none"
	}
	return strings.ToLower(level.String())
}
