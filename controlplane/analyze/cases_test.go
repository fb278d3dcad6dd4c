// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package analyze

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// mistake is a text with a mistake, or without one if it says nothing, beside base.yaml.
type mistake struct{ text, code, says string }

const networking, security, api = "networking.istio.io/v1", "security.istio.io/v1", "gateway.networking.k8s.io/v1"

func object(group, kind, spec string) string {
	return "apiVersion: " + group + "\nkind: " + kind + "\nmetadata: {name: a, namespace: shop}\nspec: " + spec + "\n"
}

func entry(namespace, spec string) string {
	return "apiVersion: " + networking + "\nkind: ServiceEntry\nmetadata: {name: a, namespace: " + namespace + "}\nspec: " + spec + "\n---\n"
}

func route(spec string) string { return object(networking, "VirtualService", spec) }

func policy(spec string) string { return object(security, "AuthorizationPolicy", spec) }

// findCases analyzes mistakes.
func findCases(t *testing.T, cases map[string]mistake) {
	t.Helper()
	base, err := os.ReadFile(filepath.Join("testdata", "base.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			read := Read(nil, []File{{"base.yaml", base}, {"case.yaml", []byte(c.text)}}, "", false)
			in := Input{Objects: read.Objects, Problems: read.Problems, Manifests: read.Manifests}
			in.Build(nil)
			r := Run(in)
			found := slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Code == c.code && strings.Contains(f.Message, c.says) })
			if found != (c.says != "") {
				t.Errorf("found is %v:\n%s", found, golden(r))
			}
		})
	}
}

// TestCases plants further mistakes of codes that TestChecks covers once.
func TestCases(t *testing.T) {
	t.Parallel()
	const gateway = "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: edge, namespace: shop}\nspec: {gatewayClassName: istio, listeners: [{name: http, port: 80, protocol: HTTP}]}\n---\n"
	const edge = "apiVersion: v1\nkind: Service\nmetadata: {name: edge, namespace: shop}\nspec: {selector: {app: edge}, ports: [{name: http-web, port: 80, targetPort: 8080}]}\n---\n" +
		"apiVersion: v1\nkind: Pod\nmetadata: {name: edge, namespace: shop, labels: {app: edge}}\nspec: {containers: [{name: app, image: a}]}\n---\n"
	analyzed := func(reason string) string {
		return object(networking, "VirtualService", "{hosts: [web], http: [{route: [{destination: {host: web}}], match: [{uri: {prefix: \"\"}}]}]}") +
			"status: {conditions: [{type: PassedAnalysis, status: \"False\", reason: ProblemsFound, message: \"" + reason + "\"}]}\n"
	}
	const claims = "{hosts: [x.example.com], gateways: [a], http: [{match: [{headers: {\"@request.auth.claims.group\": {exact: a}}}], route: [{destination: {host: web}}]}]}"
	const twoProtocols = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: plain, namespace: shop}\nspec: {template: {metadata: {labels: {app: plain}, annotations: ANNOTATIONS}, spec: {containers: [{name: a, image: a}]}}}\n---\n" +
		"apiVersion: v1\nkind: Service\nmetadata: {name: h, namespace: shop}\nspec: {selector: {app: plain}, ports: [{name: http, port: 80}]}\n---\napiVersion: v1\nkind: Service\nmetadata: {name: t, namespace: shop}\nspec: {selector: {app: plain}, ports: [{name: tcp, port: 80}]}\n"
	strict := object(security, "PeerAuthentication", "{mtls: {mode: STRICT}}") + "---\n"
	findCases(t, map[string]mistake{
		"a Gateway that is no target":    {object(security, "AuthorizationPolicy", "{targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: gone}]}"), "IST0101", "there is no Gateway shop/gone"},
		"a Gateway that is a target":     {gateway + object(security, "AuthorizationPolicy", "{targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: edge}]}"), "IST0101", ""},
		"a Service that is no target":    {object(security, "AuthorizationPolicy", "{targetRefs: [{group: \"\", kind: Service, name: gone}]}"), "IST0101", "there is no Service shop/gone"},
		"a subset with plaintext":        {strict + object(networking, "DestinationRule", "{host: web, subsets: [{name: v1, labels: {version: v1}, trafficPolicy: {tls: {mode: DISABLE}}}]}"), "IST0113", "spec.subsets[0].trafficPolicy: the TLS mode"},
		"another subset with plaintext":  {strict + object(networking, "DestinationRule", "{host: web, subsets: [{name: v1, labels: {version: v2}, trafficPolicy: {tls: {mode: DISABLE}}}]}"), "IST0113", ""},
		"a subset that no rule has":      {object(networking, "VirtualService", "{hosts: [web], http: [{route: [{destination: {host: web, subset: v9}}]}]}"), "IST0101", `has the subset "v9"`},
		"a Gateway that is missing":      {object(networking, "VirtualService", "{hosts: [web], gateways: [gone], http: [{route: [{destination: {host: web}}]}]}"), "IST0101", "there is no Gateway shop/gone"},
		"a selector of a Gateway":        {object(networking, "Gateway", "{selector: {app: gone}, servers: [{port: {number: 80, name: h, protocol: HTTP}, hosts: [\"*\"]}]}"), "IST0101", "no workload has the labels app=gone"},
		"a parent that is missing":       {gateway + object(api, "HTTPRoute", "{parentRefs: [{name: gone}], rules: [{backendRefs: [{name: web, port: 80}]}]}"), "IST0101", "there is no Gateway shop/gone"},
		"a backend that is missing":      {gateway + object(api, "HTTPRoute", "{parentRefs: [{name: edge}], rules: [{backendRefs: [{name: gone, port: 80}]}]}"), "IST0101", "there is no Service shop/gone"},
		"an Ingress":                     {object("networking.k8s.io/v1", "Ingress", "{defaultBackend: {service: {name: gone, port: {number: 80}}}}"), "IST0101", `there is no Service "gone"`},
		"a port of an Ingress":           {object("networking.k8s.io/v1", "Ingress", "{defaultBackend: {service: {name: web, port: {number: 81}}}}"), "OUT0007", "has no port 81"},
		"a mirror":                       {object(networking, "VirtualService", "{hosts: [web], http: [{route: [{destination: {host: web}}], mirrors: [{destination: {host: gone}}]}]}"), "IST0101", "spec.http[0].mirrors[0].destination.host"},
		"a route of TCP":                 {object(networking, "VirtualService", "{hosts: [web], tcp: [{route: [{destination: {host: gone}}]}]}"), "IST0101", "spec.tcp[0].route[0].destination.host"},
		"a delegate":                     {object(networking, "VirtualService", "{hosts: [web], http: [{delegate: {name: gone}}]}"), "IST0101", "there is no VirtualService shop/gone"},
		"a provider":                     {object(security, "AuthorizationPolicy", "{action: CUSTOM, provider: {name: gone}, rules: [{}]}"), "IST0101", `no extension provider "gone"`},
		"a namespace of a source":        {"apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n---\n" + object(security, "AuthorizationPolicy", "{rules: [{from: [{source: {namespaces: [gone]}}]}]}"), "IST0101", `no namespace "gone"`},
		"a port of a rule":               {object(networking, "DestinationRule", "{host: web, trafficPolicy: {portLevelSettings: [{port: {number: 81}, connectionPool: {tcp: {maxConnections: 1}}}]}}"), "OUT0007", "has no port 81"},
		"a policy of a dry run":          {strings.Replace(object(security, "AuthorizationPolicy", "{action: DENY, rules: [{}]}"), "{name: a", "{annotations: {istio.io/dry-run: \"true\"}, name: a", 1), "OUT0002", ""},
		"a List":                         {"apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Service\n  metadata: {name: more, namespace: shop}\n  spec: {ports: [{name: x, port: 80}]}\n", "IST0118", `The name "x"`},
		"a port that is translated":      {edge + object(networking, "Gateway", "{selector: {app: edge}, servers: [{port: {number: 80, name: h, protocol: HTTP}, hosts: [\"*\"]}]}"), "IST0162", ""},
		"a port that is not":             {strings.Replace(edge, "name: edge", "labels: {experimental.istio.io/disable-gateway-port-translation: \"true\"}, name: edge", 1) + object(networking, "Gateway", "{selector: {app: edge}, servers: [{port: {number: 80, name: h, protocol: HTTP}, hosts: [\"*\"]}]}"), "IST0162", "the port 80"},
		"a problem of its own":           {analyzed("spec.http[0].match[0].uri.prefix is empty and matches every path: write a prefix, or remove uri; and 1 more"), "IST0171", ""},
		"a problem of the past":          {analyzed("was false"), "IST0171", "was false"},
		"a disabled revision":            {"apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {istio-injection: disabled, istio.io/rev: new}}\n", "IST0123", ""},
		"a port of Istio":                {"apiVersion: v1\nkind: Service\nmetadata: {name: edge, namespace: istio-system}\nspec: {ports: [{name: status, port: 15021}]}\n", "IST0118", ""},
		"private entries":                {entry("shop", "{hosts: [x.example.com], exportTo: [.], ports: [{number: 80, name: p, protocol: HTTP}]}") + entry("other", "{hosts: [x.example.com], exportTo: [.], ports: [{number: 80, name: p, protocol: TCP}]}"), "IST0177", ""},
		"a private and a public entry":   {entry("shop", "{hosts: [x.example.com], exportTo: [.], ports: [{number: 80, name: p, protocol: HTTP}]}") + entry("other", "{hosts: [x.example.com], ports: [{number: 80, name: p, protocol: TCP}]}"), "IST0177", "is HTTP here and TCP in the older ServiceEntry other/a"},
		"an entry without a protocol":    {entry("other", "{hosts: [x.example.com], ports: [{number: 80, name: p, protocol: HTTP}]}") + entry("shop", "{hosts: [x.example.com], ports: [{number: 80, name: p}]}"), "IST0177", "without a protocol"},
		"a namespace of a principal":     {"apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n---\n" + object(security, "AuthorizationPolicy", "{rules: [{from: [{source: {principals: [cluster.local/ns/gone/sa/x]}}]}]}"), "IST0101", `source.principals: there is no namespace "gone"`},
		"a principal of elsewhere":       {"apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n---\n" + object(security, "AuthorizationPolicy", "{rules: [{from: [{source: {principals: [other.example/ns/gone/sa/x, cluster.local/ns/shop/sa/x]}}]}]}"), "IST0101", ""},
		"an excluded namespace":          {"apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n---\n" + object(security, "AuthorizationPolicy", "{rules: [{from: [{source: {notNamespaces: [gone]}}]}]}"), "IST0101", `source.notNamespaces: there is no namespace "gone"`},
		"an image without injection":     {"apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n---\n" + object("apps/v1", "Deployment", "{template: {metadata: {labels: {app: a}}, spec: {containers: [{name: istio-proxy, image: auto}]}}}"), "IST0146", "no label asks for injection"},
		"a class of a Pod":               {"apiVersion: v1\nkind: Pod\nmetadata: {name: more, namespace: shop, annotations: {kubernetes.io/ingress.class: istio}}\nspec: {containers: [{name: app, image: a}]}\n", "IST0107", "kubernetes.io/ingress.class has no effect on a Pod"},
		"a route behind all paths":       {object(networking, "VirtualService", "{hosts: [web], http: [{match: [{uri: {prefix: /}}], route: [{destination: {host: web}}]}, {route: [{destination: {host: web}}]}]}"), "IST0130", "spec.http[1] is never reached"},
		"a route behind a path":          {object(networking, "VirtualService", "{hosts: [web], http: [{match: [{uri: {prefix: /a}}], route: [{destination: {host: web}}]}, {route: [{destination: {host: web}}]}]}"), "IST0130", ""},
		"claims without a gateway":       {object(networking, "Gateway", "{selector: {app: elsewhere}, servers: [{port: {number: 80, name: h, protocol: HTTP}, hosts: [x.example.com]}]}") + "---\n" + route(claims), "IST0149", "selects the workloads of the Gateway shop/a"},
		"claims that are verified":       {object(networking, "Gateway", "{selector: {app: elsewhere}, servers: [{port: {number: 80, name: h, protocol: HTTP}, hosts: [x.example.com]}]}") + "---\n" + route(claims) + "---\n" + strings.Replace(object(security, "RequestAuthentication", "{selector: {matchLabels: {app: elsewhere}}, jwtRules: [{issuer: a, jwks: '{\"keys\":[]}'}]}"), "shop}", "istio-system}", 1), "IST0149", ""},
		"a Secret of an unknown place":   {"apiVersion: v1\nkind: Secret\nmetadata: {name: c, namespace: far}\n---\n" + object(networking, "Gateway", "{selector: {app: elsewhere}, servers: [{port: {number: 443, name: h, protocol: HTTPS}, hosts: [a.example.com], tls: {mode: SIMPLE, credentialName: c}}]}"), "IST0161", "credential far/c"},
		"namespaces that nobody writes":  {"apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n---\n" + policy("{rules: [{from: [{source: {namespaces: [kube-system, \"sh*\"], principals: [cluster.local/ns/default/sa/x]}}]}]}"), "IST0101", ""},
		"a pattern of namespaces":        {"apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n---\n" + policy("{rules: [{from: [{source: {namespaces: [\"*-gone\"]}}]}]}"), "IST0101", `there is no namespace "*-gone"`},
		"a class of a Namespace":         {"apiVersion: v1\nkind: Namespace\nmetadata: {name: more, annotations: {kubernetes.io/ingress.class: istio}}\n", "IST0107", "no effect on a Namespace"},
		"an empty namespace":             {strings.Replace(policy("{rules: [{}]}"), "shop", "far", 1), "IST0127", "No workload is in the namespace far"},
		"Services of a plain workload":   {strings.Replace(twoProtocols, "ANNOTATIONS", "{sidecar.istio.io/inject: \"false\"}", 1), "IST0116", ""},
		"Services of a workload":         {strings.Replace(twoProtocols, "ANNOTATIONS", "{}", 1), "IST0116", "as HTTP and as TCP"},
		"a wildcard host with plaintext": {strict + object(networking, "DestinationRule", "{host: \"*.local\", trafficPolicy: {tls: {mode: DISABLE}}}"), "IST0113", "port 80 of \"web.shop.svc.cluster.local\" is DISABLE"},
		"a subset without verification":  {object(networking, "DestinationRule", "{host: web, subsets: [{name: a, trafficPolicy: {portLevelSettings: [{port: {number: 80}, tls: {mode: SIMPLE, insecureSkipVerify: true}}]}}]}"), "IST0129", "spec.subsets[0].trafficPolicy.portLevelSettings[0].tls"},
		"routes for a common namespace":  {strings.Replace(route("{hosts: [x.example.com], exportTo: [., far], http: [{route: [{destination: {host: web.shop.svc.cluster.local}}]}]}"), "shop", "other", 1) + "---\n" + route("{hosts: [x.example.com], exportTo: [., far], http: [{route: [{destination: {host: web}}]}]}"), "IST0109", "x.example.com"},
		"routes for two namespaces":      {strings.Replace(route("{hosts: [x.example.com], exportTo: [., far], http: [{route: [{destination: {host: web.shop.svc.cluster.local}}]}]}"), "shop", "other", 1) + "---\n" + route("{hosts: [x.example.com], exportTo: [., near], http: [{route: [{destination: {host: web}}]}]}"), "IST0109", ""},
		"a log that is disabled":         {object("telemetry.istio.io/v1", "Telemetry", "{accessLogging: [{disabled: true}]}"), "IST0157", ""},
		"a log without a provider":       {object("telemetry.istio.io/v1", "Telemetry", "{accessLogging: [{match: {mode: SERVER}}]}"), "IST0157", "spec.accessLogging[0]"},
		"an object that is no Pod":       {"apiVersion: v1\nkind: Pod\nmetadata: {name: more, namespace: shop}\nspec: {containers: 1}\n", "IST0106", "the object cannot be read"},
	})
}

// TestRefusals checks policies that deny all requests of a workload together.
func TestRefusals(t *testing.T) {
	t.Parallel()
	findCases(t, map[string]mistake{
		"all ports denied":              {policy("{action: DENY, rules: [{to: [{operation: {ports: [\"8080\"]}}]}]}"), "OUT0020", "spec.rules together deny every request to shop/web."},
		"some ports denied":             {policy("{action: DENY, rules: [{to: [{operation: {ports: [\"8081\"]}}]}]}"), "OUT0020", ""},
		"all methods denied":            {policy("{action: DENY, rules: [{to: [{operation: {methods: [GET, HEAD, POST]}}]}, {to: [{operation: {notMethods: [POST, GET]}}, {operation: {methods: [P*]}}]}]}"), "OUT0020", "together"},
		"some methods denied":           {policy("{action: DENY, rules: [{to: [{operation: {methods: [GET, HEAD, POST]}}]}, {to: [{operation: {notMethods: [POST, PUT]}}]}]}"), "OUT0020", ""},
		"all methods of clients denied": {policy("{action: DENY, rules: [{from: [{source: {namespaces: [b]}}], to: [{operation: {methods: [GET]}}]}, {to: [{operation: {notMethods: [GET]}}]}]}"), "OUT0020", ""},
		"all hosts denied":              {policy("{action: DENY, rules: [{to: [{operation: {hosts: [\"*.Example.com\"], paths: [\"*\"]}}, {operation: {notHosts: [\"*.example.com\"]}}]}]}"), "OUT0020", "together"},
		"a template":                    {policy("{action: DENY, rules: [{to: [{operation: {paths: [\"/a/{*}\"]}}, {operation: {notPaths: [\"/a/{*}\"]}}]}]}"), "OUT0020", ""},
		"prefixes and suffixes":         {policy("{action: DENY, rules: [{to: [{operation: {notPaths: [\"/a*\"]}}, {operation: {paths: [\"*z\", /a]}}, {operation: {paths: [\"/a*\"], notPaths: [\"*z\"]}}]}]}"), "OUT0020", "together"},
		"a suffix is left":              {policy("{action: DENY, rules: [{to: [{operation: {notPaths: [\"/a*\"]}}, {operation: {paths: [\"/a*\"], notPaths: [\"*z\"]}}]}]}"), "OUT0020", ""},
		"a port that nobody has":        {policy("{rules: [{to: [{operation: {ports: [\"9999\"]}}]}]}"), "OUT0020", "spec.rules allows no request to shop/web at the ports 8080"},
		"a port beside another rule":    {policy("{rules: [{to: [{operation: {ports: [\"9999\"]}}]}, {to: [{operation: {ports: [\"8080\"], methods: [GET]}}]}]}"), "OUT0020", ""},
		"what is allowed is denied":     {policy("{rules: [{to: [{operation: {paths: [/a, /b]}}]}]}") + "---\n" + strings.Replace(policy("{action: DENY, rules: [{to: [{operation: {paths: [\"/*\"], notPaths: [/c]}}]}]}"), "name: a", "name: b", 1), "OUT0020", "The policies shop/b, shop/a together deny every request to shop/web."},
		"some of it is denied":          {policy("{rules: [{to: [{operation: {paths: [/a, /b]}}]}]}") + "---\n" + strings.Replace(policy("{action: DENY, rules: [{to: [{operation: {paths: [/a]}}]}]}"), "name: a", "name: b", 1), "OUT0020", ""},
		"an unknown authorizer":         {policy("{action: CUSTOM, provider: {name: gone}, rules: [{}]}"), "OUT0020", `no extension provider "gone". What the rules match is denied`},
		"one for some paths":            {policy("{action: CUSTOM, provider: {name: gone}, rules: [{to: [{operation: {paths: [/a]}}]}]}"), "OUT0020", ""},
	})
}

// TestDestinations checks the hosts of routes, as the proxies that follow them see them.
func TestDestinations(t *testing.T) {
	t.Parallel()
	const distant = "apiVersion: " + networking + "\nkind: Gateway\nmetadata: {name: edge, namespace: far}\nspec: {selector: {app: edge}, servers: [{port: {number: 80, name: h, protocol: HTTP}, hosts: [\"*/*\"]}]}\n---\n" +
		"apiVersion: v1\nkind: Pod\nmetadata: {name: edge, namespace: far, labels: {app: edge}}\nspec: {containers: [{name: app, image: a}]}\n---\n"
	findCases(t, map[string]mistake{
		"a host of another namespace":  {entry("other", "{hosts: [x.example.com], exportTo: [.], ports: [{number: 80, name: p, protocol: HTTP}]}") + route("{hosts: [x.example.com], http: [{route: [{destination: {host: x.example.com}}]}]}"), "IST0101", "that the namespace shop sees has the host"},
		"a host exported to it":        {entry("other", "{hosts: [x.example.com], exportTo: [shop], ports: [{number: 80, name: p, protocol: HTTP}]}") + route("{hosts: [x.example.com], http: [{route: [{destination: {host: x.example.com}}]}]}"), "IST0101", ""},
		"a route exported elsewhere":   {entry("shop", "{hosts: [x.example.com], exportTo: [.], ports: [{number: 80, name: p, protocol: HTTP}]}") + route("{hosts: [x.example.com], exportTo: [., far], http: [{route: [{destination: {host: x.example.com}}]}]}"), "IST0101", "that the namespace far sees"},
		"a gateway elsewhere":          {distant + entry("shop", "{hosts: [x.example.com], exportTo: [.], ports: [{number: 80, name: p, protocol: HTTP}]}") + route("{hosts: [x.example.com], gateways: [far/edge], http: [{route: [{destination: {host: x.example.com}}]}]}"), "IST0101", "that the namespace far sees"},
		"a host for a gateway only":    {distant + entry("shop", "{hosts: [x.example.com], exportTo: [far], ports: [{number: 80, name: p, protocol: HTTP}]}") + route("{hosts: [x.example.com], gateways: [far/edge], http: [{route: [{destination: {host: x.example.com}}]}]}"), "IST0101", ""},
		"a delegate for a gateway":     {distant + entry("shop", "{hosts: [x.example.com], exportTo: [far], ports: [{number: 80, name: p, protocol: HTTP}]}") + strings.Replace(route("{hosts: [x.example.com], gateways: [far/edge], http: [{delegate: {name: a}}]}"), "name: a", "name: root", 1) + "---\n" + route("{http: [{route: [{destination: {host: x.example.com}}]}]}"), "IST0101", ""},
		"a delegate to nobody":         {strings.Replace(route("{hosts: [web], http: [{delegate: {name: a}}]}"), "name: a", "name: root", 1) + "---\n" + route("{http: [{route: [{destination: {host: gone}}]}]}"), "IST0101", `no service has the host "gone.shop.svc.cluster.local"`},
		"a subset for another gateway": {distant + object(networking, "DestinationRule", "{host: web, exportTo: [.], subsets: [{name: v1, labels: {version: v1}}]}") + "---\n" + route("{hosts: [web], gateways: [mesh, far/edge], http: [{route: [{destination: {host: web, subset: v1}}]}]}"), "IST0101", `no DestinationRule that the namespace far sees for "web.shop.svc.cluster.local" has the subset "v1"`},
		"a wildcard host":              {entry("other", "{hosts: [\"*.example.com\"], ports: [{number: 443, name: p, protocol: TLS}]}") + route("{hosts: [\"*.example.com\"], tls: [{match: [{sniHosts: [\"*.example.com\"]}], route: [{destination: {host: \"*.example.com\"}}]}]}"), "IST0101", ""},
		"a route of TLS":               {route("{hosts: [x.example.com], tls: [{match: [{sniHosts: [x.example.com]}], route: [{destination: {host: gone}}]}]}"), "IST0101", "spec.tls[0].route[0].destination.host"},
		"a mirror of requests":         {route("{hosts: [web], http: [{route: [{destination: {host: web}}], mirror: {host: gone.shop.svc.cluster.local}}]}"), "IST0101", "spec.http[0].mirror.host"},
		"a name with its namespace":    {route("{hosts: [web], http: [{route: [{destination: {host: web.shop}}]}]}"), "IST0101", `no service has the host "web.shop"`},
		"hosts that are there":         {route("{hosts: [web], http: [{route: [{destination: {host: web}}], mirror: {host: web.shop.svc.cluster.local}, mirrors: [{destination: {host: web}}]}], tcp: [{route: [{destination: {host: web}}]}]}"), "IST0101", ""},
	})
}

// TestUnchecked checks that an analysis names the checks that its input is too small for.
func TestUnchecked(t *testing.T) {
	t.Parallel()
	const text = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: a}\nspec: {hosts: [web], gateways: [edge], http: [{route: [{destination: {host: web, subset: v1}}]}]}\n" +
		"---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: a}\nspec: {selector: {matchLabels: {app: web}}, action: CUSTOM, provider: {name: a}, rules: [{to: [{operation: {methods: [GET]}}]}]}\n"
	read := Read(nil, []File{{"a.yaml", []byte(text)}}, "", false)
	in := Input{Objects: read.Objects, Manifests: read.Manifests, AssumedMesh: true}
	in.Build(nil)
	r := Run(in)
	if len(r.Findings) > 0 || len(r.Unchecked) != 4 {
		t.Errorf("unchecked are %q, the findings\n%s", r.Unchecked, golden(r))
	}
}

// TestTopology checks that subsets by the place of endpoints are compared with what the control plane knows
// about it, and that nothing is said about the pods of manifests, whose nodes are not known.
func TestTopology(t *testing.T) {
	t.Parallel()
	base, err := os.ReadFile(filepath.Join("testdata", "base.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	const network = "---\napiVersion: networking.istio.io/v1\nkind: "
	const text = network + "ServiceEntry\nmetadata: {name: vm, namespace: shop}\nspec: {hosts: [vm.example.com], location: MESH_INTERNAL, resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], " +
		"endpoints: [{address: 10.0.0.1, locality: r/z/s, network: n}, {address: 10.0.0.2, labels: {istio-locality: r2.z2, topology.istio.io/network: n2}}]}\n" +
		network + "DestinationRule\nmetadata: {name: vm, namespace: shop}\nspec: {host: vm.example.com, subsets: [{name: a, labels: {topology.kubernetes.io/region: r, topology.kubernetes.io/zone: z}}, " +
		"{name: b, labels: {topology.istio.io/subzone: s}}, {name: c, labels: {topology.istio.io/network: n}}, {name: d, labels: {topology.istio.io/network: n2, topology.kubernetes.io/zone: z2}}, {name: gone, labels: {topology.kubernetes.io/region: r, topology.kubernetes.io/zone: z2}}]}\n"
	const pods = network + "DestinationRule\nmetadata: {name: web, namespace: shop}\nspec: {host: web, subsets: [{name: a, labels: {topology.istio.io/subzone: s, version: v1}}, {name: b, labels: {topology.istio.io/network: n}}, {name: gone, labels: {topology.istio.io/cluster: c, version: v9}}]}\n"
	for name, c := range map[string]struct {
		text     string
		complete bool
	}{"at the control plane": {text, true}, "of manifests": {pods, false}} {
		read := Read(nil, []File{{"base.yaml", base}, {"case.yaml", []byte(c.text)}}, "", false)
		in := Input{Objects: read.Objects, Problems: read.Problems, Manifests: read.Manifests, Complete: c.complete}
		in.Build(nil)
		found := slices.DeleteFunc(Run(in).Findings, func(f Finding) bool { return f.Code != "IST0173" })
		if len(found) != 1 || !strings.Contains(found[0].Message, `the subset "gone"`) {
			t.Errorf("%s:\n%s", name, golden(Result{Findings: found}))
		}
	}
}
