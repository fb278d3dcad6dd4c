// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package gatewayapi

import (
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// TestServiceImports checks that a route leads to the host of the cluster set if the ServiceImport that
// it names is served there, and otherwise to the Service of the same name.
func TestServiceImports(t *testing.T) {
	t.Parallel()
	const text = `
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: NAME, namespace: shop}
spec:
  parentRefs: [{group: "", kind: Service, name: web}]
  rules: [{backendRefs: [{group: multicluster.x-k8s.io, kind: ServiceImport, name: NAME, port: 80}]}]
`
	hosts := map[string]string{
		"web": "web.shop.svc.cluster.local", "cart": "cart.shop.svc.cluster.local", "cart.clusterset": "cart.shop.svc.clusterset.local", "pay": "pay.shop.svc.cluster.local",
	}
	for name, want := range map[string]string{"cart": "host: cart.shop.svc.clusterset.local", "pay": "host: pay.shop.svc.cluster.local", "missing": "there is no ServiceImport shop/missing"} {
		in := input(t, strings.ReplaceAll(text, "NAME", name))
		in.Domain = "cluster.local"
		in.Service = func(namespace, name string) *model.Service {
			if hosts[name] == "" || namespace != "shop" {
				return nil
			}
			return &model.Service{ServiceKey: model.ServiceKey{Hostname: hosts[name], Namespace: namespace}, Ports: []model.Port{{Name: "http", Number: 80, Protocol: model.ProtocolHTTP}}}
		}
		if got := show(t, Convert(in)); !strings.Contains(got, want) {
			t.Errorf("%s: got\n%s\nwant %q", name, got, want)
		}
	}
}
