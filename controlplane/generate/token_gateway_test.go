// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"strings"
	"testing"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// TestGatewayTokens checks that a gateway validates tokens as long as an object says so.
func TestGatewayTokens(t *testing.T) {
	t.Parallel()
	const gateway = `
kind: Gateway
metadata: {name: edge, namespace: default}
spec:
  selector: {app: edge}
  servers:
  - {port: {number: 80, protocol: HTTP, name: http}, hosts: ["*"]}
`
	proxy := &model.Proxy{ID: "edge", Role: "router", Namespace: "default", IPs: []string{"192.0.2.1"}, Labels: map[string]string{"app": "edge"}}
	g := New(Config{})
	var mesh *snapshot.Mesh
	for _, step := range []struct{ name, object, want string }{
		{"none", "", ""},
		{"one", tokenRules("edge", ruleA), "envoy.filters.http.jwt_authn"},
		{"headers", tokenRules("edge", `{issuer: a, jwks: '{}', outputPayloadToHeader: x}`), "envoy.filters.http.header_mutation envoy.filters.http.jwt_authn"},
		{"places", tokenRules("edge", ruleA+`, {issuer: b, jwks: '{}', fromParams: [x]}`), "envoy.filters.http.jwt_authn.every envoy.filters.http.jwt_authn"},
		{"of others", strings.Replace(tokenRules("edge", ruleA), "{jwtRules", "{selector: {matchLabels: {app: other}}, jwtRules", 1), ""},
		{"none again", "", ""},
	} {
		text := gateway
		if step.object != "" {
			text += "---\n" + step.object
		}
		mesh = snapshot.Build(mesh, inputOf(decode(t, strings.TrimSpace(text)+"\n"), nil), model.Change{All: true})
		listeners := g.Generate(mesh, proxy, xds.TypeListener).Resources
		if len(listeners) != 1 {
			t.Fatalf("%s: %d listeners", step.name, len(listeners))
		}
		var hcm hcmv3.HttpConnectionManager
		chain := unpack(t, listeners[0]).(*listenerv3.Listener).GetFilterChains()[0]
		if err := chain.GetFilters()[len(chain.GetFilters())-1].GetTypedConfig().UnmarshalTo(&hcm); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range hcm.GetHttpFilters() {
			if strings.Contains(f.GetName(), "jwt_authn") || strings.Contains(f.GetName(), "header_mutation") {
				got = append(got, f.GetName())
			}
		}
		if text := strings.Join(got, " "); text != step.want {
			t.Errorf("%s: the filters are %q, want %q", step.name, text, step.want)
		}
	}
}
