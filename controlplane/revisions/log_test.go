// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package revisions

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

// store is an in-memory store.
type store struct {
	mu      sync.Mutex
	objects map[model.Key]*model.Config
}

func (s *store) Schemas() []schema.Schema { return schema.All() }

func (s *store) Get(key model.Key) *model.Config {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.objects[key]
}

func (s *store) List(kind model.Kind, _ string) (out []*model.Config) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, c := range s.objects {
		if key.Kind == kind {
			out = append(out, c)
		}
	}
	return out
}

// set stores an object that differs by its host; "" deletes it.
func (s *store) set(name, host string) model.Key {
	key := model.Key{Kind: model.VirtualService, Namespace: "shop", Name: name}
	s.mu.Lock()
	defer s.mu.Unlock()
	if host == "" {
		delete(s.objects, key)
		return key
	}
	s.objects[key] = &model.Config{Key: key, Source: name + ".yaml:1", Spec: &networkingv1alpha3.VirtualService{Hosts: []string{host}}}
	return key
}

// rig is a log in a synctest bubble. Its clock advances only while a test sleeps.
type rig struct {
	t      *testing.T
	store  *store
	source Source
	dir    string
	log    *Log
	stop   func()
}

func newRig(t *testing.T, size int64) *rig {
	r := &rig{t: t, store: &store{objects: map[model.Key]*model.Config{}}, dir: t.TempDir()}
	r.start(size)
	return r
}

// start runs a log, like a control plane at its start.
func (r *rig) start(size int64) {
	if r.source == nil {
		r.source = Objects(r.store)
	}
	r.log = New(Config{Dir: r.dir, FileSize: size, Source: r.source, Logger: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan error, 1)
	go func() { done <- r.log.Run(ctx) }()
	r.stop = func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Errorf("Run = %v, want nil", err)
		}
	}
	r.log.Note(model.Change{All: true}, time.Now())
	r.sleep(time.Minute)
}

// change sets an object, notes the change, and returns a time after it.
func (r *rig) change(name, host string) time.Time {
	r.log.Note(model.NewChange(r.store.set(name, host)), time.Now())
	return r.sleep(time.Minute)
}

func (r *rig) sleep(d time.Duration) time.Time {
	synctest.Wait()
	time.Sleep(d)
	synctest.Wait()
	return time.Now().Add(-time.Second)
}

// lines returns what List returns, as "name change unseen".
func (r *rig) lines(f Filter) (out []string) {
	r.t.Helper()
	h, err := r.log.List(f)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, v := range h.Versions {
		line := v.Name + " " + v.Change
		if v.Unseen {
			line += " unseen"
		}
		out = append(out, line)
	}
	return out
}

// hosts returns the differences between two moments, as "name before after".
func (r *rig) hosts(from, to time.Time) (out []string) {
	r.t.Helper()
	changes, err := r.log.Changes(from, to)
	if err != nil {
		r.t.Fatal(err)
	}
	host := func(v *report.Version) string {
		if v == nil {
			return "-"
		}
		c, err := Object(*v)
		if err != nil {
			r.t.Fatal(err)
		}
		return c.Spec.(*networkingv1alpha3.VirtualService).GetHosts()[0]
	}
	for _, c := range changes {
		out = append(out, c.Name+" "+host(c.Before)+" "+host(c.After))
	}
	return out
}

func expect(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s = %q, want %q", what, got, want)
	}
}

// TestVersions checks that each version is listed and that any two moments can be compared, also
// after a restart and after the files have been replaced.
func TestVersions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 0)
		start := time.Now().Add(-time.Second)
		first := r.change("a", "one")
		r.log.Note(model.NewChange(r.store.set("a", "one")), time.Now()) // another pointer, the same content
		second := r.change("a", "two")
		r.change("b", "one")
		third := r.change("a", "")
		back := r.change("a", "one")
		check := func(when string) {
			t.Helper()
			expect(t, when+": List(a)", r.lines(Filter{Kind: model.VirtualService, Namespace: "shop", Name: "a"}),
				[]string{"a created", "a updated", "a deleted", "a created"})
			expect(t, when+": Changes(start, first)", r.hosts(start, first), []string{"a - one"})
			expect(t, when+": Changes(first, second)", r.hosts(first, second), []string{"a one two"})
			expect(t, when+": Changes(second, third)", r.hosts(second, third), []string{"a two -", "b - one"})
			expect(t, when+": Changes(first, back)", r.hosts(first, back), []string{"b - one"})
		}
		check("at first")
		r.stop()
		r.start(0)
		check("after a restart")
		r.stop()
		r.start(1) // the next change replaces the files
		r.change("c", "one")
		check("after the files were replaced")
		if _, err := os.Stat(filepath.Join(r.dir, previousFile)); err != nil {
			t.Errorf("the files were not replaced: %v", err)
		}
		r.stop()
	})
}

// TestRevisions checks that equal content has an equal revision, by which its object is found.
func TestRevisions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 0)
		for _, host := range []string{"one", "two", "one"} {
			r.change("a", host)
		}
		h, err := r.log.List(Filter{})
		if err != nil || len(h.Versions) != 3 || h.Versions[0].Revision != h.Versions[2].Revision || h.Versions[0].Revision == h.Versions[1].Revision {
			t.Fatalf("List = %+v, %v, want equal revisions of the first and the last version only", h.Versions, err)
		}
		found, err := r.log.List(Filter{Revision: h.Versions[1].Revision[:8]})
		if err != nil || len(found.Versions) != 1 || !strings.Contains(string(found.Versions[0].Object), `"two"`) {
			t.Errorf("List of a revision = %+v, %v, want the second version with its object", found.Versions, err)
		}
		r.stop()
	})
}

// TestUnseen checks that changes made while no control plane runs are listed at the next start. The
// objects of the first start must be marked as found.
func TestUnseen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, store: &store{objects: map[model.Key]*model.Config{}}, dir: t.TempDir()}
		r.store.set("stays", "one")
		r.store.set("changes", "one")
		r.store.set("goes", "one")
		r.start(0)
		r.stop()
		r.store.set("changes", "two")
		r.store.set("goes", "")
		r.store.set("new", "one")
		r.start(0)
		expect(t, "List", r.lines(Filter{}), []string{
			"changes found", "goes found", "stays found", "changes updated unseen", "goes deleted unseen", "new created unseen",
		})
		r.change("stays", "two")
		expect(t, "List(stays)", r.lines(Filter{Name: "stays"}), []string{"stays found", "stays updated"})
		r.stop()
	})
}

// TestBounded checks that an object that changes continuously does not displace others, that its
// last version is recorded, and that the size of the files is bounded.
func TestBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 64 << 10
		r := newRig(t, size)
		long, start := strings.Repeat("x", 1000), time.Now().Add(-time.Second)
		for i := range 1000 {
			r.log.Note(model.NewChange(r.store.set("busy", fmt.Sprint(long, i))), time.Now())
			synctest.Wait()
		}
		at := r.sleep(time.Hour)
		if n := len(r.lines(Filter{Name: "busy"})); n != perObject.Burst+1 {
			t.Errorf("versions of the busy object = %d, want %d", n, perObject.Burst+1)
		}
		expect(t, "Changes", r.hosts(start, at), []string{"busy - " + long + "999"})
		for i := range 300 {
			r.change(fmt.Sprint("a-", i%30), fmt.Sprint(long, i))
		}
		for _, name := range []string{currentFile, previousFile} {
			info, err := os.Stat(filepath.Join(r.dir, name))
			if err != nil || info.Size() > size+32<<10 {
				t.Errorf("%s: got %v, error %v; want at most %d bytes and one change", name, info, err, size)
			}
		}
		if _, err := r.log.Changes(at, time.Now()); err == nil || !strings.Contains(err.Error(), "it begins at") {
			t.Errorf("Changes since a moment before the history: %v, want an error that says when it begins", err)
		}
		r.stop()
	})
}

// TestRegisteredMachines checks that the entries that control planes write for machines are not
// recorded, neither when they come nor when they go.
func TestRegisteredMachines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 0)
		key := model.Key{Kind: model.WorkloadEntry, Namespace: "shop", Name: "machine"}
		r.store.objects[key] = &model.Config{
			Key: key, Annotations: map[string]string{registered: "group"}, Spec: &networkingv1alpha3.WorkloadEntry{Address: "10.0.0.1"},
		}
		r.log.Note(model.NewChange(key), time.Now())
		r.sleep(time.Minute)
		delete(r.store.objects, key)
		r.log.Note(model.NewChange(key), time.Now())
		r.change("a", "one")
		expect(t, "List", r.lines(Filter{}), []string{"a created"})
		r.stop()
	})
}

// TestAskedAtTheStart checks that a question right after a start is answered with all objects, without
// the delay of the start.
func TestAskedAtTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, store: &store{objects: map[model.Key]*model.Config{}}, dir: t.TempDir()}
		r.store.set("a", "one")
		l := New(Config{Dir: r.dir, Source: Objects(r.store), Logger: slog.New(slog.DiscardHandler)})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- l.Run(ctx) }()
		l.Note(model.Change{All: true}, time.Now())
		began := time.Now()
		r.log = l
		expect(t, "List", r.lines(Filter{}), []string{"a found"})
		if took := time.Since(began); took != 0 {
			t.Errorf("the answer took %s, want no wait", took)
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
	})
}

// TestEarlier checks which versions a control plane finds at its start: the newest ones of the objects
// that exist, also those of an older file.
func TestEarlier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1000)
		for _, host := range []string{"one", "two", "two", "three", "four"} {
			r.change("a", host)
		}
		r.change("gone", "five")
		r.change("gone", "")
		r.stop()
		found, err := New(Config{Dir: r.dir}).Earlier(model.VirtualService, 3)
		var got []string
		for key, list := range found {
			for _, c := range list {
				got = append(got, key.Name+" "+c.Spec.(*networkingv1alpha3.VirtualService).GetHosts()[0])
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		expect(t, "earlier versions", got, []string{"a two", "a three", "a four"})
		if other, err := New(Config{Dir: r.dir}).Earlier(model.EnvoyFilter, 3); err != nil || len(other) > 0 {
			t.Errorf("Earlier of another kind = %v, %v", other, err)
		}
	})
}
