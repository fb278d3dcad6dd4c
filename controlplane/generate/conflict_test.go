// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"testing"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

const conflictingMesh = `kind: ServiceEntry
metadata: {name: a, namespace: default, creationTimestamp: "2026-01-01T00:00:00Z"}
spec:
  hosts: [a.example.com]
  resolution: STATIC
  ports: [{number: 5000, name: tcp, protocol: TCP, targetPort: 8080}]
  endpoints: [{address: 10.0.0.9}]
---
kind: ServiceEntry
metadata: {name: b, namespace: default, creationTimestamp: "2026-01-02T00:00:00Z"}
spec:
  hosts: [b.example.com]
  resolution: STATIC
  ports: [{number: 5000, name: tcp, protocol: TCP, targetPort: 8081}, {number: 80, name: http, protocol: HTTP, targetPort: 8080}]
  endpoints: [{address: 10.0.0.9}]
---
kind: VirtualService
metadata: {name: a, namespace: default, creationTimestamp: "2026-01-01T00:00:00Z"}
spec: {hosts: [b.example.com], http: [{route: [{destination: {host: b.example.com}}]}]}
---
kind: VirtualService
metadata: {name: b, namespace: default, creationTimestamp: "2026-01-02T00:00:00Z"}
spec: {hosts: [b.example.com], http: [{route: [{destination: {host: b.example.com}}]}]}
`

// TestConflictsAreCounted builds a mesh with conflicts. Each kind of conflict that metrics count
// must occur once, at the younger object.
func TestConflictsAreCounted(t *testing.T) {
	t.Parallel()
	mesh := snapshot.Build(nil, inputOf(decode(t, conflictingMesh), &meshv1alpha1.MeshConfig{}), model.Change{All: true})
	proxy := proxyAt("10.0.0.9")
	proxy.Interception = model.InterceptionRedirect
	got := map[model.ProblemCode]string{}
	for _, p := range append(New(Config{}).Generate(mesh, proxy, xds.TypeListener).Problems, mesh.Problems...) {
		if p.Code != "" {
			got[p.Code] += p.Object.String()
		}
	}
	for code, object := range map[model.ProblemCode]string{
		model.ConflictOutbound: "ServiceEntry/default/b", model.ConflictInbound: "ServiceEntry/default/b", model.DuplicateHost: "VirtualService/default/b",
	} {
		if got[code] != object {
			t.Errorf("%s: %q, want %q", code, got[code], object)
		}
	}
}
