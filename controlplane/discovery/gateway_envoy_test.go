// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"bufio"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// edgeObjects have a server of every kind.
const edgeObjects = `
apiVersion: networking.istio.io/v1alpha3
kind: ServiceEntry
metadata: {name: apps, namespace: default}
spec:
  hosts: [apps.default.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports:
  - {number: 1, name: http-a, protocol: HTTP}
  - {number: 2, name: http-b, protocol: HTTP}
  - {number: 3, name: tls, protocol: TLS}
  endpoints: [{address: 127.0.0.1, ports: {http-a: BACKEND_A, http-b: BACKEND_B, tls: BACKEND_TLS}}]
---
apiVersion: networking.istio.io/v1alpha3
kind: ServiceEntry
metadata: {name: echo, namespace: default}
spec:
  hosts: [echo.default.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 4, name: tcp, protocol: TCP}]
  endpoints: [{address: ADDRESS, ports: {tcp: BACKEND_ECHO}}]
---
# The service of the gateway itself: what it calls port 80 is taken at another.
apiVersion: networking.istio.io/v1alpha3
kind: ServiceEntry
metadata: {name: edge, namespace: default}
spec:
  hosts: [edge.default.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP, targetPort: PORT_HTTP}]
  endpoints: [{address: ADDRESS}]
---
apiVersion: networking.istio.io/v1alpha3
kind: Gateway
metadata: {name: edge, namespace: default}
spec:
  selector: {app: edge}
  servers:
  - port: {number: 80, name: http, protocol: HTTP}
    bind: ADDRESS
    hosts: [a.test, b.test]
  - port: {number: 80, name: http-old, protocol: HTTP}
    bind: ADDRESS
    hosts: [old.test]
    tls: {httpsRedirect: true}
  - port: {number: PORT_HTTPS, name: https-one, protocol: HTTPS}
    bind: ADDRESS
    hosts: [one.test]
    tls: {mode: SIMPLE, credentialName: one}
  - port: {number: PORT_HTTPS, name: https-two, protocol: HTTPS}
    bind: ADDRESS
    hosts: ["*.two.test"]
    tls: {mode: SIMPLE, credentialName: two, maxProtocolVersion: TLSV1_2}
  - port: {number: PORT_HTTPS, name: https-mutual, protocol: HTTPS}
    bind: ADDRESS
    hosts: [mutual.test]
    tls: {mode: MUTUAL, credentialName: mutual}
  - port: {number: PORT_HTTPS, name: https-named, protocol: HTTPS}
    bind: ADDRESS
    hosts: [named.test]
    tls: {mode: MUTUAL, credentialName: mutual, subjectAltNames: ["spiffe://cluster.local/ns/default/sa/somebody"]}
  - port: {number: PORT_HTTPS, name: https-optional, protocol: HTTPS}
    bind: ADDRESS
    hosts: [optional.test]
    tls: {mode: OPTIONAL_MUTUAL, credentialName: mutual}
  - port: {number: PORT_HTTPS, name: https-files, protocol: HTTPS}
    bind: ADDRESS
    hosts: [files.test]
    tls: {mode: MUTUAL, serverCertificate: /files/tls.crt, privateKey: /files/tls.key, caCertificates: /files/ca.crt, caCrl: CRL_FILE}
  - port: {number: PORT_HTTPS, name: tls-passes, protocol: TLS}
    bind: ADDRESS
    hosts: [passes.test]
    tls: {mode: PASSTHROUGH}
  - port: {number: PORT_HTTPS, name: tls-ends, protocol: TLS}
    bind: ADDRESS
    hosts: [ends.test]
    tls: {mode: SIMPLE, credentialName: ends}
  - port: {number: PORT_TCP, name: tcp, protocol: TCP}
    bind: ADDRESS
    hosts: ["*"]
  - port: {number: PORT_MESH, name: https-mesh, protocol: HTTPS}
    bind: ADDRESS
    hosts: ["*"]
    tls: {mode: ISTIO_MUTUAL}
  - port: {number: PORT_AUTO, name: tls-auto, protocol: TLS}
    bind: ADDRESS
    hosts: ["apps.default.svc.cluster.local"]
    tls: {mode: AUTO_PASSTHROUGH}
---
apiVersion: networking.istio.io/v1alpha3
kind: VirtualService
metadata: {name: a, namespace: default}
spec:
  hosts: [a.test, old.test, one.test, mutual.test, named.test, optional.test, files.test, mesh.test]
  gateways: [edge]
  http: [{route: [{destination: {host: apps, port: {number: 1}}}]}]
---
apiVersion: networking.istio.io/v1alpha3
kind: VirtualService
metadata: {name: b, namespace: default}
spec:
  hosts: [b.test, x.two.test]
  gateways: [edge]
  http: [{route: [{destination: {host: apps, port: {number: 2}}}]}]
---
apiVersion: networking.istio.io/v1alpha3
kind: VirtualService
metadata: {name: streams, namespace: default}
spec:
  hosts: [passes.test, ends.test]
  gateways: [edge]
  tls:
  - match: [{sniHosts: [passes.test]}]
    route: [{destination: {host: apps, port: {number: 3}}}]
  tcp:
  - match: [{port: PORT_TCP}, {port: PORT_HTTPS}]
    route: [{destination: {host: echo}}]
`

// TestEdge sends requests of clients through the real Envoy as a gateway, and changes its
// configuration:
//   - requests by host, with redirects, and unknown hosts
//   - TLS that is terminated with the certificate of the name, also mutual TLS, and TLS that is
//     passed through
//   - streams, mutual TLS of the mesh, terminated and passed through
//   - a new certificate does not affect connections
//   - servers, Gateways and routes that are created, changed and deleted
func TestEdge(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ api, ip string }{"sotw": {"GRPC", "127.77.57.11"}, "delta": {"DELTA_GRPC", "127.77.57.12"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := startEdge(t, tc.api, tc.ip, edgeObjects, nil)
			w.testTable(t)
			w.testRotation(t)
			w.testChanges(t)
			w.testPassthrough(t)
			if apart := strings.Contains(w.logged.String(), xds.TypeVirtualHost); apart != (name == "delta") {
				t.Errorf("virtual hosts come as resources of their own: %v", apart)
			}
		})
	}
}

func (w *edgeWorld) testTable(t *testing.T) {
	t.Helper()
	client, stranger := w.root.issue(t, "client"), mint(t, "stranger")
	const refused = "error: "
	spiffe := "URI=spiffe://cluster.local/ns/default/sa/gateway"
	https := func(name string, client *minted, alpn ...string) caller {
		return caller{port: "PORT_HTTPS", name: name, client: client, alpn: alpn}
	}
	plain := caller{port: "PORT_HTTP"}
	until(t, "the last listener is there", func() bool { return strings.HasPrefix(w.ask(https("one.test", nil), "one.test"), "one 200 a one.test") })
	until(t, "streams pass", func() bool { return w.echo(caller{port: "PORT_TCP"}) == "hello" })
	for _, tc := range []struct {
		from caller
		host string
		want string // the beginning of the answer
		also string // a part of it
	}{
		{plain, "a.test", "200 a a.test", ""},
		{plain, "b.test", "200 b b.test", ""},
		{plain, "A.TEST:80", "200 a A.TEST:80", ""},
		{plain, "unknown.test", "404", ""},
		{plain, "one.test", "404", ""},
		{plain, "old.test", "301 https://old.test/", ""},
		{https("one.test", nil), "one.test", "one 200 a one.test", ""},
		{https("one.test", nil), "b.test", "one 404", ""},
		{https("x.two.test", nil), "x.two.test", "two 200 b x.two.test", ""},
		{https("nobody.test", nil), "nobody.test", refused, ""},
		{https("mutual.test", nil), "mutual.test", refused, ""},
		{https("mutual.test", &stranger), "mutual.test", refused, ""},
		{https("mutual.test", &client), "mutual.test", "mutual 200 a mutual.test", spiffe},
		{https("named.test", &client), "named.test", refused, ""},
		{https("optional.test", nil), "optional.test", "mutual 200 a optional.test", ""},
		{https("optional.test", &client), "optional.test", "mutual 200 a optional.test", spiffe},
		{https("files.test", &client), "files.test", "files 200 a files.test", spiffe},
		{https("files.test", &w.revoked), "files.test", refused, ""},
		{https("mutual.test", &w.revoked), "mutual.test", "mutual 200 a mutual.test", spiffe},
		{https("passes.test", nil), "passes.test", "application 200 tls passes.test 0", ""},
		{https("passes.test", &client), "passes.test", "application 200 tls passes.test 1", ""},
		{caller{port: "PORT_MESH", name: "any.test", client: &client}, "mesh.test", "workload 200 a mesh.test", spiffe},
		{caller{port: "PORT_MESH", name: "any.test"}, "mesh.test", refused, ""},
		{caller{port: "PORT_MESH", name: "any.test", client: &stranger}, "mesh.test", refused, ""},
		{caller{port: "PORT_AUTO", name: "outbound_.3_._.apps.default.svc.cluster.local", alpn: []string{"istio", "http/1.1"}, client: &client}, "apps", "application 200 tls apps 1", ""},
		{caller{port: "PORT_AUTO", name: "outbound_.3_._.apps.default.svc.cluster.local", client: &client}, "apps", refused, ""},
		{caller{port: "PORT_AUTO", name: "outbound_.4_._.echo.default.svc.cluster.local", alpn: []string{"istio", "http/1.1"}, client: &client}, "echo", refused, ""},
		{caller{port: "PORT_HTTPS"}, "one.test", refused, ""},
	} {
		// A client with a forged certificate receives the error only after its handshake; its
		// requests fail.
		got := w.ask(tc.from, tc.host)
		if tc.want == refused {
			if !strings.Contains(got, refused) {
				t.Errorf("%+v is answered: %s", tc.from, got)
			}
		} else if !strings.HasPrefix(got, tc.want) || !strings.Contains(got, tc.also) {
			t.Errorf("%+v for %s: %q, want %q and %q", tc.from, tc.host, got, tc.want, tc.also)
		}
	}
	if got := w.echo(https("ends.test", nil)); got != "ends hello" {
		t.Errorf("a stream in TLS that the gateway ends: %q", got)
	}
}

// testRotation sends the gateway another certificate while a client has a
// connection.
func (w *edgeWorld) testRotation(t *testing.T) {
	t.Helper()
	from := caller{port: "PORT_HTTPS", name: "one.test"}
	conn, _, err := w.connect(from)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	reader := bufio.NewReader(conn)
	want := "200 a one.test"
	if got := exchange(conn, reader, "one.test"); !strings.HasPrefix(got, want) {
		t.Fatalf("before the rotation: %q, want %q", got, want)
	}
	w.write(t, "one", w.root.issue(t, "one-renewed").pair())
	until(t, "the new certificate is shown", func() bool { return strings.HasPrefix(w.ask(from, "one.test"), "one-renewed "+want) })
	if got := exchange(conn, reader, "one.test"); !strings.HasPrefix(got, want) {
		t.Errorf("a connection from before the rotation: %q, want %q", got, want)
	}
}

// testChanges creates, changes and deletes Gateways and routes.
func (w *edgeWorld) testChanges(t *testing.T) {
	t.Helper()
	plain, late := caller{port: "PORT_HTTP"}, caller{port: "PORT_LATE"}
	answers := func(from caller, host, want string) {
		t.Helper()
		until(t, host+" answers "+want, func() bool { return strings.HasPrefix(w.ask(from, host), want) })
	}
	const second = `
apiVersion: networking.istio.io/v1alpha3
kind: Gateway
metadata: {name: second, namespace: default}
spec:
  selector: {app: edge}
  servers:
  - port: {number: 80, name: http, protocol: HTTP}
    bind: ADDRESS
    hosts: ["*.second.test"]
  - port: {number: PORT_LATE, name: late, protocol: HTTP}
    bind: ADDRESS
    hosts: ["*"]
`
	w.apply(t, second+`
---
apiVersion: networking.istio.io/v1alpha3
kind: VirtualService
metadata: {name: second, namespace: default}
spec:
  hosts: [x.second.test]
  gateways: [second]
  http: [{route: [{destination: {host: apps, port: {number: 1}}}]}]
`)
	answers(plain, "x.second.test", "200 a x.second.test")
	answers(late, "x.second.test", "200 a x.second.test")
	answers(plain, "b.test", "200 b b.test")
	w.apply(t, `
apiVersion: networking.istio.io/v1alpha3
kind: VirtualService
metadata: {name: second, namespace: default}
spec:
  hosts: ["*.second.test"]
  gateways: [second]
  http: [{route: [{destination: {host: apps, port: {number: 2}}}]}]
`)
	answers(plain, "y.second.test", "200 b y.second.test")
	// A broken server beside good ones harms none of them.
	w.apply(t, strings.Replace(second, `hosts: ["*"]`, `hosts: [z.second.test]`, 1)+`
  - port: {number: PORT_LATE, name: conflict, protocol: TCP}
    bind: ADDRESS
    hosts: ["*"]
`)
	answers(late, "y.second.test", "404")
	answers(late, "z.second.test", "200 b z.second.test")
	w.remove(model.Gateway, "second")
	answers(plain, "y.second.test", "404")
	answers(plain, "a.test", "200 a a.test")
	until(t, "the listener of the Gateway is gone", func() bool { return strings.Contains(w.ask(late, "z.second.test"), "refused") })
	w.apply(t, second)
	answers(late, "y.second.test", "200 b y.second.test")
}

// testPassthrough changes clusters and endpoints to which mutual TLS is handed on.
func (w *edgeWorld) testPassthrough(t *testing.T) {
	t.Helper()
	client := w.root.issue(t, "client")
	to := func(subset string) string {
		return w.ask(caller{
			port: "PORT_AUTO", name: "outbound_.3_." + subset + "_.apps.default.svc.cluster.local", alpn: []string{"istio", "http/1.1"}, client: &client,
		}, "apps")
	}
	const good = "application 200 tls apps 1"
	service := strings.SplitAfter(edgeObjects, "---")[0]
	rule := `
apiVersion: networking.istio.io/v1alpha3
kind: DestinationRule
metadata: {name: apps, namespace: default}
spec:
  host: apps
  trafficPolicy: {connectionPool: {tcp: {connectTimeout: TIMEOUT}}}
  subsets: [{name: v1, labels: {version: v1}}]
`
	w.apply(t, strings.Replace(rule, "TIMEOUT", "3s", 1))
	until(t, "a changed cluster takes connections", func() bool { return to("") == good })
	if got := to("v1"); got == good {
		t.Errorf("a subset without endpoints is answered: %q", got)
	}
	w.apply(t, strings.Replace(service, "endpoints: [{", "endpoints: [{labels: {version: v1}, ", 1))
	until(t, "a subset takes connections", func() bool { return to("v1") == good })
	w.apply(t, strings.Replace(service, "tls: BACKEND_TLS", "tls: BACKEND_A", 1))
	until(t, "the endpoint is another one", func() bool { return strings.HasPrefix(to(""), "error: ") })
	w.apply(t, strings.Replace(rule, "TIMEOUT", "4s", 1))
	w.apply(t, service)
	until(t, "the endpoint is back", func() bool { return to("") == good })
}

// TestEdgeMissingCredential has a server whose Secret does not exist beside one
// whose does: the other one serves, and so does the first as soon as it can.
func TestEdgeMissingCredential(t *testing.T) {
	t.Parallel()
	w := startEdge(t, "GRPC", "127.77.57.14", strings.Join(strings.SplitAfter(edgeObjects, "---")[:3], "")+`
apiVersion: networking.istio.io/v1alpha3
kind: Gateway
metadata: {name: edge, namespace: default}
spec:
  servers:
  - port: {number: 80, name: http, protocol: HTTP}
    bind: ADDRESS
    hosts: [a.test]
  - port: {number: PORT_HTTPS, name: https-one, protocol: HTTPS}
    bind: ADDRESS
    hosts: [one.test]
    tls: {mode: SIMPLE, credentialName: one}
  - port: {number: PORT_HTTPS, name: https-missing, protocol: HTTPS}
    bind: ADDRESS
    hosts: [missing.test]
    tls: {mode: SIMPLE, credentialName: missing}
---
apiVersion: networking.istio.io/v1alpha3
kind: VirtualService
metadata: {name: a, namespace: default}
spec:
  hosts: [one.test, missing.test]
  gateways: [edge]
  http: [{route: [{destination: {host: apps, port: {number: 1}}}]}]
`, nil)
	ask := func(name string) string { return w.ask(caller{port: "PORT_HTTPS", name: name}, name) }
	for end := time.Now().Add(2 * time.Minute); !strings.HasPrefix(ask("one.test"), "one 200 "); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("a server waits for the Secret of another one: %q", ask("one.test"))
		}
	}
	if got := ask("missing.test"); !strings.HasPrefix(got, "error: ") {
		t.Errorf("a server without its certificate answers %q", got)
	}
	w.write(t, "missing", w.root.issue(t, "found").pair())
	until(t, "the certificate is shown", func() bool { return strings.HasPrefix(ask("missing.test"), "found 200 a missing.test") })
}
