// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package gatewayapi

import (
	"fmt"
	"testing"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// many returns a Gateway and routes with four rules each. Each route has a different host.
func many(b *testing.B, routes int) Input {
	b.Helper()
	text := `
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: istio}
spec: {controllerName: istio.io/gateway-controller}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec: {gatewayClassName: istio, listeners: [{name: http, port: 80, protocol: HTTP, allowedRoutes: {namespaces: {from: All}}}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: cart, namespace: shop}
spec: {hosts: [cart.shop.svc.cluster.local], ports: [{name: http, number: 80, protocol: HTTP}], resolution: STATIC}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: cart, namespace: shop}
spec:
  parentRefs: [{name: edge}]
  rules:
  - matches: [{path: {value: /a}}, {path: {type: Exact, value: /b}, headers: [{name: x, value: y}]}]
    filters: [{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: X-A, value: "1"}]}}]
    backendRefs: [{name: cart, port: 80}]
  - matches: [{path: {value: /c}}]
    backendRefs: [{name: cart, port: 80}]
  - matches: [{path: {value: /d}}]
    backendRefs: [{name: cart, port: 80}]
  - backendRefs: [{name: cart, port: 80}]
`
	in := input(b, text)
	list := in.List
	one := list(model.HTTPRoute)[0]
	all := make([]*model.Config, routes)
	for i := range all {
		c := one.Clone()
		c.Name = fmt.Sprintf("cart-%d", i)
		if spec, ok := c.Spec.(*gatewayv1.HTTPRouteSpec); ok {
			spec.Hostnames = []gatewayv1.Hostname{gatewayv1.Hostname(fmt.Sprintf("cart-%d.example.com", i))}
		}
		all[i] = c
	}
	in.List = func(kind model.Kind) []*model.Config {
		if kind == model.HTTPRoute {
			return all
		}
		return list(kind)
	}
	return in
}

// BenchmarkConvert measures a change of one of 1000 routes, and a change without effect.
func BenchmarkConvert(b *testing.B) {
	in := many(b, 1000)
	for name, key := range map[string]model.Key{
		"route":     {Kind: model.HTTPRoute, Namespace: "shop", Name: "cart-0"},
		"unrelated": {Kind: model.KubernetesEndpoints, Namespace: "shop", Name: "cart"},
	} {
		b.Run(name, func(b *testing.B) {
			v := &View{}
			v.Update(in, model.Change{All: true})
			b.ResetTimer()
			for b.Loop() {
				v.Update(in, model.NewChange(key))
			}
		})
	}
}
