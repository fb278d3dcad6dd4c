// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"slices"
	"testing"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

func workloadKey(name string) model.Key {
	return model.Key{Kind: model.WorkloadEntry, Namespace: "default", Name: name}
}

// buildWith builds the snapshot after prev. The health of the workloads in changed has changed.
func (o objects) buildWith(prev *Mesh, unhealthy, changed []string) *Mesh {
	in := o.input()
	in.Unhealthy = map[model.Key]struct{}{}
	for _, name := range unhealthy {
		in.Unhealthy[workloadKey(name)] = struct{}{}
	}
	keys := make([]model.Key, len(changed))
	for i, name := range changed {
		keys[i] = workloadKey(name)
	}
	return Build(prev, in, model.NewChange(keys...))
}

func addressesOf(m *Mesh, endpoints *Endpoints, host string) []string {
	set := endpoints.Of(m.Services.ForHost(host, "default").ServiceKey)
	if set == nil {
		return nil
	}
	out := make([]string, len(set.List))
	for i, e := range set.List {
		out[i] = e.Address
	}
	return out
}

// TestHealthChangesOnlyEndpoints checks that the health of a workload changes only the endpoints of
// its services, neither the identities, which clusters contain, nor other services.
func TestHealthChangesOnlyEndpoints(t *testing.T) {
	t.Parallel()
	const host = "catalog.default.svc.cluster.local"
	objs := append(shop(), workload("default", "catalog", "catalog-2", "10.0.0.3", "catalog"))
	before := objs.build()
	for _, step := range []struct {
		unhealthy, changed, addresses, indexes []string
	}{
		{[]string{"catalog-1"}, []string{"catalog-1"}, []string{"10.0.0.3"}, []string{"endpoints"}},
		{[]string{"catalog-1", "gone"}, []string{"gone"}, []string{"10.0.0.3"}, nil},
		{[]string{"catalog-1", "catalog-2"}, []string{"catalog-2"}, nil, []string{"endpoints"}},
		{nil, []string{"catalog-1", "catalog-2"}, []string{"10.0.0.1", "10.0.0.3"}, []string{"endpoints"}},
		{nil, []string{"catalog-1"}, []string{"10.0.0.1", "10.0.0.3"}, nil},
	} {
		after := objs.buildWith(before, step.unhealthy, step.changed)
		var got []string
		for name, index := range indexes(after) {
			if index != indexes(before)[name] {
				got = append(got, name)
			}
		}
		if !slices.Equal(got, step.indexes) {
			t.Errorf("unhealthy %q: rebuilt indexes: got %q, want %q", step.unhealthy, got, step.indexes)
		}
		if got := addressesOf(after, after.Endpoints, host); !slices.Equal(got, step.addresses) {
			t.Errorf("unhealthy %q: endpoints: got %q, want %q", step.unhealthy, got, step.addresses)
		}
		orders := after.Services.ForHost("orders.default.svc.cluster.local", "default").ServiceKey
		if after.Endpoints.Of(orders) != before.Endpoints.Of(orders) {
			t.Errorf("unhealthy %q: the endpoints of another service were rebuilt", step.unhealthy)
		}
		before = after
	}
}

// TestHealthStays checks that an unhealthy endpoint stays excluded after an unrelated change.
func TestHealthStays(t *testing.T) {
	t.Parallel()
	const host = "catalog.default.svc.cluster.local"
	objs := shop()
	m := objs.buildWith(objs.build(), []string{"catalog-1"}, []string{"catalog-1"})
	for _, changed := range []*model.Config{
		service("default", "new", "new.example.com"),
		workload("default", "orders", "orders-1", "10.0.0.9", "orders"),
		object(model.DestinationRule, "default", "catalog", 0, &networkingv1alpha3.DestinationRule{Host: "catalog", ExportTo: []string{"."}}),
	} {
		objs = objs.replace(changed)
		in := objs.input()
		in.Unhealthy = map[model.Key]struct{}{workloadKey("catalog-1"): {}}
		m = Build(m, in, model.NewChange(changed.Key))
		if got := addressesOf(m, m.Endpoints, host); got != nil {
			t.Errorf("after a change of %s: endpoints: got %q, want none", changed.Key, got)
		}
	}
}

// TestHealthOfNamedEndpoints checks that unhealthy endpoints that Envoy resolves by DNS are also
// excluded.
func TestHealthOfNamedEndpoints(t *testing.T) {
	t.Parallel()
	se := service("default", "files", "files.example.com")
	se.Spec.(*networkingv1alpha3.ServiceEntry).Resolution = networkingv1alpha3.ServiceEntry_DNS
	objs := append(shop(), se, workload("default", "files", "files-1", "one.example.com", "files"), workload("default", "files", "files-2", "two.example.com", "files"))
	m := objs.buildWith(objs.build(), []string{"files-1"}, []string{"files-1"})
	if got := addressesOf(m, m.NamedEndpoints, "files.example.com"); !slices.Equal(got, []string{"two.example.com"}) {
		t.Errorf("endpoints: got %q, want [two.example.com]", got)
	}
}
