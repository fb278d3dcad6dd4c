// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// tunnels are services behind the HTTP proxy. PORT_A, PORT_B and SECURE are ports of applications, and
// LOCAL_TCP and LOCAL_TLS ports of the sidecar.
const tunnels = `
kind: ServiceEntry
metadata: {name: direct, namespace: default}
spec:
  hosts: [direct.example.com]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports:
  - {number: 443, targetPort: PORT_A, name: tls, protocol: TLS}
  - {number: 5432, targetPort: PORT_A, name: tcp, protocol: TCP}
  - {number: 80, targetPort: PORT_A, name: http, protocol: HTTP}
  endpoints: [{address: 127.0.0.1}]
---
kind: ServiceEntry
metadata: {name: other, namespace: default}
spec:
  hosts: [other.example.com]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: 443, targetPort: PORT_B, name: tls, protocol: TLS}, {number: 5432, targetPort: PORT_B, name: tcp, protocol: TCP}]
  endpoints: [{address: 127.0.0.1}]
---
kind: ServiceEntry
metadata: {name: moved, namespace: default}
spec:
  hosts: [moved.example.com]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: 443, targetPort: PORT_A, name: tls, protocol: TLS}, {number: 5432, targetPort: PORT_A, name: tcp, protocol: TCP}]
  endpoints: [{address: 127.0.0.1}]
---
kind: VirtualService
metadata: {name: moved, namespace: default}
spec:
  hosts: [moved.example.com]
  tls: [{match: [{port: 443, sniHosts: [moved.example.com]}], route: [{destination: {host: other.example.com, port: {number: 443}}}]}]
  tcp: [{match: [{port: 5432}], route: [{destination: {host: other.example.com, port: {number: 5432}}}]}]
---
kind: ServiceEntry
metadata: {name: visible, namespace: default}
spec:
  hosts: [visible.example.com]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: 80, targetPort: PORT_B, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1}]
---
kind: ServiceEntry
metadata: {name: wild, namespace: default}
spec:
  hosts: ["*.localhost"]
  location: MESH_EXTERNAL
  resolution: DYNAMIC_DNS
  ports: [{number: PORT_A, name: tls, protocol: TLS}]
---
kind: ServiceEntry
metadata: {name: local, namespace: default}
spec:
  hosts: [local.example.com]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: LOCAL_TCP, targetPort: PORT_A, name: tcp, protocol: TCP}, {number: LOCAL_TLS, targetPort: SECURE, name: tls, protocol: TLS}]
  endpoints: [{address: 127.0.0.1}]
---
kind: ServiceEntry
metadata: {name: second, namespace: default}
spec:
  hosts: [example.com]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: LOCAL_TCP, targetPort: PORT_B, name: tcp, protocol: TCP}, {number: LOCAL_TLS, targetPort: OTHER, name: tls, protocol: TLS}]
  endpoints: [{address: 127.0.0.1}]
`

// TestEnvoyTunnels opens tunnels through the HTTP proxy with CONNECT, and sends requests without a
// tunnel, to services and to other hosts.
func TestEnvoyTunnels(t *testing.T) {
	t.Parallel()
	a, b := backend(t, "a"), backend(t, "b")
	secure, other := encrypted(t, "secure"), encrypted(t, "other")
	objects := strings.NewReplacer("PORT_A", a, "PORT_B", b, "SECURE", portOf(t, secure.Listener.Addr()), "OTHER", portOf(t, other.Listener.Addr())).Replace(tunnels)
	const only = `
---
kind: Sidecar
metadata: {name: default, namespace: default}
spec: {egress: [{hosts: ["*/*"]}], outboundTrafficPolicy: {mode: REGISTRY_ONLY}}
`
	narrow := strings.Replace(only, `"*/*"`, "./direct.example.com", 1)
	for _, world := range []struct {
		name, address, objects string
		asks                   map[string]string // by authority: the status of CONNECT, and who answers through the tunnel
		requests               map[string]string // by host: the status of a request without a tunnel, and who answers
		stream, known, unknown string            // who answers over TCP at the sidecar, and over HTTPS through a tunnel
	}{
		{"any", "127.77.56.90", objects, map[string]string{
			"direct.example.com:443": "200 a", "direct.example.com:5432": "200 a", "direct.example.com:80": "404", // requests of HTTP need no tunnel
			"moved.example.com:443": "200 b", "moved.example.com:5432": "200 b",
			"some.localhost:" + a: "200 a", "localhost:" + b: "200 b", "127.0.0.1:" + b: "200 b", "nobody.invalid:443": "502",
		}, map[string]string{"direct.example.com": "200 a", "127.0.0.1:" + b: "200 b"}, "b", "secure", "other"},
		{"registry only", "127.77.56.91", objects + only, map[string]string{
			"direct.example.com:443": "200 a", "moved.example.com:443": "200 b", "some.localhost:" + a: "200 a",
			"localhost:" + b: "403", "127.0.0.1:" + b: "403",
		}, map[string]string{"direct.example.com": "200 a", "visible.example.com": "200 b", "127.0.0.1:" + b: "502", "localhost:" + b: "502"}, "b", "secure", "Forbidden"},
		{"imported hosts only", "127.77.56.92", objects + narrow, map[string]string{
			"direct.example.com:443": "200 a", "direct.example.com:5432": "200 a", "moved.example.com:443": "403", "other.example.com:5432": "403",
			"some.localhost:" + a: "403", "127.0.0.1:" + b: "403",
		}, map[string]string{"direct.example.com": "200 a", "visible.example.com": "502", "127.0.0.1:" + b: "502"}, "", "Forbidden", "Forbidden"},
	} {
		t.Run(world.name, func(t *testing.T) {
			proxy, ports := "", freePorts(t, world.address, 2)
			at := strings.NewReplacer("LOCAL_TCP", ports[0], "LOCAL_TLS", ports[1])
			through := newBalancing(t, world.address, at.Replace(world.objects), func(p *model.Proxy) {
				proxy = net.JoinHostPort(world.address, strconv.Itoa(int(p.HTTPProxyPort)))
				p.Settings = model.ProxySettings{Unprivileged: true}.Keyed() // the other ports of TLS are 443
			})
			for _, itself := range []string{proxy, strings.Replace(proxy, world.address, "localhost", 1)} {
				if got := throughTunnel(t, proxy, itself); got != "403" {
					t.Errorf("a tunnel to the proxy itself, %s: %s, want 403", itself, got)
				}
				if status, _ := through.get(t, "http://"+itself+"/", ""); status != http.StatusBadGateway {
					t.Errorf("a request to the proxy itself, %s: %d, want 502", itself, status)
				}
			}
			if got := answering(t, http.DefaultClient, "http://"+net.JoinHostPort(world.address, ports[0])); got != world.stream {
				t.Errorf("at port %s answers %q, want %q", ports[0], got, world.stream)
			}
			for name, want := range map[string]string{"local.example.com": world.stream, "example.com": world.stream, "unknown.example.com": ""} {
				if want != "" {
					want = map[string]string{"local.example.com": "secure", "example.com": "other"}[name]
				}
				direct := secureClient(secure, name, nil)
				if got := answering(t, direct, "https://"+net.JoinHostPort(world.address, ports[1])); got != want {
					t.Errorf("at port %s answers %q for the SNI %s, want %q", ports[1], got, name, want)
				}
			}
			tunnelled := secureClient(secure, "example.com", &url.URL{Scheme: "http", Host: proxy})
			for authority, want := range map[string]string{"local.example.com:" + ports[1]: world.known, other.Listener.Addr().String(): world.unknown} {
				if got := answering(t, tunnelled, "https://"+authority); got != want {
					t.Errorf("HTTPS to %s answers %q, want %q", authority, got, want)
				}
			}
			for authority, want := range world.asks {
				if got := throughTunnel(t, proxy, authority); got != want {
					t.Errorf("%s: %s, want %s", authority, got, want)
				}
			}
			for host, want := range world.requests {
				if status, word := through.get(t, "http://"+host+"/", ""); strconv.Itoa(status)+" "+word != want && strconv.Itoa(status) != want {
					t.Errorf("http://%s: %d %s, want %s", host, status, word, want)
				}
			}
		})
	}
}

// encrypted is an application that answers over HTTPS with its name.
func encrypted(t *testing.T, name string) *httptest.Server {
	t.Helper()
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, name) }))
	t.Cleanup(s.Close)
	return s
}

// secureClient returns a client of servers whose certificate is that of s, with an SNI and a proxy.
func secureClient(s *httptest.Server, sni string, proxy *url.URL) *http.Client {
	roots := s.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	return &http.Client{Transport: &http.Transport{
		Proxy: http.ProxyURL(proxy), DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, ServerName: sni, InsecureSkipVerify: true, VerifyConnection: func(state tls.ConnectionState) error {
			_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, DNSName: "example.com"})
			return err
		}},
	}}
}

// answering returns the first word of a response, the reason why a proxy opens no tunnel, or nothing if
// the connection fails.
func answering(t *testing.T, client *http.Client, target string) string {
	t.Helper()
	resp, err := client.Get(target)
	if err != nil {
		if strings.HasSuffix(err.Error(), "Forbidden") {
			return "Forbidden"
		}
		return ""
	}
	body, err := io.ReadAll(resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		t.Fatal(err)
	}
	word, _, _ := strings.Cut(string(body), " ")
	return word
}

// TestEnvoyStreams connects to TCP listeners that a Sidecar names: each has the destination of its
// service, also that of a VirtualService, and no listener exists for a service that is not imported.
func TestEnvoyStreams(t *testing.T) {
	t.Parallel()
	const address = "127.77.56.93"
	a, b := backend(t, "a"), backend(t, "b")
	ports := freePorts(t, address, 3)
	service := func(name, port, to string) string {
		return fmt.Sprintf(`
kind: ServiceEntry
metadata: {name: %[1]s, namespace: default}
spec:
  hosts: [%[1]s.example.com]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: %[2]s, targetPort: %[3]s, name: tcp, protocol: TCP}]
  endpoints: [{address: 127.0.0.1}]
---`, name, port, to)
	}
	newBalancing(t, address, service("one", ports[0], a)+service("two", ports[1], a)+service("moved", "1", b)+service("hidden", ports[2], a)+fmt.Sprintf(`
kind: VirtualService
metadata: {name: two, namespace: default}
spec:
  hosts: [two.example.com]
  tcp: [{route: [{destination: {host: moved.example.com}}]}]
---
kind: Sidecar
metadata: {name: default, namespace: default}
spec:
  egress:
  - {port: {number: %s, protocol: TCP, name: one}, hosts: [./one.example.com]}
  - {port: {number: %s, protocol: TCP, name: two}, hosts: [./two.example.com]}
  - {port: {number: %s, protocol: TCP, name: hidden}, hosts: [./one.example.com]}
  - {hosts: [./moved.example.com]}
  outboundTrafficPolicy: {mode: REGISTRY_ONLY}
`, ports[0], ports[1], ports[2]), nil)
	for i, want := range []string{"a", "b"} {
		status, body := get(t, http.DefaultClient, "http://"+net.JoinHostPort(address, ports[i])+"/", "")
		if word, _, _ := strings.Cut(body, " "); status != http.StatusOK || word != want {
			t.Errorf("stream %d reaches %d %q, want %s", i, status, word, want)
		}
	}
	if conn, err := net.Dial("tcp", net.JoinHostPort(address, ports[2])); err == nil {
		_ = conn.Close() // it should not exist
		t.Error("a port without an imported service accepts connections")
	}
}

// throughTunnel opens a tunnel, and returns its status and, if it is open, the first word of the
// response to a request through it.
func throughTunnel(t *testing.T, proxy, authority string) string {
	t.Helper()
	conn, err := net.Dial("tcp", proxy)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }() // the response was read
	if err := conn.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	read := bufio.NewReader(conn)
	ask := func(request string, method string) (int, string) {
		if _, err := io.WriteString(conn, request); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(read, &http.Request{Method: method})
		if err != nil {
			t.Fatal(err)
		}
		if method == http.MethodConnect && resp.StatusCode == http.StatusOK {
			return resp.StatusCode, ""
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	status, body := ask(fmt.Sprintf("CONNECT %[1]s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", authority), http.MethodConnect)
	if status != http.StatusOK {
		if status == http.StatusBadGateway && body != unknownHostBody {
			t.Errorf("%s: %q", authority, body)
		}
		return strconv.Itoa(status)
	}
	_, body = ask("GET / HTTP/1.1\r\nHost: inside\r\nConnection: close\r\n\r\n", http.MethodGet)
	word, _, _ := strings.Cut(body, " ")
	return strconv.Itoa(status) + " " + word
}
