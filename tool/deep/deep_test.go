// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package deep

import (
	"fmt"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/controlplane/analyze"
	"github.com/outrigger-mesh/outrigger/e2e/envoytest"
)

// input are a workload, its Service, a Gateway and an EnvoyFilter for one selector: a script, and
// a patch of what is not there.
const input = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: app, image: a, ports: [{containerPort: 8080}]}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec: {selector: {app: edge}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ["*"]}]}
---
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: script, namespace: shop}
spec:
  workloadSelector: {labels: {app: %s}}
  configPatches:
  - applyTo: HTTP_FILTER
    match: {context: %s}
    patch:
      operation: INSERT_FIRST
      value:
        name: script
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua
          default_source_code: {inline_string: %q}
  - applyTo: CLUSTER
    match: {cluster: {name: absent}}
    patch: {operation: MERGE, value: {connect_timeout: 1s}}
`

// TestCheck validates the proxies of workloads, of gateways and of selectors with the real Envoy.
func TestCheck(t *testing.T) {
	t.Parallel()
	binary := envoytest.Binary(t)
	const broken = "function envoy_on_request(h) this is no Lua"
	for _, c := range []struct{ app, context, script, refused string }{
		{"web", "SIDECAR_INBOUND", "function envoy_on_request(h) end", ""},
		{"web", "SIDECAR_INBOUND", broken, "web.shop"},
		{"edge", "GATEWAY", broken, "selected-by-edge.shop"},
		{"other", "SIDECAR_OUTBOUND", broken, "selected-by-script.shop"},
		{"web", "SIDECAR_INBOUND", "while true do end", ""}, // it does not run
	} {
		t.Run(c.app+" "+c.script, func(t *testing.T) {
			t.Parallel()
			read := analyze.Read(nil, []analyze.File{{Source: "a.yaml", Data: fmt.Appendf(nil, input, c.app, c.context, c.script)}}, "", false)
			if len(read.Problems) > 0 {
				t.Fatal(read.Problems)
			}
			in := analyze.Input{Objects: read.Objects, Manifests: read.Manifests}
			in.Build(nil)
			got, err := Check(t.Context(), binary, in)
			if err != nil {
				t.Fatal(err)
			}
			if got.Proxies < 3 || got.Left > 0 || len(got.Problems) != 1 || !strings.HasPrefix(got.Problems[0].Reason, "spec.configPatches[1] (CLUSTER MERGE) changes nothing") {
				t.Errorf("the result is %+v", got)
			}
			if c.refused == "" && len(got.Refused) == 0 {
				return
			}
			if len(got.Refused) != 1 || got.Refused[0].Proxy != c.refused || !strings.Contains(got.Refused[0].Reason, "script load error") {
				t.Errorf("refused are %+v, want %s", got.Refused, c.refused)
			}
		})
	}
}
