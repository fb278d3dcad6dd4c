// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"strings"
	"testing"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
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

// claimRoutes are a gateway whose routes depend on the claims of tokens.
const claimRoutes = `
kind: Gateway
metadata: {name: edge, namespace: default}
spec:
  selector: {app: edge}
  servers:
  - {port: {number: PORT_HTTP, protocol: HTTP, name: http}, bind: ADDRESS, hosts: ["*"]}
---
kind: VirtualService
metadata: {name: edge, namespace: default}
spec:
  hosts: ["*"]
  gateways: [edge]
  http:
  - match:
    - {uri: {exact: /text}, headers: {"@request.auth.claims.group": {exact: admin}}}
    - {uri: {exact: /prefix}, headers: {"@request.auth.claims.group": {prefix: adm}}}
    - {uri: {exact: /regex}, headers: {"@request.auth.claims.group": {regex: "adm.+"}}}
    - {uri: {exact: /present}, headers: {"@request.auth.claims.group": {regex: "*"}}}
    - {uri: {exact: /list}, headers: {"@request.auth.claims.groups": {exact: ops}}}
    - {uri: {exact: /nested}, headers: {"@request.auth.claims.realm.name": {exact: main}}}
    - {uri: {exact: /brackets}, headers: {"@request.auth.claims[realm][roles]": {exact: writer}}}
    - {uri: {exact: /url}, headers: {"@request.auth.claims[https://x.example/role]": {exact: boss}}}
    - {uri: {exact: /spaces}, headers: {"@request.auth.claims.scope": {exact: write}}}
    - {uri: {exact: /more-spaces}, headers: {"@request.auth.claims.rights": {exact: "y"}}}
    - {uri: {exact: /both}, headers: {"@request.auth.claims.group": {exact: admin}, "@request.auth.claims.sub": {exact: ann}}}
    - {uri: {exact: /half}, headers: {"@request.auth.claims.group": {exact: admin}, "@request.auth.claims.sub": {exact: bob}}}
    - {uri: {exact: /other}, headers: {"@request.auth.claims.group": {exact: guest}}}
    directResponse: {status: 201}
  - match: [{uri: {exact: /without}, withoutHeaders: {"@request.auth.claims.group": {exact: admin}}}]
    directResponse: {status: 202}
  - directResponse: {status: 204}
`

// TestClaimRoutes sends requests to a gateway whose routes depend on claims.
func TestClaimRoutes(t *testing.T) {
	t.Parallel()
	const address = "127.77.62.1"
	v := verdict{"claims", tokenRules("edge", strings.TrimSuffix(ruleA, "}")+`, spaceDelimitedClaims: [rights]}`), `
		204 GET /text
		204 GET /text | Authorization: Bearer <bob>
		401 GET /text | Authorization: Bearer <wrong-key>
		401 GET /text | Authorization: Bearer <expired>
		401 GET / | Authorization: Bearer <none>
		204 GET / | Authorization: Bearer <claims>
		204 GET /half | Authorization: Bearer <claims>
		204 GET /other | Authorization: Bearer <claims>
		202 GET /without
		202 GET /without | Authorization: Bearer <bob>
		204 GET /without | Authorization: Bearer <claims>
	`}
	for _, path := range []string{"text", "prefix", "regex", "present", "list", "nested", "brackets", "url", "spaces", "more-spaces", "both"} {
		v.requests += "201 GET /" + path + " | Authorization: Bearer <claims>\n204 GET /" + path + "\n"
	}
	v = newTokens(t).in([]verdict{v})[0]
	c := newCourtOf(t, address, []guardedProxy{{
		verdict: v, settings: &snapshot.Input{Mesh: meshconfig.Default()}, objects: strings.ReplaceAll(claimRoutes, "ADDRESS", address),
		proxy: &model.Proxy{ID: "edge.default", Role: "router", IPs: []string{address}, Namespace: "default", ServiceAccount: "edge", Labels: map[string]string{"app": "edge"}},
	}})
	c.check(t, 0, v)
}
