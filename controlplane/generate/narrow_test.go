// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// TestNarrowerRulesOfUnservedHost checks that, of two VirtualServices for a host without a
// service, the one with the narrower scope wins, even if it is younger.
func TestNarrowerRulesOfUnservedHost(t *testing.T) {
	t.Parallel()
	mesh := snapshot.Build(nil, inputOf(decode(t, `kind: VirtualService
metadata: {name: old, namespace: default, creationTimestamp: "2026-01-01T00:00:00Z"}
spec: {hosts: [nowhere.example.com], http: [{directResponse: {status: 201}}]}
---
kind: VirtualService
metadata: {name: young, namespace: default, creationTimestamp: "2026-01-02T00:00:00Z"}
spec: {hosts: [nowhere.example.com], exportTo: ["."], http: [{directResponse: {status: 202}}]}
`), &meshv1alpha1.MeshConfig{ProxyHttpPort: 15080}), model.Change{All: true})
	routes := unpack(t, New(Config{}).Generate(mesh, proxyAt("127.1.0.2"), xds.TypeRoute).Get(httpProxyRoute)).(*routev3.RouteConfiguration)
	for _, vh := range routes.GetVirtualHosts() {
		if vh.GetName() == "nowhere.example.com:80" {
			if got := vh.GetRoutes()[0].GetDirectResponse().GetStatus(); got != 202 {
				t.Errorf("the host answers %d, want 202", got)
			}
			return
		}
	}
	t.Errorf("the host has no routes: %v", routes)
}
