// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package storetest

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// testReadOnlyResults modifies objects that the store shares, which the guard must detect.
func testReadOnlyResults(t *testing.T, s *suite) {
	l := s.start(t)
	for _, name := range []string{"a", "b", "c", "d"} {
		l.create(workload("shop", name, "10.0.0.1"))
	}
	for what, write := range map[string]func(store config.Store){
		"spec":        func(s config.Store) { shared(s, "a").Spec.(*networkingv1alpha3.WorkloadEntry).Weight++ },
		"labels":      func(s config.Store) { shared(s, "b").Labels = map[string]string{"x": "y"} },
		"version":     func(s config.Store) { shared(s, "c").ResourceVersion += "x" },
		"listed spec": func(s config.Store) { s.List(model.WorkloadEntry, "shop")[3].Spec = nil },
		"list": func(s config.Store) {
			list := s.List(model.WorkloadEntry, "")
			list[0], list[1] = list[1], list[0]
		},
	} {
		// A copy of the store's results, so that the other guard does not detect these writes.
		watched := newGuard(&frozen{Store: l.raw})
		_ = watched.List(model.WorkloadEntry, "")
		if err := watched.Verify(); err != nil {
			t.Fatalf("Verify() without a write = %v, want nil", err)
		}
		write(watched)
		if err := watched.Verify(); err == nil || !strings.Contains(err.Error(), "Clone") {
			t.Errorf("Verify() after a write to %s = %v, want an error", what, err)
		}
	}
}

func shared(s config.Store, name string) *model.Config {
	return s.Get(key(model.WorkloadEntry, "shop", name))
}

// frozen shares copies of the objects that a store had at the first call.
type frozen struct {
	config.Store
	once sync.Once
	list []*model.Config
}

func (f *frozen) List(kind model.Kind, _ string) []*model.Config {
	f.once.Do(func() {
		for _, c := range f.Store.List(kind, "") {
			f.list = append(f.list, c.Clone())
		}
	})
	return f.list
}

func (f *frozen) Get(k model.Key) *model.Config {
	for _, c := range f.List(k.Kind, "") {
		if c.Key == k {
			return c
		}
	}
	return nil
}

func testEvents(t *testing.T, s *suite) {
	l := s.prepare(t)
	var mu sync.Mutex
	var order []string
	for i := range 3 {
		l.RegisterEventHandler(func(events []config.Event) {
			mu.Lock()
			defer mu.Unlock()
			for _, e := range events {
				order = append(order, fmt.Sprintf("%d %s %s", i, e.Type, e.Current().Name))
			}
		})
	}
	l.run()
	wantOrder := func(event string) {
		t.Helper()
		want := []string{"0 " + event, "1 " + event, "2 " + event}
		l.until("all handlers received "+event, func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(order) >= len(want)
		})
		mu.Lock()
		defer mu.Unlock()
		if !slices.Equal(order, want) {
			t.Errorf("the handlers were called in the order %v, want %v", order, want)
		}
		order = nil
	}
	first := l.create(workload("shop", "a", "10.0.0.1"))
	wantOrder("add a")
	second := l.update(readdress(first, "10.0.0.2"))
	wantOrder("update a")
	said := second.Clone()
	said.Status = istioStatus("one")
	if _, err := l.UpdateStatus(t.Context(), said); err != nil {
		t.Fatal(err)
	}
	wantOrder("update a")
	if err := l.Delete(t.Context(), first.Key, ""); err != nil {
		t.Fatal(err)
	}
	wantOrder("delete a")
	l.create(workload("shop", "a", "10.0.0.3"))
	wantOrder("add a")

	l.follow.mu.Lock()
	defer l.follow.mu.Unlock()
	e := l.follow.events
	if len(e) != 5 || address(e[1].Old) != "10.0.0.1" || address(e[1].New) != "10.0.0.2" || reason(e[2].New) != "one" ||
		reason(e[3].Old) != "one" || e[3].New != nil {
		t.Errorf("events: got %v", e)
	}
}

func testEventsByKind(t *testing.T, s *suite) {
	l := s.prepare(t)
	var mu sync.Mutex
	heard := map[string]int{}
	listen := func(name string, kinds ...model.Kind) {
		l.RegisterEventHandler(func(events []config.Event) {
			mu.Lock()
			defer mu.Unlock()
			for _, e := range events {
				heard[name+" "+string(e.Current().Kind)]++
			}
		}, kinds...)
	}
	listen("all")
	listen("workloads", model.WorkloadEntry)
	listen("two", model.GatewayClass, model.KubernetesGateway)
	listen("none", model.VirtualService)
	l.run()
	for _, c := range []*model.Config{
		workload("shop", "a", "10.0.0.1"), gatewayClass("a"), istioGateway("shop", "a"), kubernetesGateway("shop", "a"),
	} {
		l.heard(c.Key, l.create(c).ResourceVersion)
	}
	// The follower is called first, so the others may not have handled the last event yet.
	want := map[string]int{
		"all WorkloadEntry": 1, "all GatewayClass": 1, "all Gateway": 1, "all KubernetesGateway": 1,
		"workloads WorkloadEntry": 1, "two GatewayClass": 1, "two KubernetesGateway": 1,
	}
	l.until("each handler received the events of its kinds once", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return fmt.Sprint(heard) == fmt.Sprint(want)
	})
}

// testFirstLoad writes before Run. These objects belong to the first load, and the store may be
// synced only after the handlers have received them.
func testFirstLoad(t *testing.T, s *suite) {
	l := s.prepare(t)
	if l.HasStarted() || l.HasSynced() {
		t.Error("HasStarted() or HasSynced() = true before Run")
	}
	const objects = 20
	for i := range objects {
		if _, err := l.Create(t.Context(), workload("shop", fmt.Sprintf("w%d", i), "10.0.0.1")); err != nil {
			t.Fatal(err)
		}
	}
	if events, _ := l.follow.count(); events > 0 {
		t.Errorf("the handlers received %d events before Run, want none", events)
	}
	hold, early := make(chan struct{}), make(chan bool, 1000)
	l.RegisterEventHandler(func([]config.Event) {
		<-hold
		early <- l.HasSynced()
	})
	go func() {
		l.until("the first handler was called", func() bool { events, _ := l.follow.count(); return events > 0 })
		if l.HasSynced() {
			t.Error("HasSynced() = true before the handlers returned")
		}
		close(hold)
	}()
	l.run() // waits until the store has synced
	if !l.HasStarted() {
		t.Error("HasStarted() = false while the store runs")
	}
	<-l.Synced()
	if <-early {
		t.Error("HasSynced() = true when a handler was called for the first time")
	}
	if events, _ := l.follow.count(); events != objects {
		t.Errorf("the handlers had received %d objects when the store was synced, want %d", events, objects)
	}
	if n := len(l.List(model.WorkloadEntry, "")); n != objects {
		t.Errorf("the list contains %d objects, want %d", n, objects)
	}
}

// testFollowsManyWrites changes 20 objects concurrently. The follower replays the events and
// compares each with what the store shows.
func testFollowsManyWrites(t *testing.T, s *suite) {
	const writers, rounds = 20, 10
	l := s.start(t)
	last := make([]string, writers)
	together(writers, func(w int) {
		c := counted("shop", fmt.Sprintf("w%d", w))
		version, err := l.Create(t.Context(), c)
		for i := 0; i < rounds && err == nil; i++ {
			c.Annotations[counter] = fmt.Sprint(i + 1)
			version, err = l.Update(t.Context(), c)
			if w%4 == 0 && i == rounds/2 && err == nil {
				if err = l.Delete(t.Context(), c.Key, version); err == nil {
					c.Annotations["life"] = "second"
					version, err = l.Create(t.Context(), c)
				}
			}
		}
		if err != nil {
			t.Errorf("writer %d: %v", w, err)
		}
		last[w] = version
	})
	for w, version := range last {
		l.heard(key(model.WorkloadEntry, "shop", fmt.Sprintf("w%d", w)), version)
	}
	events, calls := l.follow.count()
	t.Logf("%d writes came as %d events in %d calls", writers*(rounds+1)+writers/4*2, events, calls)
}

func testEmptyStore(t *testing.T, s *suite) {
	l := s.start(t)
	if events, _ := l.follow.count(); events > 0 {
		t.Errorf("%d events of an empty store, want none", events)
	}
	schemas := l.Schemas()
	if len(schemas) == 0 || l.Name() == "" {
		t.Fatalf("%q serves no kinds", l.Name())
	}
	for _, schema := range schemas {
		if list := l.List(schema.Kind, ""); len(list) > 0 {
			t.Errorf("an empty store contains %v", list)
		}
	}
	if p := l.wrong(); len(p) > 0 {
		t.Errorf("problems of an empty store: got %v, want none", p)
	}
}
