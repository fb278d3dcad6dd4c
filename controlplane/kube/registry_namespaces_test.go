// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

func selector(label, value string) *meshv1alpha1.LabelSelector {
	return &meshv1alpha1.LabelSelector{MatchLabels: map[string]string{label: value}}
}

// TestSelectNamespaces checks that selectors and labels of namespaces determine the selected
// namespaces, and that each change is reported once, but not for excluded namespaces.
func TestSelectNamespaces(t *testing.T) {
	t.Parallel()
	var told []string
	r, _ := inCluster(t, func(c model.Change) {
		for key := range c.Keys {
			told = append(told, key.String())
		}
	})
	r.cfg.SelectsPods = func(string) bool { return true }
	m := r.join("c").member
	r.members["c"] = m
	m.start()
	namespace := func(name, mesh string) {
		r.alter(func() {
			m.setNamespace(name, &namespaceRecord{labels: map[string]string{"mesh": mesh}}, "istio-system")
		})
	}
	service := func(namespace string) {
		r.alter(func() {
			m.setService(types.NamespacedName{Namespace: namespace, Name: "s"}, &serviceRecord{service: &model.Service{ServiceKey: model.ServiceKey{Hostname: "s." + namespace, Namespace: namespace}}})
		})
	}
	pod := func(namespace, address string) {
		r.alter(func() {
			m.setPod(types.NamespacedName{Namespace: namespace, Name: "p"}, &podRecord{addresses: []string{address}, ready: true})
		})
	}
	choose := func(selectors ...*meshv1alpha1.LabelSelector) {
		if err := r.SelectNamespaces(selectors); err != nil {
			t.Error(err)
		}
	}
	in := &meshv1alpha1.LabelSelector{MatchExpressions: []*meshv1alpha1.LabelSelectorRequirement{{Key: "mesh", Operator: "In", Values: []string{"off", "half"}}}}
	for _, step := range []struct {
		name        string
		do          func()
		told, shown string
	}{
		{"first", func() { namespace("a", "on"); namespace("b", "off"); service("a"); service("b") }, "Service/a/s Service/b/s", "a b"},
		{"choice", func() { choose(selector("mesh", "on")) }, "Service/b/s", "a"},
		{"the same choice", func() { choose(selector("mesh", "on")) }, "", "a"},
		{"a pod that does not count", func() { pod("b", "10.0.0.1") }, "", "a"},
		{"a service that does not count", func() { service("b") }, "", "a"},
		{"a pod that counts", func() { pod("a", "10.0.0.2") }, "Pod/a/p", "a"},
		{"a namespace without services", func() { namespace("c", "on") }, "", "a"},
		{"a namespace enters", func() { namespace("b", "on") }, "Pod/b/p Service/b/s", "a b"},
		{"a namespace leaves", func() { namespace("a", "half") }, "Pod/a/p Service/a/s", "b"},
		{"two selectors", func() { choose(selector("mesh", "on"), in) }, "Pod/a/p Service/a/s", "a b"},
		{"a namespace goes", func() { r.alter(func() { m.setNamespace("a", nil, "istio-system") }) }, "Pod/a/p Service/a/s", "b"},
		{"all", func() { choose() }, "Pod/a/p Service/a/s", "a b"},
	} {
		told = nil
		step.do()
		slices.Sort(told)
		var shown []string
		for _, p := range r.Services() {
			namespace := p.Service.Namespace
			shown = append(shown, namespace)
			if r.Service(namespace, "s") == nil {
				t.Errorf("%s: the service in %s was not found", step.name, namespace)
			}
		}
		slices.Sort(shown)
		if got := strings.Join(told, " "); got != step.told || strings.Join(shown, " ") != step.shown {
			t.Errorf("%s: reported %q, want %q; services in %v, want %q", step.name, got, step.told, shown, step.shown)
		}
	}
	wrong := &meshv1alpha1.LabelSelector{MatchExpressions: []*meshv1alpha1.LabelSelectorRequirement{{Key: "mesh", Operator: "Near"}}}
	if err := r.SelectNamespaces([]*meshv1alpha1.LabelSelector{selector("a", "b"), wrong}); err == nil || !strings.Contains(err.Error(), "discoverySelectors[1]") {
		t.Errorf("an invalid selector: got error %v, want one about discoverySelectors[1]", err)
	}
	if n := len(r.Services()); n != 2 {
		t.Errorf("%d services after an invalid selector, want 2", n)
	}
}

// TestPodLabels checks that the labels of a pod are known before it is ready, in any namespace, but
// only with its own service account.
func TestPodLabels(t *testing.T) {
	t.Parallel()
	r, _ := inCluster(t, func(model.Change) {})
	m := r.join("c").member
	r.members["c"] = m
	m.start()
	r.alter(func() {
		m.setPod(types.NamespacedName{Namespace: "a", Name: "p"}, &podRecord{account: "web", labels: map[string]string{"app": "web"}})
	})
	if err := r.SelectNamespaces([]*meshv1alpha1.LabelSelector{{MatchLabels: map[string]string{"mesh": "on"}}}); err != nil {
		t.Fatal(err)
	}
	if got := r.PodLabels("a", "p", "web"); got["app"] != "web" {
		t.Errorf("PodLabels() = %v, want app=web", got)
	}
	for _, who := range [][3]string{{"a", "p", "pay"}, {"a", "q", "web"}, {"b", "p", "web"}} {
		if got := r.PodLabels(who[0], who[1], who[2]); got != nil {
			t.Errorf("PodLabels(%v) = %v, want none", who, got)
		}
	}
}

// TestNetworkOfNamespace checks that the label of the control plane's namespace sets the network,
// even if the namespace is not selected.
func TestNetworkOfNamespace(t *testing.T) {
	t.Parallel()
	m := newMember("c")
	listen(m)
	m.start()
	m.setSelects(func(map[string]string) bool { return false })
	network := func(name string) *namespaceRecord {
		return &namespaceRecord{labels: map[string]string{networkLabel: name}}
	}
	var got []string
	for _, step := range []func(){
		func() { m.setNamespace("istio-system", network("one"), "istio-system") },
		func() { m.setNamespace("other", network("two"), "istio-system") },
		func() { m.setNamespace("istio-system", network("three"), "istio-system") },
		func() { m.setNamespace("istio-system", nil, "istio-system") },
	} {
		step()
		got = append(got, m.network)
	}
	if want := "[one one three ]"; fmt.Sprint(got) != want {
		t.Errorf("networks: got %q, want %q", got, want)
	}
}

// TestDraining checks that a terminating endpoint, and a pod with the label, remain for clients with a
// persistent session.
func TestDraining(t *testing.T) {
	t.Parallel()
	for labels, want := range map[string]string{
		"": "10.0.0.1", model.PersistentSessionLabel: "10.0.0.1 10.0.0.2 draining 10.0.0.3 draining", model.PersistentSessionHeaderLabel: "10.0.0.1 10.0.0.2 draining 10.0.0.3 draining",
	} {
		m := newMember("c")
		said := listen(m)
		m.start()
		n := types.NamespacedName{Namespace: "shop", Name: "a"}
		slice := &sliceRecord{service: "a", ports: []slicePort{{"http", 8080}}, endpoints: []sliceEndpoint{{address: "10.0.0.1"}, {address: "10.0.0.2"}}}
		m.setSlice(n, slice)
		m.setService(n, &serviceRecord{service: &model.Service{Labels: map[string]string{labels: "x"}, Ports: []model.Port{{Name: "http", Number: 80}}}})
		m.setPod(types.NamespacedName{Namespace: "shop", Name: "p"}, &podRecord{labels: map[string]string{model.DrainingLabel: "true"}})
		ending := *slice
		ending.endpoints = []sliceEndpoint{{address: "10.0.0.1"}, {address: "10.0.0.2", draining: true}, {address: "10.0.0.3", pod: "p"}}
		if slice.equal(&ending) || !m.setSlice(n, &ending) || said.endpoints[n] != 2 {
			t.Errorf("%q: the change of an endpoint to terminating was not reported", labels)
		}
		var got []string
		for _, e := range m.shards[n][n] {
			got = append(got, e.Address)
			if e.Draining {
				got = append(got, "draining")
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q: got %q, want %q", labels, got, want)
		}
	}
}
