// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// faulty is a store with a build function that panics if an object has the label "panics".
type faulty struct {
	objects map[model.Key]*model.Config
	builds  int
	// broken makes every build panic.
	broken bool
}

func (f *faulty) input() Input {
	return Input{
		List: func(kind model.Kind) []*model.Config {
			var out []*model.Config
			for _, c := range f.objects {
				if c.Kind == kind {
					out = append(out, c)
				}
			}
			return out
		},
		Get: func(key model.Key) *model.Config { return f.objects[key] },
	}
}

func (f *faulty) build(prev *Mesh, in Input, change model.Change) *Mesh {
	f.builds++
	if f.broken {
		panic("broken")
	}
	check := func(c *model.Config) *model.Config {
		if c != nil && c.Labels["panics"] != "" {
			panic("cannot build from " + c.Name)
		}
		return c
	}
	inner := in
	inner.List = func(kind model.Kind) []*model.Config {
		list := in.List(kind)
		for _, c := range list {
			check(c)
		}
		return list
	}
	inner.Get = func(key model.Key) *model.Config { return check(in.Get(key)) }
	return build(prev, inner, change)
}

// put stores a ServiceEntry for the host name.test with one address.
func (f *faulty) put(name, address string, panics bool) model.Key {
	return f.enter(model.ServiceEntry, name, &networkingv1alpha3.ServiceEntry{
		Hosts: []string{name + ".test"}, Resolution: networkingv1alpha3.ServiceEntry_STATIC,
		Ports:     []*networkingv1alpha3.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP"}},
		Endpoints: []*networkingv1alpha3.WorkloadEntry{{Address: address}},
	}, panics)
}

func (f *faulty) enter(kind model.Kind, name string, spec any, panics bool) model.Key {
	key := model.Key{Kind: kind, Namespace: "default", Name: name}
	c := &model.Config{Key: key, Spec: spec, Source: "config/" + name + ".yaml:1", Labels: map[string]string{}, Created: time.Unix(0, 0)}
	if panics {
		c.Labels["panics"] = "yes"
	}
	if f.objects == nil {
		f.objects = map[model.Key]*model.Config{}
	}
	f.objects[key] = c
	return key
}

// serves returns the address of each service, and the objects that have problems.
func serves(m *Mesh) (addresses map[string]string, problems []string) {
	addresses = map[string]string{}
	for _, s := range m.Services.Sorted {
		address := "none"
		if set := m.Endpoints.Of(s.ServiceKey); set != nil {
			address = set.List[0].Address
		}
		addresses[strings.TrimSuffix(s.Hostname, ".test")] = address
	}
	for _, p := range m.Problems {
		if strings.Contains(p.Reason, "fails with") {
			problems = append(problems, p.Object.Name)
		}
	}
	slices.Sort(problems)
	return addresses, problems
}

// TestPanicAffectsOneObject checks that an object that makes the build panic is replaced by its
// last good version, or omitted if there is none. It must be reported, must not affect other
// objects, and must be retried when it changes.
func TestPanicAffectsOneObject(t *testing.T) {
	t.Parallel()
	f := &faulty{}
	f.put("a", "10.0.0.1", false)
	f.put("b", "10.0.0.2", false)
	m := guarded(nil, f.input(), model.Change{All: true}, f.build)
	step := func(change model.Change, want, wantProblems string) {
		t.Helper()
		m = guarded(m, f.input(), change, f.build)
		got, problems := serves(m)
		if fmt.Sprint(got) != want || fmt.Sprint(problems) != wantProblems {
			t.Fatalf("got services %v and problems %v, want %s and %s", got, problems, want, wantProblems)
		}
	}
	bad := []model.Key{f.put("a", "10.0.0.9", true), f.put("b", "10.0.1.2", false), f.put("new", "10.0.0.3", true)}
	step(model.NewChange(bad...), "map[a:10.0.0.1 b:10.0.1.2]", "[a new]")
	for _, p := range m.Problems {
		if p.Source == "" || !strings.Contains(p.Reason, "cannot build from") {
			t.Errorf("the problem lacks the source or the reason: %+v", p)
		}
	}
	// Other objects change: the faulty one is not retried, and its problem remains.
	before := f.builds
	step(model.NewChange(f.put("b", "10.0.2.2", false)), "map[a:10.0.0.1 b:10.0.2.2]", "[a new]")
	step(model.NewChange(f.enter(model.VirtualService, "v", &networkingv1alpha3.VirtualService{Hosts: []string{"b.test"}}, false)), "map[a:10.0.0.1 b:10.0.2.2]", "[a new]")
	step(model.Change{All: true}, "map[a:10.0.0.1 b:10.0.2.2]", "[a new]")
	if f.builds != before+3 {
		t.Errorf("%d builds for three changes, want 3", f.builds-before)
	}
	step(model.NewChange(f.put("a", "10.0.0.8", false)), "map[a:10.0.0.8 b:10.0.2.2]", "[new]")
	delete(f.objects, bad[2])
	step(model.NewChange(bad[2]), "map[a:10.0.0.8 b:10.0.2.2]", "[]")
}

// TestPanicInFirstBuild checks that faulty objects do not prevent the first snapshot after a start.
func TestPanicInFirstBuild(t *testing.T) {
	t.Parallel()
	f := &faulty{}
	for i := range 100 {
		f.put(fmt.Sprintf("s%02d", i), "10.0.0.1", i == 17 || i == 60)
	}
	m := guarded(nil, f.input(), model.Change{All: true}, f.build)
	got, problems := serves(m)
	if len(got) != 98 || fmt.Sprint(problems) != "[s17 s60]" {
		t.Errorf("got %d services and problems %v, want 98 and [s17 s60]", len(got), problems)
	}
	if f.builds > 25 {
		t.Errorf("%d builds to find two of 100 objects, want at most 25", f.builds)
	}
}

// TestPanicWithoutObject checks that the previous snapshot remains in use if the panic does not
// depend on objects.
func TestPanicWithoutObject(t *testing.T) {
	t.Parallel()
	f := &faulty{}
	f.put("a", "10.0.0.1", false)
	m := guarded(nil, f.input(), model.Change{All: true}, f.build)
	f.broken = true
	next := guarded(m, f.input(), model.NewChange(f.put("b", "10.0.0.2", false)), f.build)
	if got, problems := serves(next); fmt.Sprint(got) != "map[a:10.0.0.1]" || len(problems) != 1 || next.Sequence != m.Sequence+1 {
		t.Errorf("got services %v and problems %v in snapshot %d", got, problems, next.Sequence)
	}
	f.broken = false
	next = guarded(next, f.input(), model.NewChange(), f.build) // includes the change of the failed build
	if got, problems := serves(next); len(got) != 2 || len(problems) != 0 {
		t.Errorf("after the recovery: got services %v and problems %v", got, problems)
	}
}

// TestPanicProperty makes random changes to objects, some of which make the build panic. Each
// service must have its last good version, whatever else changed and however the object was read.
func TestPanicProperty(t *testing.T) {
	t.Parallel()
	for seed := range uint64(30) {
		rnd := rand.New(rand.NewPCG(seed, 5))
		f := &faulty{}
		var m *Mesh
		want, bad := map[string]string{}, map[string]bool{}
		for round := range 30 {
			var keys []model.Key
			for range rnd.IntN(6) {
				name := fmt.Sprintf("s%d", rnd.IntN(8))
				panics := rnd.IntN(3) == 0
				address := fmt.Sprintf("10.%d.%d.%d", seed, round, len(keys)+1)
				if rnd.IntN(8) == 0 {
					key := model.Key{Kind: model.ServiceEntry, Namespace: "default", Name: name}
					delete(f.objects, key)
					keys = append(keys, key)
					delete(want, name)
					delete(bad, name)
					continue
				}
				keys = append(keys, f.put(name, address, panics))
				if bad[name] = panics; !panics {
					delete(bad, name)
					want[name] = address
				}
			}
			change := model.NewChange(keys...)
			if m == nil || rnd.IntN(5) == 0 {
				change = model.Change{All: true}
			}
			// A version that became valid and invalid again within this round was never built.
			before := map[string]string{}
			if m != nil {
				before, _ = serves(m)
			}
			for name := range bad {
				if old, ok := before[name]; ok {
					want[name] = old
				} else {
					delete(want, name)
				}
			}
			m = guarded(m, f.input(), change, f.build)
			got, problems := serves(m)
			if !maps.Equal(got, want) || !slices.Equal(problems, slices.Sorted(maps.Keys(bad))) {
				t.Fatalf("seed %d, round %d: got services %v and problems %v, want %v and %v", seed, round, got, problems, want, bad)
			}
		}
	}
}

// TestPanicOfWorkload checks a WorkloadEntry, which is read separately by its key.
func TestPanicOfWorkload(t *testing.T) {
	t.Parallel()
	f := &faulty{}
	f.enter(model.ServiceEntry, "a", &networkingv1alpha3.ServiceEntry{
		Hosts: []string{"a.test"}, Resolution: networkingv1alpha3.ServiceEntry_STATIC,
		Ports:            []*networkingv1alpha3.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP"}},
		WorkloadSelector: &networkingv1alpha3.WorkloadSelector{},
	}, false)
	workload := func(address string, panics bool) model.Change {
		return model.NewChange(f.enter(model.WorkloadEntry, "w", &networkingv1alpha3.WorkloadEntry{Address: address}, panics))
	}
	workload("10.0.0.1", false)
	m := guarded(nil, f.input(), model.Change{All: true}, f.build)
	for _, step := range []struct {
		address string
		panics  bool
		want    string
	}{{"10.0.0.2", false, "10.0.0.2"}, {"10.0.0.3", true, "10.0.0.2"}, {"10.0.0.4", true, "10.0.0.2"}, {"10.0.0.5", false, "10.0.0.5"}} {
		m = guarded(m, f.input(), workload(step.address, step.panics), f.build)
		if got, problems := serves(m); got["a"] != step.want || (len(problems) > 0) != step.panics {
			t.Errorf("after %+v: got services %v and problems %v", step, got, problems)
		}
	}
}
