// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// tunnels are services behind the HTTP proxy. PORT_A and PORT_B are ports of applications.
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
metadata: {name: wild, namespace: default}
spec:
  hosts: ["*.localhost"]
  location: MESH_EXTERNAL
  resolution: DYNAMIC_DNS
  ports: [{number: PORT_A, name: tls, protocol: TLS}]
`

// TestEnvoyTunnels opens tunnels through the HTTP proxy with CONNECT, to services and to other hosts.
func TestEnvoyTunnels(t *testing.T) {
	t.Parallel()
	a, b := backend(t, "a"), backend(t, "b")
	objects := strings.NewReplacer("PORT_A", a, "PORT_B", b).Replace(tunnels)
	const only = `
---
kind: Sidecar
metadata: {name: default, namespace: default}
spec: {egress: [{hosts: ["*/*"]}], outboundTrafficPolicy: {mode: REGISTRY_ONLY}}
`
	for _, world := range []struct {
		name, address, objects string
		asks                   map[string]string // by authority: the status of CONNECT, and who answers through the tunnel
	}{
		{"any", "127.77.56.90", objects, map[string]string{
			"direct.example.com:443": "200 a", "direct.example.com:5432": "200 a", "direct.example.com:80": "404", // requests of HTTP need no tunnel
			"moved.example.com:443": "200 b", "moved.example.com:5432": "200 b",
			"some.localhost:" + a: "200 a", "localhost:" + b: "200 b", "127.0.0.1:" + b: "200 b", "nobody.invalid:443": "502",
		}},
		{"registry only", "127.77.56.91", objects + only, map[string]string{
			"direct.example.com:443": "200 a", "moved.example.com:443": "200 b", "some.localhost:" + a: "200 a",
			"localhost:" + b: "403", "127.0.0.1:" + b: "403",
		}},
	} {
		t.Run(world.name, func(t *testing.T) {
			proxy := ""
			newBalancing(t, world.address, world.objects, func(p *model.Proxy) {
				proxy = net.JoinHostPort(world.address, strconv.Itoa(int(p.HTTPProxyPort)))
			})
			for authority, want := range world.asks {
				if got := throughTunnel(t, proxy, authority); got != want {
					t.Errorf("%s: %s, want %s", authority, got, want)
				}
			}
		})
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
