// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package config_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/config/file"
	"github.com/outrigger-mesh/outrigger/controlplane/config/memory"
	"github.com/outrigger-mesh/outrigger/controlplane/config/storetest"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// openDir opens a file store.
func openDir(t *testing.T, dir string) config.Store {
	t.Helper()
	s, err := file.New(file.Config{Dir: dir, State: dir + "-state", Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestAggregateStore(t *testing.T) {
	t.Parallel()
	t.Run("WriterLast", func(t *testing.T) {
		t.Parallel()
		storetest.Run(t, func(t *testing.T) config.Store {
			writer := memory.New("memory://writer")
			return config.NewAggregate(writer, openDir(t, t.TempDir()), memory.New("memory://"), writer)
		}, storetest.Options{})
	})
	t.Run("WriterFirst", func(t *testing.T) {
		t.Parallel()
		var dirs sync.Map
		aggregate := func(t *testing.T, dir string) config.Store {
			writer := openDir(t, dir)
			a := config.NewAggregate(writer, writer, memory.New("memory://"))
			dirs.Store(config.Store(a), dir)
			return a
		}
		storetest.Run(t, func(t *testing.T) config.Store { return aggregate(t, t.TempDir()) }, storetest.Options{
			Reopen: func(t *testing.T, s config.Store) config.Store {
				dir, _ := dirs.Load(s)
				return aggregate(t, dir.(string))
			},
		})
	})
	t.Run("ReadOnly", func(t *testing.T) {
		t.Parallel()
		var sources sync.Map
		storetest.Run(t, func(*testing.T) config.Store {
			a, b := memory.New("memory://a"), memory.New("memory://b")
			s := config.NewAggregate(nil, a, b)
			sources.Store(config.Store(s), [2]*memory.Store{a, b})
			return s
		}, storetest.Options{Fill: func(t *testing.T, s config.Store, objects ...*model.Config) {
			of, _ := sources.Load(s)
			fill(t, of.([2]*memory.Store), objects)
		}})
	})
}

// fill makes the given objects the entire content of two stores. Each object is in one store;
// TestAggregateHides covers objects that are in both.
func fill(t *testing.T, stores [2]*memory.Store, objects []*model.Config) {
	t.Helper()
	there := map[model.Key]*memory.Store{}
	for _, c := range objects {
		m := stores[(len(c.Kind)+int(c.Name[len(c.Name)-1]))%2]
		there[c.Key] = m
		_, err := m.Create(t.Context(), c)
		if errors.Is(err, config.ErrExists) {
			_, err = m.Update(t.Context(), c)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range stores {
		for _, schema := range m.Schemas() {
			for _, c := range m.List(schema.Kind, "") {
				if there[c.Key] == m {
					continue
				}
				if err := m.Delete(t.Context(), c.Key, ""); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

func entry(name, address string) *model.Config {
	return &model.Config{
		Key:  model.Key{Kind: model.WorkloadEntry, Namespace: "shop", Name: name},
		Spec: &networkingv1alpha3.WorkloadEntry{Address: address},
	}
}

// running runs a store until the test ends.
func running(t *testing.T, s config.Store) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
	})
}

// TestAggregateHides checks that an object of the first store hides those of the others, and that
// only effective changes are reported.
func TestAggregateHides(t *testing.T) {
	t.Parallel()
	first, second := memory.New("memory://first"), memory.New("memory://second")
	a := config.NewAggregate(second, first, second)
	told := make(chan string, 100)
	a.RegisterEventHandler(func(events []config.Event) {
		for _, e := range events {
			address := func(c *model.Config) string {
				if c == nil {
					return "-"
				}
				return c.Spec.(*networkingv1alpha3.WorkloadEntry).GetAddress()
			}
			told <- fmt.Sprintf("%s %s %s %s", e.Type, e.Current().Name, address(e.Old), address(e.New))
		}
	})
	var hidden []string
	a.SetHiddenHandler(func(p model.Problem) { hidden = append(hidden, p.String()) })
	running(t, a)
	<-a.Synced()
	ctx := t.Context()
	var got []string
	step := func(events int, write func() error) {
		t.Helper()
		if err := write(); err != nil {
			t.Fatal(err)
		}
		for range events {
			got = append(got, <-told)
		}
	}
	create := func(m *memory.Store, name, address string) func() error {
		return func() error { _, err := m.Create(ctx, entry(name, address)); return err }
	}
	key := entry("a", "").Key
	step(1, create(second, "a", "10.0.0.2"))
	step(1, create(first, "a", "10.0.0.1"))
	step(0, func() error { _, err := second.Update(ctx, entry("a", "10.0.0.3")); return err })
	step(1, create(second, "z", "10.0.0.9")) // the hidden update was handled before this one
	if p := a.Problems(); len(p) != 1 || !strings.Contains(p[0].String(), "memory://second: WorkloadEntry/shop/a: the same object is in memory://first") {
		t.Errorf("problems: got %v, want that memory://second has the same object", p)
	}
	if _, err := a.Update(ctx, entry("a", "10.0.0.4")); !errors.Is(err, config.ErrReadOnly) || !strings.Contains(err.Error(), "memory://first") {
		t.Errorf("Update of an object that the writable store does not have = %v, want ErrReadOnly", err)
	}
	if _, err := a.Create(ctx, entry("a", "10.0.0.4")); !errors.Is(err, config.ErrExists) {
		t.Errorf("Create of an object that another store has = %v, want ErrExists", err)
	}
	step(1, func() error { return first.Delete(ctx, key, "") })
	step(1, func() error { return a.Delete(ctx, key, "") })
	// The object of the first store gives way, if it is replaceable.
	step(1, func() error {
		c := entry("r", "10.0.1.1")
		c.Annotations = map[string]string{config.Replaceable: "true"}
		_, err := first.Create(ctx, c)
		return err
	})
	step(1, create(second, "r", "10.0.1.2"))
	if p := a.Problems(); len(p) != 1 || !p[0].Warning || !strings.Contains(p[0].String(), "memory://first: WorkloadEntry/shop/r: memory://second replaces it") {
		t.Errorf("problems: got %v, want that memory://second replaces an object", p)
	}
	for _, c := range append(a.List(model.WorkloadEntry, "shop"), a.Get(entry("r", "").Key)) {
		if c.Name == "r" && c.Spec.(*networkingv1alpha3.WorkloadEntry).GetAddress() != "10.0.1.2" {
			t.Errorf("the effective object is %v", c.Spec)
		}
	}
	step(1, func() error { return second.Delete(ctx, entry("r", "").Key, "") })
	wantHidden := []string{
		"memory://second: WorkloadEntry/shop/a: the same object is in memory://first, which comes first: remove one of them",
		"memory://first: WorkloadEntry/shop/r: memory://second replaces it",
	}
	if diff := cmp.Diff(wantHidden, hidden); diff != "" {
		t.Errorf("hidden objects (-want +got):\n%s", diff)
	}
	want := []string{
		"add a - 10.0.0.2", "update a 10.0.0.2 10.0.0.1", "add z - 10.0.0.9", "update a 10.0.0.1 10.0.0.3", "delete a 10.0.0.3 -",
		"add r - 10.0.1.1", "update r 10.0.1.1 10.0.1.2", "update r 10.0.1.2 10.0.1.1",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// failing is a store that loses its source after a while.
type failing struct {
	*memory.Store
	fail chan error
}

func (f *failing) Run(ctx context.Context) error {
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- f.Store.Run(inner) }()
	select {
	case err := <-f.fail:
		cancel()
		return errors.Join(err, <-done)
	case err := <-done:
		return err
	}
}

func TestAggregateSurvivesLossOfStore(t *testing.T) {
	t.Parallel()
	good := memory.New("memory://good")
	bad := &failing{memory.New("memory://bad"), make(chan error, 1)}
	a := config.NewAggregate(good, good, bad)
	errs, told := make(chan error, 10), make(chan []config.Event, 10)
	a.SetWatchErrorHandler(func(err error) { errs <- err })
	a.RegisterEventHandler(func(e []config.Event) { told <- e })
	if _, err := bad.Create(t.Context(), entry("b", "10.0.0.2")); err != nil {
		t.Fatal(err)
	}
	running(t, a)
	<-a.Synced()
	<-told
	lost := errors.New("the connection is lost")
	bad.fail <- lost
	if err := <-errs; !errors.Is(err, lost) || !errors.Is(err, config.ErrEnded) || !strings.Contains(err.Error(), "memory://bad") {
		t.Errorf("the watch error handler got %v, want %v and ErrEnded", err, lost)
	}
	if p := a.Problems(); len(p) != 1 || !strings.Contains(p[0].String(), "the connection is lost; its last objects stay in force") {
		t.Errorf("problems: got %v, want the loss of memory://bad", p)
	}
	if a.Get(entry("b", "").Key) == nil {
		t.Error("the objects of a store were removed when it failed")
	}
	if _, err := a.Create(t.Context(), entry("a", "10.0.0.1")); err != nil {
		t.Fatal(err)
	}
	if e := <-told; len(e) != 1 || e[0].New.Name != "a" {
		t.Errorf("events of the other store: got %v, want one for a", e)
	}
}

// TestAggregateWaits checks that a store that cannot be reached keeps the aggregate waiting but
// does not block other stores. When all stores have ended, Run returns the reasons.
func TestAggregateWaits(t *testing.T) {
	t.Parallel()
	good, bad := &failing{memory.New("memory://good"), make(chan error, 1)}, &unreachable{memory.New("memory://bad"), make(chan struct{})}
	a := config.NewAggregate(nil, bad, good)
	told := make(chan []config.Event, 10)
	a.RegisterEventHandler(func(e []config.Event) { told <- e })
	if diff := cmp.Diff([]string{"memory://bad", "memory://good"}, a.Waiting()); diff != "" {
		t.Errorf("Waiting() before Run (-want +got):\n%s", diff)
	}
	if _, err := good.Create(t.Context(), entry("a", "10.0.0.1")); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- a.Run(t.Context()) }()
	<-told
	<-good.Synced()
	if diff := cmp.Diff([]string{"memory://bad"}, a.Waiting()); diff != "" || a.HasSynced() {
		t.Errorf("HasSynced() = %v, Waiting() (-want +got):\n%s", a.HasSynced(), diff)
	}
	close(bad.gone)
	good.fail <- errors.New("cut")
	select {
	case err := <-done:
		if err == nil || !strings.Contains(err.Error(), "memory://bad: no route") || !strings.Contains(err.Error(), "memory://good: cut") {
			t.Errorf("Run() = %v, want the errors of both stores", err)
		}
	case <-time.After(2 * time.Minute):
		t.Fatal("Run did not return after its stores had ended")
	}
}

// unreachable is a store that never loads.
type unreachable struct {
	*memory.Store
	gone chan struct{}
}

func (u *unreachable) Run(ctx context.Context) error {
	select {
	case <-u.gone:
		return errors.New("no route")
	case <-ctx.Done():
		return nil
	}
}
