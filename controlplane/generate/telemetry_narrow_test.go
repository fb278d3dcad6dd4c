// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// TestTelemetryChangesItsNamespace adds a Telemetry that selects metrics to one namespace. Nothing of
// the proxies of another namespace changes.
func TestTelemetryChangesItsNamespace(t *testing.T) {
	t.Parallel()
	const world = `kind: ServiceEntry
metadata: {name: shop, namespace: shop}
spec:
  hosts: [shop.test]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 8080, name: http, protocol: HTTP}]
  endpoints: [{address: 127.1.0.2, labels: {app: shop}}]
`
	const object = `---
kind: Telemetry
metadata: {name: metrics, namespace: shop}
spec: {metrics: [{providers: [{name: prometheus}]}]}
`
	g := New(Config{})
	versions := func(namespace, objects string) (out string) {
		mesh := snapshot.Build(nil, inputOf(decode(t, objects), &meshv1alpha1.MeshConfig{ProxyHttpPort: 15080, ExtensionProviders: meshconfig.Default().GetExtensionProviders()}), model.Change{All: true})
		proxy := proxyAt("127.1.0.2")
		proxy.Namespace = namespace
		for _, typeURL := range []string{xds.TypeCluster, xds.TypeEndpoint, xds.TypeListener, xds.TypeRoute} {
			for _, r := range g.Generate(mesh, proxy, typeURL).Resources {
				out += fmt.Sprintln(r.Name, r.Hash)
			}
		}
		return out
	}
	if before, after := versions("other", world), versions("other", world+object); before != after {
		t.Errorf("a proxy of another namespace changes (-before +after):\n%s", cmp.Diff(before, after))
	}
	if versions("shop", world) == versions("shop", world+object) {
		t.Error("the proxies of the namespace count nothing")
	}
}
