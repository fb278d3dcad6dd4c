// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"testing"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// TestFullMemoDropsTheOldest checks that a full memo drops the result that was requested longest
// ago, and rebuilds no other.
func TestFullMemoDropsTheOldest(t *testing.T) {
	t.Parallel()
	var m memo[int, int]
	builds := 0
	get := func(key int) { m.get(key, 1, inputs{}, func(int) int { builds++; return key }) }
	for key := range maxScopes {
		get(key)
	}
	get(0) // 1 is the oldest now
	get(maxScopes)
	if builds != maxScopes+1 || m.entries.Len() != maxScopes {
		t.Errorf("%d builds and %d results, want %d and %d", builds, m.entries.Len(), maxScopes+1, maxScopes)
	}
	for key := range maxScopes + 1 {
		if key != 1 {
			get(key)
		}
	}
	if builds != maxScopes+1 {
		t.Errorf("%d results are built again, want none but the oldest", builds-maxScopes-1)
	}
	if get(1); builds != maxScopes+2 {
		t.Error("the oldest result is still there")
	}
}

// TestMemoDropsWhatNobodyRequests checks that results without requests are dropped after some
// snapshots.
func TestMemoDropsWhatNobodyRequests(t *testing.T) {
	t.Parallel()
	var m memo[string, int]
	get := func(key string, sequence uint64) { m.get(key, sequence, inputs{}, func(int) int { return 0 }) }
	get("unused", 1)
	for sequence := uint64(1); sequence <= keepSnapshots+1; sequence++ {
		get("used", sequence)
	}
	if m.entries.Len() != 2 {
		t.Errorf("%d results after %d snapshots, want 2", m.entries.Len(), keepSnapshots)
	}
	get("used", keepSnapshots+2)
	if _, used := m.entries.Get("used"); !used || m.entries.Len() != 1 {
		t.Error("want the result that is requested, and not the other")
	}
}

// TestEqualImportsShareAPlan checks that Sidecars with equal imports and other differences do not
// evict each other's plans.
func TestEqualImportsShareAPlan(t *testing.T) {
	t.Parallel()
	objects := decode(t, `
kind: ServiceEntry
metadata: {name: web, namespace: default}
spec: {hosts: [web.test], resolution: STATIC, ports: [{number: 9080, name: tcp}], endpoints: [{address: 10.0.0.1}]}
`)
	for app, mode := range map[string]networkingv1alpha3.OutboundTrafficPolicy_Mode{
		"one": networkingv1alpha3.OutboundTrafficPolicy_ALLOW_ANY, "two": networkingv1alpha3.OutboundTrafficPolicy_REGISTRY_ONLY,
	} {
		objects = append(objects, &model.Config{Key: model.Key{Kind: model.Sidecar, Namespace: "default", Name: app}, Spec: &networkingv1alpha3.Sidecar{
			WorkloadSelector:      &networkingv1alpha3.WorkloadSelector{Labels: map[string]string{"app": app}},
			Egress:                []*networkingv1alpha3.IstioEgressListener{{Hosts: []string{"./*"}}},
			OutboundTrafficPolicy: &networkingv1alpha3.OutboundTrafficPolicy{Mode: mode},
		}})
	}
	mesh, g := snapshot.Build(nil, inputOf(objects, meshconfig.Default()), model.Change{All: true}), New(Config{})
	planFor := func(app string) *plan {
		proxy := proxyAt("10.0.0.9")
		proxy.Interception, proxy.Labels = model.InterceptionRedirect, map[string]string{"app": app}
		return g.planOf(newTarget(mesh, proxy))
	}
	if one, two := planFor("one"), planFor("two"); one != two || one != planFor("one") || len(one.listeners) == 0 {
		t.Errorf("plans %p and %p with %d listeners, want one for both", one, two, len(one.listeners))
	}
}
