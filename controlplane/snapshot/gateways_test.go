// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"slices"
	"strings"
	"testing"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// TestMissingGateways checks that a VirtualService that refers to a missing Gateway is reported
// until the Gateway exists.
func TestMissingGateways(t *testing.T) {
	t.Parallel()
	key := model.Key{Kind: model.VirtualService, Namespace: "shop", Name: "edge"}
	objects := map[model.Kind][]*model.Config{model.VirtualService: {{Key: key, Spec: &networkingv1alpha3.VirtualService{
		Hosts: []string{"edge.test"}, Gateways: []string{"mesh", "a", "./b", "edge/c", "d.edge.svc.cluster.local"},
	}}}}
	in := Input{List: func(kind model.Kind) []*model.Config { return objects[kind] }}
	missing := func(m *Mesh) (names string) {
		for _, p := range m.Problems {
			if _, name, ok := strings.Cut(p.Reason, "there is no Gateway "); ok && p.Object == key && p.Dangling {
				name, _, _ = strings.Cut(name, ",")
				names += name + " "
			}
		}
		return names
	}
	first := Build(nil, in, model.Change{All: true})
	if got := missing(first); got != "shop/a shop/b edge/c edge/d " {
		t.Errorf("missing Gateways are reported for %q", got)
	}
	of := func(namespace, name string) *model.Config {
		return &model.Config{Key: model.Key{Kind: model.Gateway, Namespace: namespace, Name: name}, Spec: &networkingv1alpha3.Gateway{Servers: []*networkingv1alpha3.Server{{Hosts: []string{"*"}}}}}
	}
	objects[model.Gateway] = []*model.Config{of("shop", "a"), of("edge", "c"), of("edge", "d")}
	second := Build(first, in, model.NewChange(objects[model.Gateway][0].Key))
	if got := missing(second); got != "shop/b " {
		t.Errorf("missing Gateways are reported for %q, want shop/b", got)
	}
	third := Build(second, in, model.NewChange(model.Key{Kind: model.Sidecar, Name: "x"}))
	if got := missing(third); got != "shop/b " {
		t.Errorf("after an unrelated change, missing Gateways are reported for %q, want shop/b", got)
	}
	if InForce(model.UDPRoute) || !InForce(model.VirtualService) {
		t.Error("InForce() does not match the kinds that snapshots use")
	}
}

// serverOf returns a Gateway of the namespace edge with one server for the given hosts.
func serverOf(name string, selector map[string]string, hosts ...string) *model.Config {
	return &model.Config{
		Key:  model.Key{Kind: model.Gateway, Namespace: "edge", Name: name},
		Spec: &networkingv1alpha3.Gateway{Selector: selector, Servers: []*networkingv1alpha3.Server{{Hosts: hosts}}},
	}
}

// TestGateways checks that Gateways select workloads by labels and namespace, and that unchanged
// Gateways keep their pointers.
func TestGateways(t *testing.T) {
	t.Parallel()
	objects := []*model.Config{
		serverOf("all", nil), serverOf("edge", map[string]string{"app": "edge"}), serverOf("other", map[string]string{"app": "edge", "tier": "x"}),
	}
	in := Input{List: func(kind model.Kind) []*model.Config {
		if kind == model.Gateway {
			return objects
		}
		return nil
	}}
	first := Build(nil, in, model.Change{All: true})
	names := func(list []*Gateway) (out string) {
		for _, gw := range list {
			out += gw.Name + " "
		}
		return out
	}
	for _, tc := range []struct {
		labels    map[string]string
		namespace string
		own       bool
		want      string
	}{
		{nil, "shop", false, "edge/all "},
		{map[string]string{"app": "edge", "more": "1"}, "shop", false, "edge/all edge/edge "},
		{map[string]string{"app": "edge", "tier": "x"}, "edge", true, "edge/all edge/edge edge/other "},
		{map[string]string{"app": "edge"}, "shop", true, ""},
	} {
		if got := names(first.Gateways.For(tc.namespace, tc.labels, tc.own)); got != tc.want {
			t.Errorf("Gateways for %v in %q, own namespace %t: got %q, want %q", tc.labels, tc.namespace, tc.own, got, tc.want)
		}
	}
	if got := first.Gateways.SelectorLabels; !slices.Equal(got, []string{"app", "tier"}) {
		t.Errorf("SelectorLabels = %v, want [app tier]", got)
	}
	second := Build(first, in, model.Change{All: true})
	if second.Gateways != first.Gateways {
		t.Error("the index was rebuilt although the objects are equal")
	}
	objects = []*model.Config{objects[0], serverOf("edge", nil), objects[2]}
	third := Build(second, in, model.NewChange(objects[1].Key))
	if third.Gateways == second.Gateways || third.Gateways.Get("edge/all") != first.Gateways.Get("edge/all") || third.Gateways.Get("edge/edge") == first.Gateways.Get("edge/edge") {
		t.Error("after a change of one Gateway, the wrong Gateways were kept or rebuilt")
	}
}

// TestServerHosts checks that the hosts of servers apply only to the namespaces that they name.
func TestServerHosts(t *testing.T) {
	t.Parallel()
	gw := &Gateway{Config: serverOf("x", nil)}
	server := &networkingv1alpha3.Server{Hosts: []string{"All.test", "./own.test", "*/any.test", "shop/shop.test"}}
	for namespace, want := range map[string]string{"edge": "all.test own.test any.test", "shop": "all.test any.test shop.test"} {
		if got := strings.Join(gw.ServerHosts(server, namespace), " "); got != want {
			t.Errorf("ServerHosts() for %s = %q, want %q", namespace, got, want)
		}
	}
	for _, tc := range [][3]string{
		{"*", "a.test", "a.test"},
		{"a.test", "*", "a.test"},
		{"*.test", "*.a.test", "*.a.test"},
		{"*.a.test", "*.test", "*.a.test"},
		{"a.test", "b.test", ""},
		{"*.a.test", "a.test", ""},
		{"a.test *.b.test", "* x.b.test", "a.test *.b.test x.b.test"},
	} {
		if got := strings.Join(IntersectHosts(strings.Fields(tc[0]), strings.Fields(tc[1])), " "); got != tc[2] {
			t.Errorf("IntersectHosts(%s, %s) = %q, want %q", tc[0], tc[1], got, tc[2])
		}
	}
}

// TestUncoveredHosts checks that the hosts of a VirtualService for which its Gateway has no server
// are reported.
func TestUncoveredHosts(t *testing.T) {
	t.Parallel()
	vs := &model.Config{Key: model.Key{Kind: model.VirtualService, Namespace: "shop", Name: "vs"}, Spec: &networkingv1alpha3.VirtualService{
		Hosts: []string{"a.test", "edge.test", "*.wide.test", "b.test"}, Gateways: []string{"edge/gw"},
	}}
	gw := serverOf("gw", nil, "a.test", "./edge.test", "shop/x.wide.test")
	in := Input{List: func(kind model.Kind) []*model.Config {
		return map[model.Kind][]*model.Config{model.VirtualService: {vs}, model.Gateway: {gw}}[kind]
	}}
	var got []string
	for _, p := range Build(nil, in, model.Change{All: true}).Problems {
		at, _, ok := strings.Cut(p.Reason, ": no server of the Gateway edge/gw")
		if ok && p.Object == vs.Key {
			got = append(got, at)
		}
	}
	if want := []string{"spec.hosts[1]", "spec.hosts[3]"}; !slices.Equal(got, want) {
		t.Errorf("uncovered hosts: got %v, want %v", got, want)
	}
}
