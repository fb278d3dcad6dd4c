// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// twoServices are two services of one workload.
const twoServices = `
kind: Sidecar
metadata: {name: app, namespace: default}
spec:
  ingress:
  - {port: {number: PORT_HTTP, protocol: HTTP, name: http}, defaultEndpoint: "127.0.0.1:PORT_APP"}
  - {port: {number: PORT_TLS, protocol: HTTP, name: other}, defaultEndpoint: "127.0.0.1:PORT_APP"}
---
kind: ServiceEntry
metadata: {name: web, namespace: default}
spec:
  hosts: [web.example.com]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: ADDRESS, ports: {http: PORT_HTTP}}]
---
kind: ServiceEntry
metadata: {name: other, namespace: default}
spec:
  hosts: [other.example.com]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: ADDRESS, ports: {http: PORT_TLS}}]
`

// TestTokensOfService sends requests to the services of a workload, of which a RequestAuthentication
// names one.
func TestTokensOfService(t *testing.T) {
	t.Parallel()
	const address = "127.77.62.2"
	const web = "targetRefs: [{group: networking.istio.io, kind: ServiceEntry, name: web}]"
	v := newTokens(t).in([]verdict{{"service", strings.Replace(tokenRules("web", ruleA), "{jwtRules", "{"+web+", jwtRules", 1) +
		"---\nkind: AuthorizationPolicy\nmetadata: {name: web, namespace: default}\nspec: {" + web + `, action: DENY, rules: [{from: [{source: {notRequestPrincipals: ["` + issuerA + `/ann"]}}]}]}` +
		"\n---\n" + tokenRules("all", ruleB), `
		200 GET / | Authorization: Bearer <ann>
		403 GET / | Authorization: Bearer <bob>
		403 GET / | Authorization: Bearer <b>
		403 GET /
		401 GET / | Authorization: Bearer <wrong-key>
		200 GET / | port tls
		200 GET / | port tls | Authorization: Bearer <b>
		401 GET / | port tls | Authorization: Bearer <ann>
	`}})[0]
	c := newCourtOf(t, address, []guardedProxy{{
		verdict: v, settings: &snapshot.Input{Mesh: meshconfig.Default()}, objects: strings.ReplaceAll(twoServices, "ADDRESS", address), proxy: proxyAt(address),
	}})
	c.check(t, 0, v)
}
