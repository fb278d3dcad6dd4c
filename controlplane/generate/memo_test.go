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

// TestFullMemoKeepsWhatItHas asks a full memo for what it has: nothing is built
// again before something new has to go in.
func TestFullMemoKeepsWhatItHas(t *testing.T) {
	t.Parallel()
	var m memo[int, int]
	builds := 0
	get := func(key int) { m.get(key, 1, sources{}, func(int) int { builds++; return key }) }
	for key := range maxScopes {
		get(key)
	}
	for key := range maxScopes {
		get(key)
	}
	if builds != maxScopes {
		t.Errorf("%d builds of %d results", builds, maxScopes)
	}
	if get(maxScopes); len(m.entries) != 1 {
		t.Errorf("%d results kept of more than the memo holds, want those since it was full", len(m.entries))
	}
}

// TestEqualImportsShareAPlan: Sidecars that import the same and differ in other
// things do not take the plan from each other's proxies at each call.
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
		return g.planOf(newScope(mesh, proxy))
	}
	if one, two := planFor("one"), planFor("two"); one != two || one != planFor("one") || len(one.listeners) == 0 {
		t.Errorf("plans %p and %p with %d listeners, want one for both", one, two, len(one.listeners))
	}
}
