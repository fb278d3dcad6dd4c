// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package controlplane_test

import "github.com/outrigger-mesh/outrigger/controlplane/model"

// growthBases are specs of each kind that are in force together with the objects of world.
var growthBases = map[model.Kind]string{
	model.AuthorizationPolicy: `
selector: {matchLabels: {app: web}}
rules:
- from: [{source: {principals: [cluster.local/ns/default/sa/a], namespaces: [default], ipBlocks: [10.0.0.0/24]}}]
  to: [{operation: {hosts: [a.example.com], ports: ["80"], methods: [GET], paths: [/a]}}]
  when: [{key: "request.headers[x]", values: [a]}]`,
	model.BackendTLSPolicy: `
targetRefs: [{group: "", kind: Service, name: web}]
validation: {hostname: a.example.com, caCertificateRefs: [{group: "", kind: ConfigMap, name: ca}]}`,
	model.DestinationRule: `
host: web.default.svc.cluster.local
trafficPolicy:
  loadBalancer: {localityLbSetting: {distribute: [{from: a/b, to: {a: 100}}]}}
  connectionPool: {tcp: {maxConnections: 3}}
  portLevelSettings: [{port: {number: 80}, connectionPool: {tcp: {maxConnections: 3}}}]
  tls: {mode: SIMPLE, sni: a.example.com, subjectAltNames: [a.example.com]}
subsets: [{name: v1, labels: {version: v1}, trafficPolicy: {connectionPool: {tcp: {maxConnections: 3}}}}]
exportTo: ["*"]`,
	model.EnvoyFilter: `
workloadSelector: {labels: {app: web}}
configPatches:
- applyTo: HTTP_FILTER
  match: {context: SIDECAR_INBOUND, listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager}}}}
  patch: {operation: INSERT_BEFORE, value: {name: lua, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua, inlineCode: a}}}`,
	model.Gateway: `
selector: {app: edge}
servers:
- port: {number: 80, name: http, protocol: HTTP}
  hosts: [a.example.com]
- port: {number: 443, name: https, protocol: HTTPS}
  hosts: [b.example.com]
  tls: {mode: SIMPLE, credentialName: a}`,
	model.GatewayClass: `{controllerName: istio.io/gateway-controller, description: a}`,
	model.GRPCRoute: `
parentRefs: [{name: front}]
hostnames: [a.example.com]
rules:
- matches: [{method: {service: a.b, method: c}, headers: [{name: a, value: b}]}]
  filters: [{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: a, value: b}], remove: [c]}}]
  backendRefs: [{name: web, port: 80}]`,
	model.HTTPRoute: `
parentRefs: [{name: front}]
hostnames: [a.example.com]
rules:
- matches: [{path: {type: PathPrefix, value: /a}, headers: [{name: a, value: b}], queryParams: [{name: a, value: b}]}]
  filters: [{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: a, value: b}], add: [{name: c, value: b}], remove: [d]}}]
  backendRefs: [{name: web, port: 80}]`,
	model.Ingress: `
ingressClassName: istio
tls: [{hosts: [a.example.com], secretName: a}]
rules: [{host: a.example.com, http: {paths: [{path: /a, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}]`,
	model.IngressClass: `{controller: istio.io/ingress-controller}`,
	model.KubernetesGateway: `
gatewayClassName: istio
addresses: [{type: Hostname, value: edge.default.svc.cluster.local}]
listeners: [{name: http, port: 80, protocol: HTTP, hostname: a.example.com, allowedRoutes: {namespaces: {from: All}, kinds: [{kind: HTTPRoute}]}}]`,
	model.PeerAuthentication: `{selector: {matchLabels: {app: web}}, mtls: {mode: STRICT}, portLevelMtls: {"80": {mode: PERMISSIVE}}}`,
	model.ProxyConfig:        `{selector: {matchLabels: {app: web}}, environmentVariables: {A: b}}`,
	model.ReferenceGrant: `
from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: other}]
to: [{group: "", kind: Service, name: web}]`,
	model.RequestAuthentication: `
selector: {matchLabels: {app: web}}
jwtRules: [{issuer: a, jwksUri: "https://a.example.com/keys", audiences: [a], fromHeaders: [{name: a, prefix: b}], fromParams: [a], outputClaimToHeaders: [{header: a, claim: b}]}]`,
	model.ServiceEntry: `
hosts: [a.example.com]
addresses: [10.1.0.1]
location: MESH_INTERNAL
resolution: STATIC
ports: [{number: 80, name: http, protocol: HTTP}]
endpoints: [{address: 10.2.0.1, ports: {http: 8080}, labels: {app: big}, locality: a/b}]
subjectAltNames: [a]
exportTo: ["*"]`,
	model.Sidecar: `
workloadSelector: {labels: {app: web}}
ingress: [{port: {number: 80, name: http, protocol: HTTP}, defaultEndpoint: 127.0.0.1:8080}]
egress: [{port: {number: 8081, name: http, protocol: HTTP}, bind: 127.0.0.1, hosts: ["*/a.example.com"]}, {hosts: ["*/*"]}]`,
	model.ListenerSet: `
parentRef: {name: front, namespace: default}
listeners: [{name: a, port: 8080, protocol: HTTP, hostname: a.example.com, allowedRoutes: {namespaces: {from: Selector, selector: {matchLabels: {a: b}}}}}]`,
	model.TCPRoute: `
parentRefs: [{name: front, sectionName: tcp}]
rules: [{backendRefs: [{name: web, port: 9000}]}]`,
	model.Telemetry: `
selector: {matchLabels: {app: web}}
tracing: [{providers: [{name: a}], customTags: {a: {literal: {value: b}}}}]
metrics: [{providers: [{name: a}], overrides: [{match: {metric: ALL_METRICS}, tagOverrides: {a: {value: b}}}]}]
accessLogging: [{providers: [{name: a}], filter: {expression: a}}]`,
	model.TLSRoute: `
parentRefs: [{name: front, sectionName: tls}]
hostnames: [a.example.com]
rules: [{backendRefs: [{name: web, port: 443}]}]`,
	model.UDPRoute: `
parentRefs: [{name: front}]
rules: [{backendRefs: [{name: web, port: 9000}]}]`,
	model.VirtualService: `
hosts: [web.default.svc.cluster.local, a.example.com]
gateways: [mesh, public]
exportTo: ["*"]
http:
- name: a
  match: [{uri: {prefix: /a}, headers: {x: {exact: a}}, queryParams: {q: {exact: a}}, sourceLabels: {app: web}, gateways: [mesh, public]}]
  route: [{destination: {host: web.default.svc.cluster.local, subset: v1, port: {number: 80}}, weight: 1, headers: {request: {set: {a: b}, remove: [c]}}}]
  mirrors: [{destination: {host: web.default.svc.cluster.local}}]
  headers: {request: {set: {a: b}, add: {c: d}, remove: [e]}}
  corsPolicy: {allowOrigins: [{exact: "https://a.example.com"}], allowMethods: [GET], allowHeaders: [a]}
- name: b
  match: [{uri: {prefix: /b}}]
  route: [{destination: {host: web.default.svc.cluster.local}}]
tls:
- match: [{port: 443, sniHosts: [a.example.com], destinationSubnets: [10.0.0.0/24]}]
  route: [{destination: {host: web.default.svc.cluster.local, port: {number: 443}}, weight: 1}]
tcp:
- match: [{port: 9000, destinationSubnets: [10.0.0.0/24], sourceLabels: {app: web}}]
  route: [{destination: {host: web.default.svc.cluster.local, port: {number: 9000}}, weight: 1}]`,
	model.TrafficExtension: `
targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: a}]
match: [{mode: CLIENT, ports: [{number: 80}]}]
lua: {inlineCode: a}`,
	model.WasmPlugin: `
selector: {matchLabels: {app: web}}
url: "https://a.example.com/a.wasm"
pluginConfig: {a: b}
match: [{mode: CLIENT, ports: [{number: 80}]}]
vmConfig: {env: [{name: a, value: b}]}`,
	model.WorkloadEntry: `{address: 10.3.0.1, labels: {app: web}, ports: {http: 8080}, serviceAccount: a}`,
	model.WorkloadGroup: `
metadata: {labels: {app: web}, annotations: {a: b}}
template: {ports: {http: 8080}, labels: {app: web}, serviceAccount: a}
probe: {httpGet: {path: /a, port: 80, httpHeaders: [{name: a, value: b}]}}`,
}
