// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// world is a mesh of many services with one workload each, whose objects a test can replace.
type world struct {
	objects []*model.Config
	mesh    *snapshot.Mesh
}

// newWorld returns services with one endpoint each; every fifth has two subsets.
func newWorld(tb testing.TB, services int) *world {
	tb.Helper()
	w := &world{}
	created := time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)
	add := func(kind model.Kind, name string, spec any) {
		c := &model.Config{Key: model.Key{Kind: kind, Namespace: "default", Name: name}, Created: created}
		switch s := spec.(type) {
		case *networkingv1alpha3.ServiceEntry:
			c.Spec = s
		case *networkingv1alpha3.WorkloadEntry:
			c.Spec = s
		case *networkingv1alpha3.DestinationRule:
			c.Spec = s
		case *networkingv1alpha3.VirtualService:
			c.Spec = s
		}
		w.objects = append(w.objects, c)
	}
	for i := range services {
		name := fmt.Sprintf("svc-%04d", i)
		add(model.ServiceEntry, name, &networkingv1alpha3.ServiceEntry{
			Hosts: []string{name + ".default.svc.cluster.local"}, Location: networkingv1alpha3.ServiceEntry_MESH_INTERNAL,
			Resolution: networkingv1alpha3.ServiceEntry_STATIC, Ports: []*networkingv1alpha3.ServicePort{{Number: 8080, Name: "http", Protocol: "HTTP"}},
			WorkloadSelector: &networkingv1alpha3.WorkloadSelector{Labels: map[string]string{"app": name}},
		})
		add(model.WorkloadEntry, name, workload(i, 1))
		if i%10 == 0 {
			add(model.DestinationRule, name, &networkingv1alpha3.DestinationRule{
				Host:    name,
				Subsets: []*networkingv1alpha3.Subset{{Name: "v1", Labels: map[string]string{"version": "v1"}}, {Name: "v2", Labels: map[string]string{"version": "v2"}}},
			})
			add(model.VirtualService, name, &networkingv1alpha3.VirtualService{
				Hosts: []string{name}, Http: []*networkingv1alpha3.HTTPRoute{{Route: []*networkingv1alpha3.HTTPRouteDestination{
					{Destination: &networkingv1alpha3.Destination{Host: name, Subset: "v1"}, Weight: 90},
					{Destination: &networkingv1alpha3.Destination{Host: name, Subset: "v2"}, Weight: 10},
				}}},
			})
		}
	}
	w.build(model.Change{All: true})
	return w
}

func workload(i int, version int) *networkingv1alpha3.WorkloadEntry {
	name := fmt.Sprintf("svc-%04d", i)
	return &networkingv1alpha3.WorkloadEntry{
		Address: fmt.Sprintf("10.%d.%d.%d", version, i/250, i%250+1), ServiceAccount: name,
		Labels: map[string]string{"app": name, "version": "v1"},
	}
}

func (w *world) build(change model.Change) {
	mesh := meshconfig.Default()
	mesh.ProxyHttpPort = 15080
	w.mesh = snapshot.Build(w.mesh, inputOf(w.objects, mesh), change)
}

// edit replaces one object by a changed copy.
func (w *world) edit(key model.Key, change func(c *model.Config)) {
	i := slices.IndexFunc(w.objects, func(c *model.Config) bool { return c.Key == key })
	w.objects = slices.Clone(w.objects)
	copied := *w.objects[i]
	change(&copied)
	w.objects[i] = &copied
	w.build(model.NewChange(key))
}

func (w *world) moveEndpoint(i, version int) {
	key := model.Key{Kind: model.WorkloadEntry, Namespace: "default", Name: fmt.Sprintf("svc-%04d", i)}
	w.edit(key, func(c *model.Config) { c.Spec = workload(i, version) })
}

func proxyAt(address string) *model.Proxy {
	return &model.Proxy{
		ID: "p.default", Role: "sidecar", IPs: []string{address}, Namespace: "default", Domain: "default.svc.cluster.local",
		Labels: map[string]string{"app": "svc-0001"}, Interception: model.InterceptionNone,
	}
}

func TestProxiesShareSets(t *testing.T) {
	t.Parallel()
	w, g := newWorld(t, 20), New(Config{})
	a, b := generateAll(g, w.mesh, proxyAt("127.1.0.2")), generateAll(g, w.mesh, proxyAt("127.1.0.3"))
	for i, typeURL := range xds.Types {
		if shared := a[i] == b[i]; shared != (typeURL != xds.TypeListener) {
			t.Errorf("%s: shared between proxies: %t", typeURL, shared)
		}
	}
	if want := 20 + 2*2 + len([]string{"BlackHoleCluster", "ForwardProxyCluster"}); len(a[0].Resources) != want {
		t.Errorf("%d clusters, want %d", len(a[0].Resources), want)
	}
}

func TestChangeTouchesOnlyItsTypes(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		change func(w *world)
		want   map[string]int // changed resources by type
	}{
		{"nothing", func(w *world) { w.build(model.Change{All: true}) }, nil},
		{"endpoint moved", func(w *world) { w.moveEndpoint(3, 2) }, map[string]int{xds.TypeEndpoint: 1}},
		{"endpoint of a service with subsets moved", func(w *world) { w.moveEndpoint(10, 2) }, map[string]int{xds.TypeEndpoint: 2}},
		{"account changed", func(w *world) {
			w.edit(model.Key{Kind: model.WorkloadEntry, Namespace: "default", Name: "svc-0003"}, func(c *model.Config) {
				spec := workload(3, 1)
				spec.ServiceAccount = "other"
				c.Spec = spec
			})
		}, map[string]int{xds.TypeCluster: 1}},
		{"routes changed", func(w *world) {
			w.edit(model.Key{Kind: model.VirtualService, Namespace: "default", Name: "svc-0000"}, func(c *model.Config) {
				c.Spec = &networkingv1alpha3.VirtualService{Hosts: []string{"svc-0000"}, Http: []*networkingv1alpha3.HTTPRoute{{
					Route: []*networkingv1alpha3.HTTPRouteDestination{{Destination: &networkingv1alpha3.Destination{Host: "svc-0000"}}},
				}}}
			})
		}, map[string]int{xds.TypeRoute: 1}},
		{"subset dropped", func(w *world) {
			w.edit(model.Key{Kind: model.DestinationRule, Namespace: "default", Name: "svc-0000"}, func(c *model.Config) {
				c.Spec = &networkingv1alpha3.DestinationRule{Host: "svc-0000", Subsets: []*networkingv1alpha3.Subset{{Name: "v1", Labels: map[string]string{"version": "v1"}}}}
			})
		}, map[string]int{xds.TypeCluster: 1, xds.TypeEndpoint: 1}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			w, g := newWorld(t, 20), New(Config{})
			before := generateAll(g, w.mesh, proxyAt("127.1.0.2"))
			tc.change(w)
			after := generateAll(g, w.mesh, proxyAt("127.1.0.2"))
			for i, typeURL := range xds.Types {
				if got := difference(before[i], after[i]); got != tc.want[typeURL] {
					t.Errorf("%s: %d resources changed, want %d", typeURL, got, tc.want[typeURL])
				}
				if tc.want[typeURL] == 0 && before[i] != after[i] {
					t.Errorf("%s: another *Set although nothing changed", typeURL)
				}
			}
		})
	}
}

// difference counts the resources that are new, removed or another pointer.
func difference(a, b *xds.Set) int {
	n := 0
	for _, r := range a.Resources {
		if b.Get(r.Name) != r {
			n++
		}
	}
	for _, r := range b.Resources {
		if a.Get(r.Name) == nil {
			n++
		}
	}
	return n
}

func TestNamespacesShareResources(t *testing.T) {
	t.Parallel()
	w, g := newWorld(t, 20), New(Config{})
	other := proxyAt("127.1.0.9")
	other.Namespace, other.Domain = "elsewhere", "elsewhere.svc.cluster.local"
	a, b := g.Generate(w.mesh, proxyAt("127.1.0.2"), xds.TypeEndpoint), g.Generate(w.mesh, other, xds.TypeEndpoint)
	for _, r := range a.Resources {
		if b.Get(r.Name) != r {
			t.Errorf("%s is not shared between namespaces", r.Name)
		}
	}
}

func TestConcurrentCallersGetOneSet(t *testing.T) {
	t.Parallel()
	w, g := newWorld(t, 50), New(Config{})
	sets := make([]*xds.Set, 16)
	var wg sync.WaitGroup
	for i := range sets {
		wg.Go(func() { sets[i] = g.Generate(w.mesh, proxyAt("127.1.0.2"), xds.TypeCluster) })
	}
	wg.Wait()
	for i, s := range sets {
		if s != sets[0] {
			t.Errorf("caller %d got another set", i)
		}
	}
}

func TestLateCallerReplacesNothing(t *testing.T) {
	t.Parallel()
	w, g := newWorld(t, 5), New(Config{})
	old := w.mesh
	w.moveEndpoint(1, 2)
	fresh := g.Generate(w.mesh, proxyAt("127.1.0.2"), xds.TypeEndpoint)
	if late := g.Generate(old, proxyAt("127.1.0.2"), xds.TypeEndpoint); late.Version == fresh.Version {
		t.Error("a caller with an old snapshot got endpoints of a new one")
	}
	if g.Generate(w.mesh, proxyAt("127.1.0.2"), xds.TypeEndpoint) != fresh {
		t.Error("a caller with an old snapshot replaced the set of the new one")
	}
}

func TestUnusedScopesAreForgotten(t *testing.T) {
	t.Parallel()
	w, g := newWorld(t, 3), New(Config{})
	for i := range 100 {
		generateAll(g, w.mesh, proxyAt(fmt.Sprintf("127.1.1.%d", i+1)))
	}
	left := proxyAt("127.1.0.2")
	left.VHDS = true // otherwise it would receive nothing of one type
	for i := range keepSnapshots + 2 {
		w.moveEndpoint(1, i+2)
		generateAll(g, w.mesh, left)
	}
	g.sets.mu.Lock()
	defer g.sets.mu.Unlock()
	if n := g.sets.entries.Len(); n != len(xds.Types) {
		t.Errorf("%d sets remembered, want the %d of the proxy that is left", n, len(xds.Types))
	}
}

func TestOtherProxiesGetNothing(t *testing.T) {
	t.Parallel()
	w, g := newWorld(t, 3), New(Config{})
	waypoint, lost := proxyAt("10.0.0.1"), proxyAt("10.0.0.1")
	waypoint.Role, lost.IPs = "waypoint", nil
	for _, p := range []*model.Proxy{waypoint, lost} {
		for i, set := range generateAll(g, w.mesh, p) {
			if len(set.Resources) != 0 {
				t.Errorf("%+v got %d resources of %s", p, len(set.Resources), xds.Types[i])
			}
		}
	}
	if set := g.Generate(w.mesh, proxyAt("127.1.0.2"), "type.googleapis.com/unknown"); set == nil || len(set.Resources) != 0 {
		t.Errorf("unknown type: %v", set)
	}
}

// TestLabelsDoNotCollide checks that a proxy that claims arbitrary labels neither receives nor
// provides the resources of other labels.
func TestLabelsDoNotCollide(t *testing.T) {
	t.Parallel()
	keys := []string{"a", "b"}
	if one, two := project(keys, map[string]string{"a": "1,b=2"}), project(keys, map[string]string{"a": "1", "b": "2"}); one == two {
		t.Errorf("both are %q", one)
	}
}
