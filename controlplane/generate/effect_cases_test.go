// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"testing"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// shownElsewhere maps fields whose effect no case can show to the test that shows it.
var shownElsewhere = map[string]string{
	"istio.networking.v1alpha3.SidecarPort.name":      "only users read the name",
	"istio.networking.v1alpha3.WorkloadEntry.network": "TestEndpointsByPlace: it needs networks of the mesh",
}

// effectCases show the effects of fields that no case of testdata sets for the proxy concerned.
// The files that they name do not exist.
func effectCases(t *testing.T) []testCase {
	t.Helper()
	sidecar := &model.Proxy{
		ID: "frontend.default", Role: "sidecar", IPs: []string{"127.77.64.2"}, Namespace: "default", ServiceAccount: "frontend",
		Domain: "default.svc.cluster.local", Labels: map[string]string{"app": "frontend"}, Interception: model.InterceptionRedirect,
	}
	edge := &model.Proxy{
		ID: "edge.default", Role: "router", IPs: []string{"127.77.64.3"}, Namespace: "default", ServiceAccount: "edge",
		Domain: "default.svc.cluster.local", Labels: map[string]string{"app": "edge", "gateway.networking.k8s.io/gateway-name": "edge"},
	}
	return []testCase{
		{name: "effects of a sidecar", objects: decode(t, effectServices+effectSidecar), mesh: meshconfig.Default(), proxy: sidecar},
		{name: "effects of a namespace", objects: decode(t, effectServices+effectDefault), mesh: meshconfig.Default(), proxy: sidecar},
		{name: "effects of a gateway", objects: decode(t, effectServices+effectGateway), mesh: meshconfig.Default(), proxy: edge},
	}
}

const effectServices = `
kind: ServiceEntry
metadata: {name: web, namespace: default}
spec:
  hosts: [web.test]
  addresses: [10.7.0.1]
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}, {number: 9000, name: tcp, protocol: TCP}, {number: 443, name: tls, protocol: TLS}]
  endpoints: [{address: 127.77.64.9, network: n1}]
`

const effectSidecar = `---
kind: ServiceEntry
metadata: {name: proxy, namespace: default}
spec:
  hosts: [proxy.test]
  resolution: STATIC
  ports: [{number: 3128, name: tcp, protocol: TCP}]
  endpoints: [{address: 127.77.64.8}]
---
kind: Sidecar
metadata: {name: frontend, namespace: default, creationTimestamp: "2021-01-01T00:00:00Z"}
spec:
  egress: [{hosts: ["./*"]}]
  outboundTrafficPolicy: {mode: ALLOW_ANY, egressProxy: {host: proxy.test, port: {number: 3128}}}
---
kind: Sidecar
metadata: {name: other, namespace: default, creationTimestamp: "2020-01-01T00:00:00Z"}
spec:
  workloadSelector: {labels: {app: other}}
  egress: [{hosts: ["~/*"]}]
  outboundTrafficPolicy: {mode: REGISTRY_ONLY}
---
kind: DestinationRule
metadata: {name: other, namespace: default}
spec:
  host: web.test
  workloadSelector: {matchLabels: {app: other}}
  trafficPolicy: {connectionPool: {tcp: {maxConnections: 7}}}
---
kind: DestinationRule
metadata: {name: web, namespace: default}
spec:
  host: web.test
  trafficPolicy:
    tls: {mode: MUTUAL, clientCertificate: /tls/cert, privateKey: /tls/key, caCertificates: /tls/roots, caCrl: /tls/crl}
---
kind: VirtualService
metadata: {name: web, namespace: default}
spec:
  hosts: [web.test]
  tcp:
  - match: [{port: 9000, sourceLabels: {app: other}}]
    route: [{destination: {host: proxy.test}}]
  - match: [{port: 9000, sourceNamespace: elsewhere}]
    route: [{destination: {host: proxy.test}}]
  tls:
  - match: [{port: 443, sniHosts: [web.test], sourceLabels: {app: other}}]
    route: [{destination: {host: proxy.test}}]
  - match: [{port: 443, sniHosts: [web.test], sourceNamespace: elsewhere}]
    route: [{destination: {host: proxy.test}}]
  - match: [{port: 443, sniHosts: [web.test], gateways: [default/edge]}]
    route: [{destination: {host: proxy.test}}]
---
kind: WasmPlugin
metadata: {name: one, namespace: default}
spec:
  url: oci://registry.test/one:1
  sha256: 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
  imagePullPolicy: Always
  imagePullSecret: pull
  failStrategy: FAIL_OPEN
  pluginName: name
  pluginConfig: {a: b}
  vmConfig: {env: [{name: A, value: b}, {name: C, valueFrom: HOST}]}
---
kind: TrafficExtension
metadata: {name: one, namespace: default}
spec:
  selector: {matchLabels: {app: other}}
  lua: {inlineCode: a}
---
kind: TrafficExtension
metadata: {name: two, namespace: default}
spec:
  match: [{ports: [{number: 9}]}]
  wasm:
    url: oci://registry.test/one:1
    sha256: 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
    imagePullPolicy: Always
    failStrategy: FAIL_OPEN
    pluginName: name
    vmConfig: {env: [{name: A, value: b}]}
---
kind: TrafficExtension
metadata: {name: three, namespace: default}
spec:
  wasm: {url: "oci://registry.test/one:1", type: NETWORK}
`

// effectDefault applies to the whole namespace.
const effectDefault = `---
kind: Sidecar
metadata: {name: all, namespace: default}
spec:
  egress: [{hosts: ["./*"]}]
  outboundTrafficPolicy: {mode: ALLOW_ANY}
`

const effectGateway = `---
kind: DestinationRule
metadata: {name: web, namespace: default}
spec:
  host: web.test
  trafficPolicy: {tls: {mode: SIMPLE, credentialName: roots}}
---
kind: Gateway
metadata: {name: edge, namespace: default}
spec:
  selector: {app: edge}
  servers:
  - hosts: [a.test]
    port: {number: 443, name: a, protocol: HTTPS}
    tls: {mode: MUTUAL, caCertificates: /tls/roots, caCrl: /tls/crl, tlsCertificates: [{serverCertificate: /tls/cert, privateKey: /tls/key}]}
---
kind: WasmPlugin
metadata: {name: one, namespace: default}
spec:
  url: file:///tls/one.wasm
  targetRef: {group: gateway.networking.k8s.io, kind: Gateway, name: edge}
---
kind: TrafficExtension
metadata: {name: one, namespace: default}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: other}]
  lua: {inlineCode: a}
`
