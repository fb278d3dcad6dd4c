// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package storetest

import (
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// handleCases run on two stores with the same backing.
var handleCases = []testCase{
	{"TwoHandles", testTwoHandles},
	{"TwoHandlesRace", testTwoHandlesRace},
	{"TwoHandlesWriters", testTwoHandlesWriters},
	{"Restart", testRestart},
}

func (s *suite) pair(t *testing.T) (a, b *live) {
	t.Helper()
	a = s.prepare(t)
	b = s.guard(t, s.opts.Reopen(t, a.raw))
	a.run()
	b.run()
	return a, b
}

// testTwoHandles checks that each handle shows what the other one writes.
func testTwoHandles(t *testing.T, s *suite) {
	a, b := s.pair(t)
	first := a.create(workload("shop", "a", "10.0.0.1"))
	b.heard(first.Key, first.ResourceVersion)
	second := b.update(readdress(b.shows(first.Key, first.ResourceVersion), "10.0.0.2"))
	a.heard(first.Key, second.ResourceVersion)
	said := second.Clone()
	said.Status = istioStatus("one")
	version, err := a.UpdateStatus(t.Context(), said)
	if err != nil {
		t.Fatal(err)
	}
	if got := b.shows(first.Key, version); reason(got) != "one" {
		t.Errorf("status in the other handle: got %v", got.Status)
	}
	if err := b.Delete(t.Context(), first.Key, version); err != nil {
		t.Fatal(err)
	}
	a.gone(first.Key)
	a.heard(first.Key, "")
	third := a.create(workload("shop", "a", "10.0.0.3"))
	b.heard(first.Key, third.ResourceVersion)
}

// testTwoHandlesRace writes the same version of an object, and creates the same object, through
// both handles at once. Exactly one of them must succeed each time.
func testTwoHandlesRace(t *testing.T, s *suite) {
	a, b := s.pair(t)
	both := []*live{a, b}
	for round := range 10 {
		k := key(model.WorkloadEntry, "shop", fmt.Sprintf("w%d", round))
		race := func(what string, lose error, write func(l *live, address string) (string, error)) string {
			var won atomic.Value
			var wins atomic.Int32
			together(len(both), func(i int) {
				version, err := write(both[i], fmt.Sprintf("10.%d.0.%d", i+1, round))
				switch {
				case err == nil:
					wins.Add(1)
					won.Store(version)
				case !errors.Is(err, lose):
					t.Errorf("%s: got error %v, want nil or %v", what, err, lose)
				}
			})
			if wins.Load() != 1 {
				t.Fatalf("%s through two handles at once: %d succeeded, want 1", what, wins.Load())
			}
			return won.Load().(string)
		}
		version := race("create", config.ErrExists, func(l *live, address string) (string, error) {
			return l.Create(t.Context(), workload(k.Namespace, k.Name, address))
		})
		a.shows(k, version)
		b.shows(k, version)
		version = race("update", config.ErrConflict, func(l *live, address string) (string, error) {
			next := workload(k.Namespace, k.Name, "1"+address)
			next.ResourceVersion = version
			return l.Update(t.Context(), next)
		})
		a.heard(k, version)
		b.heard(k, version)
	}
}

func testTwoHandlesWriters(t *testing.T, s *suite) {
	const writers = 20
	a, b := s.pair(t)
	first := a.create(counted("shop", "a"))
	b.shows(first.Key, first.ResourceVersion)
	together(2*writers, func(i int) {
		if _, err := []*live{a, b}[i%2].Patch(t.Context(), first.Key, count); err != nil {
			t.Errorf("writer %d: %v", i, err)
		}
	})
	for _, l := range []*live{a, b} {
		l.until("all writers are counted", func() bool {
			return l.Get(first.Key).Annotations[counter] == strconv.Itoa(2*writers)
		})
	}
}

// testRestart checks that a store opened later shows what was written before.
func testRestart(t *testing.T, s *suite) {
	a := s.start(t)
	c := workload("shop", "a", "10.0.0.1")
	c.Labels = map[string]string{"app": "a"}
	first := a.create(c)
	said := first.Clone()
	said.Status = istioStatus("one")
	version, err := a.UpdateStatus(t.Context(), said)
	if err != nil {
		t.Fatal(err)
	}
	shown := a.shows(c.Key, version)
	route := a.create(httpRoute("shop", "a", "shop.example"))
	b := s.guard(t, s.opts.Reopen(t, a.raw))
	b.run()
	got := b.Get(c.Key)
	if got == nil || got.ResourceVersion != version || !config.SameContent(got, shown) || reason(got) != "one" ||
		!got.Created.Equal(shown.Created) || got.UID != shown.UID || got.Generation != shown.Generation {
		t.Errorf("got %+v in the new handle, %+v in the old one", got, shown)
	}
	if got := b.Get(route.Key); got == nil || got.ResourceVersion != route.ResourceVersion || !model.SameSpec(got.Spec, route.Spec) {
		t.Errorf("got %+v in the new handle, %+v in the old one", got, route)
	}
	if p := b.wrong(); len(p) > 0 {
		t.Errorf("problems: got %v, want none", p)
	}
}
