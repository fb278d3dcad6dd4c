// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// live is a store under test, wrapped by a guard and observed by a follower.
type live struct {
	*guard
	t      *testing.T
	raw    config.Store
	wait   time.Duration
	follow *follower
}

// prepare opens a store without running it.
func (s *suite) prepare(t *testing.T) *live {
	t.Helper()
	return s.guard(t, s.open(t))
}

// guard wraps a store that is not running yet.
func (s *suite) guard(t *testing.T, raw config.Store) *live {
	t.Helper()
	l := &live{guard: newGuard(raw), t: t, raw: raw, wait: s.opts.Wait}
	l.follow = newFollower(l)
	l.RegisterEventHandler(l.follow.hear)
	return l
}

// run runs the store until the test ends, and then checks that no shared object was modified.
func (l *live) run() {
	l.t.Helper()
	ctx, cancel := context.WithCancel(l.t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	l.t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil && !errors.Is(err, context.Canceled) {
				l.t.Errorf("Run() = %v, want nil or context.Canceled", err)
			}
		case <-time.After(l.wait):
			l.t.Error("Run did not return after its context was canceled")
		}
		if err := l.Verify(); err != nil {
			l.t.Error(err)
		}
		l.follow.check()
	})
	l.until("the store has synced", l.HasSynced)
}

// start opens a store and runs it.
func (s *suite) start(t *testing.T) *live {
	t.Helper()
	l := s.prepare(t)
	l.run()
	return l
}

// until waits for a condition, because a store need not show writes immediately.
func (l *live) until(what string, ok func() bool) {
	l.t.Helper()
	for deadline := time.Now().Add(l.wait); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			l.t.Fatalf("%s: condition not met in time: %s; problems: %v", l.Name(), what, l.Problems())
		}
	}
}

// shows waits until the store shows a version of an object, and returns the object.
func (l *live) shows(key model.Key, version string) *model.Config {
	l.t.Helper()
	var c *model.Config
	l.until(fmt.Sprintf("%s has the resource version %q", key, version), func() bool {
		c = l.Get(key)
		return c != nil && c.ResourceVersion == version
	})
	return c
}

// gone waits until an object does not exist.
func (l *live) gone(key model.Key) {
	l.t.Helper()
	l.until(key.String()+" is gone", func() bool { return l.Get(key) == nil })
}

// create writes an object and returns it as the store then shows it.
func (l *live) create(c *model.Config) *model.Config {
	l.t.Helper()
	version, err := l.Create(l.t.Context(), c)
	if err != nil {
		l.t.Fatalf("Create(%s) = %v", c.Key, err)
	}
	if version == "" {
		l.t.Fatalf("Create(%s) returned no resource version", c.Key)
	}
	return l.shows(c.Key, version)
}

// update writes an object unconditionally and returns it as the store then shows it.
func (l *live) update(c *model.Config) *model.Config {
	l.t.Helper()
	version, err := l.Update(l.t.Context(), c)
	if err != nil {
		l.t.Fatalf("Update(%s) = %v", c.Key, err)
	}
	return l.shows(c.Key, version)
}

// heard waits until the handlers have received the version that the store shows, or the deletion of
// the object.
func (l *live) heard(key model.Key, version string) {
	l.t.Helper()
	l.until(fmt.Sprintf("the handlers heard of %s %q", key, version), func() bool { return l.follow.version(key) == version })
}

// wrong returns the problems that are not warnings. Objects of the suite may be of kinds without
// effect, which cause warnings.
func (l *live) wrong() []model.Problem {
	return slices.DeleteFunc(slices.Clone(l.Problems()), func(p model.Problem) bool { return p.Warning })
}

// want reports an error unless err is target.
func want(t *testing.T, what string, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Errorf("%s: got error %v, want %q", what, err, target)
	}
}

// follower replays the events of a store and finds those that are inconsistent.
type follower struct {
	l *live

	mu     sync.Mutex // guards the fields below
	now    map[model.Key]*model.Config
	passed map[model.Key]map[string]bool
	events []config.Event
	calls  int
	faults []string
}

func newFollower(l *live) *follower {
	return &follower{l: l, now: map[model.Key]*model.Config{}, passed: map[model.Key]map[string]bool{}}
}

func (f *follower) fault(format string, args ...any) {
	f.faults = append(f.faults, fmt.Sprintf(format, args...))
}

// hear is an event handler. The suite never writes the same state of an object twice, because a
// store may assign the same version to it.
func (f *follower) hear(events []config.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	if len(events) == 0 {
		f.fault("a handler was called with no events")
	}
	for _, e := range events {
		f.one(e)
	}
}

func (f *follower) one(e config.Event) {
	f.events = append(f.events, e)
	if (e.Old == nil) != (e.Type == config.Added) || (e.New == nil) != (e.Type == config.Deleted) {
		f.fault("an event of type %q has old: %v, new: %v", e.Type, e.Old != nil, e.New != nil)
		return
	}
	key := e.Current().Key
	before := f.now[key]
	switch {
	case (before == nil) != (e.Old == nil):
		f.fault("%s: event %q while the object exists: %v", key, e.Type, before != nil)
	case before != nil && before.ResourceVersion != e.Old.ResourceVersion:
		f.fault("%s: event %q has old version %q, but the previous event ended with %q", key, e.Type, e.Old.ResourceVersion, before.ResourceVersion)
	case before != nil && e.New != nil && before.ResourceVersion == e.New.ResourceVersion:
		f.fault("%s: event %q does not change the version %q", key, e.Type, before.ResourceVersion)
	}
	if before != nil {
		if f.passed[key] == nil {
			f.passed[key] = map[string]bool{}
		}
		f.passed[key][before.ResourceVersion] = true
	}
	f.now[key] = e.New
	if e.New == nil {
		delete(f.now, key)
	}
	// The store must show the state of the event or a newer one.
	if shown := f.l.raw.Get(key); shown != nil && f.passed[key][shown.ResourceVersion] {
		f.fault("%s: during event %q to version %q, the store shows the earlier version %q", key, e.Type, version(e.New), shown.ResourceVersion)
	}
	if e.New != nil {
		found := false
		for _, c := range f.l.raw.List(key.Kind, key.Namespace) {
			found = found || c.Key == key && !f.passed[key][c.ResourceVersion]
		}
		if !found && f.l.raw.Get(key) != nil {
			f.fault("%s: during event %q, Get returns the object but List does not", key, e.Type)
		}
	}
}

func version(c *model.Config) string {
	if c == nil {
		return ""
	}
	return c.ResourceVersion
}

func (f *follower) version(key model.Key) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.now[key]; c != nil {
		return c.ResourceVersion
	}
	return ""
}

func (f *follower) count() (events, calls int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.events), f.calls
}

func (f *follower) check() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.faults {
		f.l.t.Error(s)
	}
}
