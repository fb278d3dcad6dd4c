// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"path/filepath"
	"strings"
	"testing"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

const gatewayAPIFile = `
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: istio}
spec: {controllerName: istio.io/gateway-controller}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec:
  gatewayClassName: istio
  addresses: [{type: IPAddress, value: 127.77.58.200}]
  listeners:
  - {name: http, port: 80, protocol: HTTP}
  - {name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: edge}]}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: cart, namespace: shop}
spec: {hosts: [cart.shop.svc.cluster.local], ports: [{name: http, number: 80, protocol: HTTP}], resolution: STATIC, endpoints: [{address: 127.77.58.201}]}
`

func routeFile(backend string) []byte {
	return []byte(`
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: cart, namespace: shop}
spec: {parentRefs: [{name: edge}], rules: [{backendRefs: [{name: ` + backend + `, port: 80}]}]}
`)
}

// resolved gives the reason of the condition ResolvedRefs of a route.
func (s *server) resolved(key model.Key) string {
	c := s.store.Get(key)
	if c == nil {
		return ""
	}
	status, _ := c.Status.(*gatewayv1.HTTPRouteStatus)
	if status == nil || len(status.Parents) != 1 {
		return ""
	}
	for _, c := range status.Parents[0].Conditions {
		if c.Type == string(gatewayv1.RouteConditionResolvedRefs) {
			return c.Reason
		}
	}
	return ""
}

// Objects of the Gateway API in a directory become Gateways and VirtualServices
// beside those of the store, their status is written, and follows a change.
func TestGatewayAPIFromFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	route := filepath.Join(dir, "route.yaml")
	write(t, map[string][]byte{filepath.Join(dir, "edge.yaml"): []byte(gatewayAPIFile), route: routeFile("nobody")})
	s := serve(t, []string{"--configDir", dir}, nil)
	key := model.Key{Kind: model.HTTPRoute, Namespace: "shop", Name: "cart"}
	waitUntil(t, "the route says what is missing", func() bool { return s.resolved(key) == "BackendNotFound" })
	write(t, map[string][]byte{route: routeFile("cart")})
	waitUntil(t, "the route says that all is there", func() bool { return s.resolved(key) == "ResolvedRefs" })
	result := s.conversion.view.Result()
	if g := result.Objects[model.Gateway]; len(g) != 1 || !strings.HasSuffix(g[0].Name, "-http") {
		t.Errorf("the Gateways are %v, want that of the listener http: no Secrets are read", g)
	}
	gateway, _ := s.store.Get(model.Key{Kind: model.KubernetesGateway, Namespace: "shop", Name: "edge"}).Status.(*gatewayv1.GatewayStatus)
	if gateway == nil || len(gateway.Listeners) != 2 || gateway.Listeners[0].AttachedRoutes != 1 || len(gateway.Addresses) != 1 {
		t.Errorf("the status of the Gateway is %+v", gateway)
	}
	if made := s.list(model.VirtualService); len(made) != 1 || s.get(made[0].Key) != made[0] {
		t.Errorf("the VirtualServices are %v, want one, of the listener that is served", made)
	}
}

func TestGatewayAPIOff(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, map[string][]byte{filepath.Join(dir, "edge.yaml"): []byte(gatewayAPIFile), filepath.Join(dir, "route.yaml"): routeFile("cart")})
	s := serve(t, []string{"--configDir", dir}, map[string]string{"PILOT_ENABLE_GATEWAY_API": "false"})
	waitUntil(t, "the first snapshot", s.discovery.Ready)
	if got := s.list(model.VirtualService); len(got) != 0 {
		t.Errorf("switched off, there are %d VirtualServices", len(got))
	}
}
