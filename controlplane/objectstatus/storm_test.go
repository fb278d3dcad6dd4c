// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package objectstatus

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// TestNoStorm checks that a thousand objects and a hundred proxies that connect one after another
// cause only one write per object.
func TestNoStorm(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, run func(...func(context.Context) error)) {
		s := newStore()
		r := newReplica(t, s)
		for n := range 1000 {
			s.create(t, rule(fmt.Sprintf("r%d", n), "1"))
		}
		run(s.Run, r.Run)
		r.publish()
		time.Sleep(5 * time.Millisecond) // rounds are at multiples of 10 ms, so none coincides with a change
		for n := range 100 {
			r.at(append(had(n, 1), discovery.ProxyStanding{ID: "new", Settled: 0})...)
			time.Sleep(10 * time.Millisecond)
			r.at(had(n+1, 1)...)
			time.Sleep(40 * time.Millisecond)
		}
		time.Sleep(10 * second)
		s.wantWrites(t, 1000)
	})
}

func TestEffective(t *testing.T) {
	t.Parallel()
	old := rule("a", "1")
	old.ResourceVersion, old.UID = "1", "u"
	for name, tc := range map[string]struct {
		change func(*model.Config)
		want   bool
	}{
		"status":        {func(c *model.Config) { c.Status = foreignStatus() }, false},
		"version":       {func(*model.Config) {}, false},
		"spec":          {func(c *model.Config) { c.Spec = rule("a", "2").Spec }, true},
		"labels":        {func(c *model.Config) { c.Labels = map[string]string{"a": "b"} }, true},
		"annotation":    {func(c *model.Config) { c.Annotations = map[string]string{"a": "b"} }, true},
		"created again": {func(c *model.Config) { c.UID = "v" }, true},
		"older now":     {func(c *model.Config) { c.Created = time.Unix(1, 0) }, true},
	} {
		next := old.Clone()
		next.ResourceVersion = "2"
		tc.change(next)
		if got := Effective(config.Event{Type: config.Updated, Old: old, New: next}); got != tc.want {
			t.Errorf("%s: Effective() = %v, want %v", name, got, tc.want)
		}
	}
	if !Effective(config.Event{Type: config.Added, New: old}) || !Effective(config.Event{Type: config.Deleted, Old: old}) {
		t.Error("Effective() = false for an added or deleted object")
	}
}

// TestSpecGeneration checks that generations are derived from the spec if the store has none.
func TestSpecGeneration(t *testing.T) {
	t.Parallel()
	a, b, other := rule("a", "1"), rule("b", "1"), rule("a", "2")
	if a.SpecGeneration() <= 0 || a.SpecGeneration() != b.SpecGeneration() || a.SpecGeneration() == other.SpecGeneration() {
		t.Errorf("generations: got %d, %d and %d, want equal ones only for equal specs", a.SpecGeneration(), b.SpecGeneration(), other.SpecGeneration())
	}
	if a.Generation = 7; a.SpecGeneration() != 7 {
		t.Errorf("SpecGeneration() = %d, want the generation of the store, 7", a.SpecGeneration())
	}
}

// hidden is a store that contains an object but does not return it, because the object was never
// valid.
type hidden struct{ *store }

func (h hidden) Get(model.Key) *model.Config { return nil }

// TestObjectNeverValid checks that the problems of an object that was never valid are written too.
func TestObjectNeverValid(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, run func(...func(context.Context) error)) {
		s := newStore()
		key := s.create(t, rule("a", "1"))
		if _, err := s.Store.UpdateStatus(t.Context(), &model.Config{Key: key, Status: foreignStatus()}); err != nil {
			t.Fatal(err)
		}
		empty := newStore() // receives the events of the writer
		r := newReplica(t, empty, func(c *Config) { c.Store = hidden{s} })
		run(r.Run)
		s.set(nil, model.Problem{Object: key, Reason: "spec.host is empty"})
		r.publish()
		time.Sleep(2 * second)
		s.want(t, key, analysisType, "spec.host is empty")
		s.want(t, key, "Theirs", "of others")
		s.wantWrites(t, 1)
		time.Sleep(time.Minute)
		s.wantWrites(t, 1)
	})
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	good := Config{
		Store: newStore(), Distribution: func() *discovery.Distribution { return discovery.NewDistribution(nil) },
		InForce: func(model.Kind) bool { return true }, Limits: Limits{1, 1, 1},
	}
	if _, err := New(good); err != nil {
		t.Fatal(err)
	}
	for _, spoil := range []func(*Config){
		func(c *Config) { c.Store = nil }, func(c *Config) { c.InForce = nil },
		func(c *Config) { c.Limits.Workers = 0 }, func(c *Config) { c.Limits.QPS = 0 },
	} {
		bad := good
		spoil(&bad)
		if _, err := New(bad); err == nil {
			t.Errorf("New accepted %+v", bad)
		}
	}
}

// TestApplyKeepsTimes checks that a write without changes is omitted, and that a write that fails
// permanently is not repeated.
func TestApplyKeepsTimes(t *testing.T) {
	t.Parallel()
	c := rule("a", "1")
	c.Generation = 1
	want := content{distribution: verdict{isTrue, reasonAcknowledged, "m"}, analysed: true}
	then := time.Unix(100, 0)
	status, differs := want.apply(c, then)
	if !differs {
		t.Fatal("the first status does not differ from no status")
	}
	c.Status = status
	if _, differs := want.apply(c, then.Add(time.Hour)); differs {
		t.Error("applying the same status again differs")
	}
	want.distribution = verdict{isTrue, reasonAcknowledged, "other words"}
	status, _ = want.apply(c, then.Add(time.Hour))
	if got := conditionOf(status, reconciledType); !got.GetLastTransitionTime().AsTime().Equal(then) || got.GetLastProbeTime().AsTime().Equal(then) {
		t.Errorf("times after a change of the message: got %v", got)
	}
	want.distribution.status = isFalse
	status, _ = want.apply(c, then.Add(time.Hour))
	if got := conditionOf(status, reconciledType); got.GetLastTransitionTime().AsTime().Equal(then) {
		t.Errorf("time after a change of the status: got %v, want a later one", got)
	}
	for err, final := range map[error]bool{config.ErrReadOnly: true, config.ErrConflict: false, errors.New("x"): false} {
		if isFinal(err) != final {
			t.Errorf("isFinal(%v) = %v", err, !final)
		}
	}
}

// BenchmarkRound checks ten thousand objects that a thousand proxies have not acknowledged, without
// any write.
func BenchmarkRound(b *testing.B) {
	s := newStore()
	proxies := discovery.NewDistribution(had(1000, 0))
	w, err := New(Config{
		Store: s, Distribution: func() *discovery.Distribution { return proxies },
		InForce: func(model.Kind) bool { return true }, Limits: Limits{1, 1, 1},
	})
	if err != nil {
		b.Fatal(err)
	}
	for n := range 10_000 {
		c := rule(fmt.Sprintf("r%d", n), "1")
		c.Generation = 1
		w.Hear([]config.Event{{Type: config.Added, New: c}})
	}
	w.Building(model.Change{All: true})
	w.Published(1, model.Change{All: true}, nil)
	later := time.Now().Add(time.Hour)
	jobs, _ := w.jobs(later, proxies)
	for _, j := range jobs {
		status, _ := j.want.apply(j.config, later)
		j.object.config = j.config.Clone()
		j.object.config.Status = status
		j.object.written = later
		w.finish(j.key, j.object, j.want)
		j.object.written = later
	}
	for b.Loop() {
		if jobs, _ := w.jobs(later, proxies); len(jobs) > 0 {
			b.Fatalf("%d jobs, want none", len(jobs))
		}
	}
}
