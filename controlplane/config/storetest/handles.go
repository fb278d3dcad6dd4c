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

// handleCases run on two stores of one backing.
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

// testTwoHandles wants that what one writes the other sees.
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
		t.Errorf("the other handle shows the status %v", got.Status)
	}
	if err := b.Delete(t.Context(), first.Key, version); err != nil {
		t.Fatal(err)
	}
	a.gone(first.Key)
	a.heard(first.Key, "")
	third := a.create(workload("shop", "a", "10.0.0.3"))
	b.heard(first.Key, third.ResourceVersion)
}

// testTwoHandlesRace writes the same version of an object, and creates the same
// object, by both handles at once: one of them wins each time.
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
					t.Errorf("%s: %v", what, err)
				}
			})
			if wins.Load() != 1 {
				t.Fatalf("%s by two handles at once: %d of them succeeded", what, wins.Load())
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

// testRestart wants that a store which is opened later shows what was written.
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
		t.Errorf("the new handle shows %+v, the old one %+v", got, shown)
	}
	if got := b.Get(route.Key); got == nil || got.ResourceVersion != route.ResourceVersion || !model.SameSpec(got.Spec, route.Spec) {
		t.Errorf("the new handle shows %+v, the old one %+v", got, route)
	}
	if p := b.wrong(); len(p) > 0 {
		t.Errorf("problems: %v", p)
	}
}
