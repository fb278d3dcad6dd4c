// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package push

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func key(n int) model.Key {
	return model.Key{Kind: model.ServiceEntry, Namespace: "default", Name: fmt.Sprintf("s%d", n)}
}

// build is one call of Build: its time since the start, and the number of keys.
type build struct {
	at   time.Duration
	keys int
}

// run adds a change to a debouncer (quiet 100 ms, at most 1 s) at each of the given times, and
// returns the builds.
func run(t *testing.T, adds []time.Duration, cost time.Duration) []build {
	t.Helper()
	var builds []build
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		d := NewDebouncer(DebouncerConfig{After: 100 * time.Millisecond, Max: time.Second, Build: func(c model.Change) {
			builds = append(builds, build{time.Since(start), len(c.Keys)})
			time.Sleep(cost) // the build takes this long on the fake clock
		}})
		var wg sync.WaitGroup
		wg.Go(func() { _ = d.Run(ctx) })
		for i, at := range adds {
			time.Sleep(at - time.Since(start))
			d.Add(model.NewChange(key(i)))
			synctest.Wait()
		}
		time.Sleep(5 * time.Second)
		cancel()
		wg.Wait()
	})
	return builds
}

func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }

func TestDebouncer(t *testing.T) {
	t.Parallel()
	burst := make([]time.Duration, 0, 40) // one every 70 ms, so it is never quiet
	for i := range 40 {
		burst = append(burst, ms(1000+70*i))
	}
	for name, tc := range map[string]struct {
		adds []time.Duration
		cost time.Duration
		want []build
	}{
		"single change is built immediately":               {adds: []time.Duration{ms(500)}, want: []build{{ms(500), 1}}},
		"quiet between changes, each is built immediately": {adds: []time.Duration{ms(500), ms(700)}, want: []build{{ms(500), 1}, {ms(700), 1}}},
		"burst is merged after its first change":           {adds: []time.Duration{ms(500), ms(520), ms(560)}, want: []build{{ms(500), 1}, {ms(660), 2}}},
		"changes during a build are merged":                {adds: []time.Duration{ms(500), ms(520), ms(530)}, cost: ms(300), want: []build{{ms(500), 1}, {ms(800), 2}}},
		"endless burst is split early":                     {adds: burst, want: []build{{ms(1000), 1}, {ms(1370), 5}, {ms(1720), 5}, {ms(2070), 5}, {ms(2420), 5}, {ms(2770), 5}, {ms(3120), 5}, {ms(3470), 5}, {ms(3820), 4}}},
		"endless burst is split later if builds are slow":  {adds: burst, cost: ms(200), want: []build{{ms(1000), 1}, {ms(1670), 9}, {ms(2300), 9}, {ms(2930), 9}, {ms(3560), 9}, {ms(3830), 3}}},
		"endless burst is split at the maximum":            {adds: burst, cost: ms(400), want: []build{{ms(1000), 1}, {ms(2070), 15}, {ms(3120), 15}, {ms(3830), 9}}},
		"no changes, no builds":                            {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := run(t, tc.adds, tc.cost)
			if fmt.Sprint(got) != fmt.Sprint(tc.want) {
				t.Errorf("builds:\n got %v\nwant %v", got, tc.want)
			}
		})
	}
}

// TestDebouncerReportsWait checks the reported wait: it starts with the first change of
// a burst, and is zero for a single change.
func TestDebouncerReportsWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var waited []time.Duration
		d := NewDebouncer(DebouncerConfig{
			After: 100 * time.Millisecond, Max: time.Second, Build: func(model.Change) {},
			Waited: func(took time.Duration) { waited = append(waited, took) },
		})
		var wg sync.WaitGroup
		wg.Go(func() { _ = d.Run(ctx) })
		for i, pause := range []time.Duration{ms(500), ms(20), ms(30)} {
			time.Sleep(pause) // on the fake clock
			d.Add(model.NewChange(key(i)))
			synctest.Wait()
		}
		time.Sleep(time.Second)
		cancel()
		wg.Wait()
		if want := []time.Duration{0, ms(130)}; !slices.Equal(waited, want) {
			t.Errorf("waits: got %v, want %v", waited, want)
		}
	})
}

// TestDebouncerHolds checks that a change is held until its build has ended.
func TestDebouncerHolds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		d := NewDebouncer(DebouncerConfig{After: time.Second, Max: time.Minute, Build: func(model.Change) { time.Sleep(time.Hour) }})
		check := func(when string, want bool) {
			t.Helper()
			if got := d.Holds(key(0)); got != want || d.Holds(key(1)) {
				t.Errorf("%s: Holds returns %v and %v, want %v and false", when, got, d.Holds(key(1)), want)
			}
		}
		check("before the change", false)
		d.Add(model.NewChange(key(0)))
		check("added", true)
		var wg sync.WaitGroup
		wg.Go(func() { _ = d.Run(ctx) })
		synctest.Wait()
		check("during the build", true)
		time.Sleep(2 * time.Hour)
		check("after the build", false)
		d.Add(model.Change{All: true})
		if !d.Holds(key(1)) {
			t.Error("a change of everything is not one of the object")
		}
		cancel()
		wg.Wait()
	})
}

func TestDebouncerIgnoresEmptyChange(t *testing.T) {
	t.Parallel()
	d := NewDebouncer(DebouncerConfig{})
	d.Add(model.Change{})
	if len(d.wake) != 0 {
		t.Error("an empty change triggered the debouncer")
	}
}

// TestAwait checks that Await returns immediately while the debouncer waits, also during a burst, and
// otherwise after the build.
func TestAwait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		d := NewDebouncer(DebouncerConfig{After: time.Second, Max: time.Minute, Build: func(model.Change) { time.Sleep(time.Hour) }})
		var wg sync.WaitGroup
		wg.Go(func() { _ = d.Run(ctx) })
		took := func(what string, want time.Duration) {
			t.Helper()
			start := time.Now()
			if d.Await(ctx); time.Since(start) != want {
				t.Errorf("%s: Await took %s, want %s", what, time.Since(start), want)
			}
		}
		took("without a change", 0)
		d.Add(model.NewChange(key(1)))
		synctest.Wait()
		took("during a build", time.Hour)
		d.Add(model.NewChange(key(2)))
		synctest.Wait()
		took("during a burst", 0)
		time.Sleep(2 * time.Second)
		cancel()
		took("after the end", 0)
		wg.Wait()
	})
}
