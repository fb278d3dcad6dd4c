// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/e2e/envoytest"
)

// egressObjects send the requests of a sidecar to servers outside the mesh through an egress
// gateway, which adds a client certificate for bank.example.com, and passes TLS to
// vault.example.com through. The sidecar itself adds a client certificate for direct.example.com.
const egressObjects = `
apiVersion: networking.istio.io/v1alpha3
kind: ServiceEntry
metadata: {name: outside, namespace: default}
spec:
  hosts: [bank.example.com, vault.example.com, unrouted.example.com]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: 80, targetPort: SERVER, name: http, protocol: HTTP}, {number: 443, targetPort: SERVER, name: https, protocol: HTTPS}]
  endpoints: [{address: 127.0.0.1}]
---
apiVersion: networking.istio.io/v1alpha3
kind: ServiceEntry
metadata: {name: direct, namespace: default}
spec:
  hosts: [direct.example.com]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: 80, targetPort: SERVER, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1}]
---
apiVersion: networking.istio.io/v1alpha3
kind: ServiceEntry
metadata: {name: egress, namespace: default}
spec:
  hosts: [egress.default.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: https, protocol: HTTPS, targetPort: PORT_HTTP}, {number: 443, name: tls, protocol: TLS, targetPort: PORT_HTTPS}]
  endpoints: [{address: ADDRESS}]
---
apiVersion: networking.istio.io/v1alpha3
kind: Gateway
metadata: {name: egress, namespace: default}
spec:
  selector: {app: edge}
  servers:
  - port: {number: 80, name: https, protocol: HTTPS}
    bind: ADDRESS
    hosts: [bank.example.com]
    tls: {mode: ISTIO_MUTUAL}
  - port: {number: 443, name: tls, protocol: TLS}
    bind: ADDRESS
    hosts: [vault.example.com]
    tls: {mode: PASSTHROUGH}
---
apiVersion: networking.istio.io/v1alpha3
kind: DestinationRule
metadata: {name: egress, namespace: default}
spec:
  host: egress.default.svc.cluster.local
  subsets:
  - name: bank
    trafficPolicy: {portLevelSettings: [{port: {number: 80}, tls: {mode: ISTIO_MUTUAL, sni: bank.example.com, subjectAltNames: ["spiffe://cluster.local/ns/default/sa/gateway"]}}]}
  - name: vault
---
apiVersion: networking.istio.io/v1alpha3
kind: VirtualService
metadata: {name: bank, namespace: default}
spec:
  hosts: [bank.example.com]
  gateways: [mesh, egress]
  http:
  - match: [{gateways: [mesh], port: 80}]
    route: [{destination: {host: egress.default.svc.cluster.local, subset: bank, port: {number: 80}}}]
  - match: [{gateways: [egress], port: 80}]
    route: [{destination: {host: bank.example.com, port: {number: 443}}}]
---
apiVersion: networking.istio.io/v1alpha3
kind: VirtualService
metadata: {name: vault, namespace: default}
spec:
  hosts: [vault.example.com]
  gateways: [mesh, egress]
  tls:
  - match: [{gateways: [mesh], port: 443, sniHosts: [vault.example.com]}]
    route: [{destination: {host: egress.default.svc.cluster.local, subset: vault, port: {number: 443}}}]
  - match: [{gateways: [egress], port: 443, sniHosts: [vault.example.com]}]
    route: [{destination: {host: vault.example.com, port: {number: 443}}}]
---
apiVersion: networking.istio.io/v1alpha3
kind: Sidecar
metadata: {name: client, namespace: default}
spec:
  workloadSelector: {labels: {app: client}}
  egress: [{hosts: ["*/*"]}]
  outboundTrafficPolicy: {mode: REGISTRY_ONLY}
` + bankRule + directRule

// The rules add the client certificates.
const (
	bankRule = `---
apiVersion: networking.istio.io/v1alpha3
kind: DestinationRule
metadata: {name: bank, namespace: default}
spec:
  host: bank.example.com
  trafficPolicy: {portLevelSettings: [{port: {number: 443}, tls: {mode: MUTUAL, credentialName: partner, sni: bank.example.com, subjectAltNames: [bank.example.com]}}]}
`
	directRule = `---
apiVersion: networking.istio.io/v1alpha3
kind: DestinationRule
metadata: {name: direct, namespace: default}
spec:
  host: direct.example.com
  workloadSelector: {matchLabels: {app: client}}
  trafficPolicy: {tls: {mode: MUTUAL, credentialName: partner, subjectAltNames: [direct.example.com]}}
`
)

// egressWorld is an edgeWorld whose gateway is for traffic that leaves the mesh, with a sidecar in
// front of it and a server outside.
type egressWorld struct {
	*edgeWorld
	outside minted // the root of the server outside and of its clients
	proxy   string // address of the sidecar's HTTP proxy
	plain   atomic.Int64
}

// TestEnvoyEgress sends requests to a server outside the mesh that demands a client certificate,
// through a sidecar and an egress gateway, and from the sidecar itself. A gateway without a route,
// another root and another name make requests fail; the server never receives plaintext.
func TestEnvoyEgress(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ api, gateway, sidecar string }{
		"sotw": {"GRPC", "127.77.57.21", "127.77.57.22"}, "delta": {"DELTA_GRPC", "127.77.57.23", "127.77.57.24"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := startEgress(t, tc.api, tc.gateway, tc.sidecar)
			w.testOrigination(t)
			w.testTunnels(t)
			w.testRefusals(t)
			w.testRemoval(t)
			if n := w.plain.Load(); n > 0 {
				t.Errorf("%d connections to the server outside are plaintext", n)
			}
		})
	}
}

func startEgress(t *testing.T, api, gateway, sidecar string) *egressWorld {
	t.Helper()
	w := &egressWorld{outside: mint(t, "outside")}
	server := w.server(t)
	w.edgeWorld = startEdge(t, api, gateway, strings.ReplaceAll(egressObjects, "SERVER", server), nil)
	w.secret(t, "partner", w.outside)
	port := freePort(t, sidecar)
	w.proxy = net.JoinHostPort(sidecar, port)
	(&gatewayTest{address: w.proxy}).runEnvoy(t, envoytest.Binary(t), w.bootstrap(t, "sidecar~"+sidecar+"~client-1.default~default.svc.cluster.local", map[string]any{
		"LABELS": map[string]any{"app": "client"}, "INTERCEPTION_MODE": "NONE", "HTTP_PROXY_PORT": port,
	}))
	return w
}

// server is the server outside. It responds with the host of the request, the SNI, and the name of
// the client.
func (w *egressWorld) server(t *testing.T) string {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(rw, "%s %s %s", r.Host, r.TLS.ServerName, r.TLS.PeerCertificates[0].Subject.CommonName)
	}))
	s.Listener = firstByte{s.Listener, &w.plain}
	s.Config.SetKeepAlivesEnabled(false)           // a change of certificates affects only new connections
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // some handshakes are expected to fail
	pool := x509.NewCertPool()
	pool.AddCert(w.outside.parsed)
	own := map[string]tls.Certificate{}
	for _, name := range []string{"bank.example.com", "vault.example.com", "direct.example.com"} {
		m := w.outside.issue(t, name)
		own[name] = tls.Certificate{Certificate: [][]byte{m.parsed.Raw}, PrivateKey: m.signer}
	}
	s.TLS = &tls.Config{
		MinVersion: tls.VersionTLS12, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool,
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			if c, ok := own[hello.ServerName]; ok {
				return &c, nil
			}
			return nil, fmt.Errorf("no certificate for %q", hello.ServerName)
		},
	}
	s.StartTLS()
	t.Cleanup(s.Close)
	return portOf(t, s.Listener.Addr())
}

// firstByte counts the connections that do not begin with a TLS record.
type firstByte struct {
	net.Listener
	plain *atomic.Int64
}

func (l firstByte) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &firstByteConn{Conn: conn, plain: l.plain}, nil
}

type firstByteConn struct {
	net.Conn
	plain *atomic.Int64
	seen  bool
}

func (c *firstByteConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && !c.seen {
		c.seen = true
		if b[0] != 0x16 {
			c.plain.Add(1)
		}
	}
	return n, err
}

// secret writes a Secret with a client certificate that the server outside accepts, and the roots
// that its own certificate must be of.
func (w *egressWorld) secret(t *testing.T, name string, roots minted) {
	t.Helper()
	data := w.outside.issue(t, "partner").pair()
	data["ca.crt"] = roots.chain
	w.write(t, name, data)
}

// request sends a request through the HTTP proxy of the sidecar.
func (w *egressWorld) request(host string) string {
	conn, err := w.dialProxy()
	if err != nil {
		return "error: " + err.Error()
	}
	defer func() { _ = conn.Close() }() // the response was read
	return exchange(conn, bufio.NewReader(conn), host, "Connection: close")
}

// tunnel sends a request in TLS through a tunnel that the sidecar opens, with the certificate of a
// client of the server outside.
func (w *egressWorld) tunnel(authority, name string, client minted) string {
	conn, err := w.dialProxy()
	if err != nil {
		return "error: " + err.Error()
	}
	defer func() { _ = conn.Close() }() // the response was read
	if _, err := fmt.Fprintf(conn, "CONNECT %[1]s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", authority); err != nil {
		return "error: " + err.Error()
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: http.MethodConnect})
	if err != nil {
		return "error: " + err.Error()
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Sprint("CONNECT ", resp.StatusCode)
	}
	roots := x509.NewCertPool()
	roots.AddCert(w.outside.parsed)
	secured := tls.Client(conn, &tls.Config{
		ServerName: name, RootCAs: roots, MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{{Certificate: [][]byte{client.parsed.Raw}, PrivateKey: client.signer}},
	})
	return exchange(secured, bufio.NewReader(secured), name, "Connection: close")
}

func (w *egressWorld) dialProxy() (net.Conn, error) {
	conn, err := net.Dial("tcp", w.proxy)
	if err != nil {
		return nil, err
	}
	return conn, conn.SetDeadline(time.Now().Add(2 * time.Minute))
}

// answers waits until requests for a host have a response that begins with a text.
func (w *egressWorld) answers(t *testing.T, host, want string) {
	t.Helper()
	got := ""
	defer func() {
		if t.Failed() {
			t.Logf("%s answers %q", host, got)
		}
	}()
	until(t, host+" answers "+want, func() bool { got = w.request(host); return strings.HasPrefix(got, want) })
}

// testOrigination requests hosts to which the gateway and the sidecar add a client certificate.
func (w *egressWorld) testOrigination(t *testing.T) {
	t.Helper()
	w.answers(t, "bank.example.com", "200 bank.example.com bank.example.com partner")
	w.answers(t, "direct.example.com", "200 direct.example.com direct.example.com partner")
	if got := w.request("nobody.example.com"); !strings.HasPrefix(got, "502") {
		t.Errorf("a host that is not in the registry: %q, want 502", got)
	}
	client := w.root.issue(t, "client")
	for _, tc := range []struct {
		from caller
		host string
		want string
	}{
		{caller{port: "PORT_HTTP", name: "bank.example.com", client: &client}, "bank.example.com", "workload 200 bank.example.com bank.example.com partner"},
		{caller{port: "PORT_HTTP", name: "bank.example.com", client: &client}, "unrouted.example.com", "workload 404"},
		{caller{port: "PORT_HTTP", name: "unrouted.example.com", client: &client}, "bank.example.com", "error: "},
		{caller{port: "PORT_HTTP", name: "bank.example.com"}, "bank.example.com", "error: "},
		{caller{port: "PORT_HTTP"}, "bank.example.com", "error: "},
		{caller{port: "PORT_HTTPS", name: "unrouted.example.com", client: &client}, "unrouted.example.com", "error: "},
	} {
		// A client without a certificate receives the error only after its handshake.
		got := w.ask(tc.from, tc.host)
		if at := strings.Index(got, tc.want); at != 0 && (at < 0 || tc.want != "error: ") {
			t.Errorf("the gateway answers %+v for %s: %q, want %q", tc.from, tc.host, got, tc.want)
		}
	}
}

// testTunnels opens tunnels through which the client speaks TLS with the server outside.
func (w *egressWorld) testTunnels(t *testing.T) {
	t.Helper()
	partner, stranger := w.outside.issue(t, "own"), w.root.issue(t, "stranger")
	until(t, "the gateway passes TLS through", func() bool {
		return w.tunnel("vault.example.com:443", "vault.example.com", partner) == "200 vault.example.com vault.example.com own"
	})
	for _, tc := range []struct {
		authority, name string
		client          minted
		want            string
	}{
		{"vault.example.com:443", "vault.example.com", stranger, "error: "},
		{"vault.example.com:443", "bank.example.com", partner, "error: "}, // the gateway has no chain for the name
		{"nobody.example.com:443", "vault.example.com", partner, "CONNECT 403"},
		{"127.0.0.1:" + w.ports["BACKEND_TLS"], "vault.example.com", partner, "CONNECT 403"},
	} {
		if got := w.tunnel(tc.authority, tc.name, tc.client); !strings.HasPrefix(got, tc.want) {
			t.Errorf("a tunnel to %s for %s: %q, want %q", tc.authority, tc.name, got, tc.want)
		}
	}
}

// testRefusals changes what the gateway and the sidecar demand of the server.
func (w *egressWorld) testRefusals(t *testing.T) {
	t.Helper()
	rules := map[string]string{"bank.example.com": bankRule, "direct.example.com": directRule}
	for host, rule := range rules {
		good := "200 " + host + " " + host + " partner"
		w.apply(t, strings.Replace(rule, "subjectAltNames: ["+host, "subjectAltNames: [other.example.com", 1))
		w.answers(t, host, "503")
		w.apply(t, rule)
		w.answers(t, host, good)
	}
	w.apply(t, strings.Replace(directRule, "credentialName: partner", "credentialName: missing", 1))
	w.answers(t, "direct.example.com", "503")
	w.apply(t, directRule)
	w.answers(t, "direct.example.com", "200")
	w.secret(t, "partner", w.root)
	for host := range rules {
		w.answers(t, host, "503")
	}
	w.secret(t, "partner", w.outside)
	for host := range rules {
		w.answers(t, host, "200")
	}
	// Without a selector, a sidecar must not use the Secret.
	w.apply(t, strings.Replace(directRule, "  workloadSelector: {matchLabels: {app: client}}\n", "", 1))
	w.answers(t, "direct.example.com", "503")
	w.apply(t, directRule)
	w.answers(t, "direct.example.com", "200")
}

// testRemoval deletes the Gateway: its hosts cannot be reached any more.
func (w *egressWorld) testRemoval(t *testing.T) {
	t.Helper()
	partner := w.outside.issue(t, "own")
	gateway := strings.Split(egressObjects, "---\n")[3]
	w.remove(model.Gateway, "egress")
	w.answers(t, "bank.example.com", "503")
	until(t, "no tunnel opens", func() bool { return w.tunnel("vault.example.com:443", "vault.example.com", partner) == "CONNECT 503" })
	w.answers(t, "direct.example.com", "200")
	w.apply(t, gateway)
	w.answers(t, "bank.example.com", "200")
	until(t, "TLS passes again", func() bool {
		return strings.HasPrefix(w.tunnel("vault.example.com:443", "vault.example.com", partner), "200")
	})
}
