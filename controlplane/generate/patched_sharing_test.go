// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"fmt"
	"slices"
	"testing"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// limitOf is an EnvoyFilter for the workload svc-0001 that changes one of its clusters.
const limitOf = `
kind: EnvoyFilter
metadata: {name: limit, namespace: default}
spec:
  workloadSelector: {labels: {app: svc-0001}}
  configPatches:
  - applyTo: CLUSTER
    match: {context: SIDECAR_OUTBOUND, cluster: {service: svc-0003.default.svc.cluster.local}}
    patch: {operation: MERGE, value: {connect_timeout: %ds}}
`

// TestPatchTouchesOnlyItsProxies adds, edits and removes an EnvoyFilter. The sets of proxies that it
// does not select stay the same pointers, so that nothing is sent to them, and one resource of the
// selected proxy changes.
func TestPatchTouchesOnlyItsProxies(t *testing.T) {
	t.Parallel()
	w, g := newWorld(t, 20), New(Config{})
	selected, other, elsewhere := proxyAt("127.1.0.2"), proxyAt("127.1.0.3"), proxyAt("127.1.0.4")
	other.Labels = map[string]string{"app": "svc-0002"}
	elsewhere.Namespace, elsewhere.Domain = "elsewhere", "elsewhere.svc.cluster.local"
	key := model.Key{Kind: model.EnvoyFilter, Namespace: "default", Name: "limit"}
	without := w.objects
	with := func(seconds int) func() {
		return func() { w.objects = slices.Concat(without, decode(t, fmt.Sprintf(limitOf, seconds))) }
	}
	for _, step := range []struct {
		name   string
		change func()
	}{{"added", with(3)}, {"edited", with(4)}, {"removed", func() { w.objects = without }}} {
		before := map[*model.Proxy][]*xds.Set{}
		for _, p := range []*model.Proxy{selected, other, elsewhere} {
			before[p] = generateAll(g, w.mesh, p)
		}
		step.change()
		w.build(model.NewChange(key))
		for p, sets := range before {
			for i, set := range generateAll(g, w.mesh, p) {
				want := 0
				if p == selected && xds.Types[i] == xds.TypeCluster {
					want = 1
				}
				if n := difference(sets[i], set); n != want || want == 0 && set != sets[i] {
					t.Errorf("%s: %s of %v: %d resources changed, want %d; the same set: %t", step.name, xds.Types[i], p.Labels, n, want, set == sets[i])
				}
			}
		}
	}
}
