// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/e2e/envoytest"
	"github.com/outrigger-mesh/outrigger/e2e/ownnet"
)

// trafficMesh has two versions of a service, one service on port 80, and an
// inbound port, all in plaintext.
const trafficMesh = `
kind: ServiceEntry
metadata: {name: catalog, namespace: default}
spec:
  hosts: [catalog.default.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 8080, name: http, protocol: HTTP}]
  endpoints:
  - {address: 127.0.0.1, ports: {http: PORT_V1}, labels: {version: v1}}
  - {address: 127.0.0.1, ports: {http: PORT_V2}, labels: {version: v2}}
---
kind: ServiceEntry
metadata: {name: web, namespace: other}
spec:
  hosts: [web.other.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  addresses: [240.0.0.1]
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1, ports: {http: PORT_V1}}]
---
kind: DestinationRule
metadata: {name: catalog, namespace: default}
spec:
  host: catalog
  subsets: [{name: v1, labels: {version: v1}}, {name: v2, labels: {version: v2}}]
---
kind: VirtualService
metadata: {name: catalog, namespace: default}
spec:
  hosts: [catalog]
  http:
  - match: [{headers: {x-user: {exact: tester}}}]
    route: [{destination: {host: catalog, subset: v2}}]
  - match: [{withoutHeaders: {x-known: {exact: "yes"}}, uri: {prefix: /unknown}}]
    directResponse: {status: 403}
  - match: [{uri: {prefix: /nowhere}}]
    route: [{destination: {host: catalog, subset: v9}}]
  - route: [{destination: {host: catalog, subset: v1}}]
---
kind: PeerAuthentication
metadata: {name: default, namespace: istio-system}
spec: {mtls: {mode: DISABLE}}
---
kind: Sidecar
metadata: {name: frontend, namespace: default}
spec:
  ingress: [{port: {number: PORT_IN, protocol: HTTP, name: http}, defaultEndpoint: "127.0.0.1:PORT_V1"}]
`

// TestTraffic sends requests through the real Envoy as an application does, with virtual hosts
// inside the routes and as separate resources.
func TestTraffic(t *testing.T) {
	t.Parallel()
	t.Run("inside", func(t *testing.T) { testTraffic(t, "127.81.0.2", false) })
	t.Run("VHDS", func(t *testing.T) { testTraffic(t, "127.77.141.2", true) })
}

func testTraffic(t *testing.T, address string, vhds bool) {
	t.Parallel()
	binary := envoytest.Binary(t)
	free := freePorts(t, address, 2)
	proxyPort, inboundPort := free[0], free[1]
	text := strings.NewReplacer("PORT_V1", backend(t, "v1"), "PORT_V2", backend(t, "v2"), "PORT_IN", inboundPort).Replace(trafficMesh)
	settings := meshconfig.Default()
	settings.EnableAutoMtls = wrapperspb.Bool(false)
	mesh := snapshot.Build(nil, inputOf(decode(t, text), settings), model.Change{All: true})
	proxy := proxyAt(address)
	port, err := strconv.ParseUint(proxyPort, 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	proxy.HTTPProxyPort = uint32(port)
	bootstrap := staticBootstrap(t, mesh, proxy)
	if vhds {
		proxy.VHDS = true
		bootstrap = serveDelta(t, mesh, proxy)
	}
	runEnvoy(t, binary, bootstrap, address+":"+proxyPort)

	tests := []struct {
		url    string
		header string
		status int
		body   string
	}{
		{"http://catalog:8080/", "", 200, "v1 catalog:8080"},
		{"http://catalog.default:8080/", "", 200, "v1 catalog.default:8080"},
		{"http://catalog.default.svc:8080/", "", 200, "v1 catalog.default.svc:8080"},
		{"http://CATALOG.default.svc.cluster.local:8080/", "", 200, "v1 CATALOG.default.svc.cluster.local:8080"},
		{"http://catalog:8080/", "x-user: tester", 200, "v2 catalog:8080"},
		{"http://catalog:8080/unknown", "", 403, ""},
		{"http://catalog:8080/unknown", "x-known: yes", 200, "v1 catalog:8080"},
		{"http://catalog:8080/nowhere", "", 503, ""},
		{"http://web.other/", "", 200, "v1 web.other"},
		{"http://web.other.svc.cluster.local:80/", "", 200, "v1 web.other.svc.cluster.local"},
		{"http://240.0.0.1/", "", 200, "v1 240.0.0.1"},
		{"http://web/", "", 502, unknownHostBody},
		{"http://catalog/", "", 502, unknownHostBody},
		{"http://nobody.example.com:8080/", "", 502, unknownHostBody},
	}
	through := &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: address + ":" + proxyPort})}}
	for _, tc := range tests {
		status, body := get(t, through, tc.url, tc.header)
		if status != tc.status || !strings.HasPrefix(body, tc.body) {
			t.Errorf("%s [%s]: %d %q, want %d %q", tc.url, tc.header, status, body, tc.status, tc.body)
		}
	}
	if status, body := get(t, http.DefaultClient, "http://"+address+":"+inboundPort+"/", ""); status != 200 || !strings.HasPrefix(body, "v1") {
		t.Errorf("inbound: %d %q", status, body)
	}
}

// backend starts an application that responds with its name and the requested host, and returns
// its port.
func backend(t *testing.T, name string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, "%s %s", name, r.Host) // the client detects missing data
	}))
	t.Cleanup(s.Close)
	_, port, err := net.SplitHostPort(s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// freePorts returns different ports of an address.
func freePorts(t testing.TB, address string, n int) (ports []string) {
	t.Helper()
	for len(ports) < n {
		port, err := ownnet.FreePort(address)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(ports, port) {
			ports = append(ports, port)
		}
	}
	return ports
}

// runEnvoy runs Envoy until the test ends, and waits until it listens.
func runEnvoy(t testing.TB, binary string, bootstrap []byte, address string, args ...string) (output string, pid int) {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "envoy.json")
	if err := os.WriteFile(path, bootstrap, 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "envoy.log"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, binary, append([]string{"-c", path, "--concurrency", "1", "--disable-hot-restart", "--log-level", "warning"}, args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		cancel()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // it was killed
		_ = log.Close()
		if text, err := os.ReadFile(log.Name()); err == nil && (t.Failed() || strings.Contains(string(text), "deprecated")) {
			t.Errorf("envoy said:\n%s", text)
		}
	})
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
			return log.Name(), cmd.Process.Pid
		}
		if time.Now().After(deadline) {
			t.Fatalf("envoy does not listen: %v", err)
		}
	}
}

func get(t *testing.T, client *http.Client, target, header string) (status int, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, target, nil)
	if err != nil {
		t.Fatal(err)
	}
	if name, value, ok := strings.Cut(header, ": "); ok {
		req.Header.Set(name, value)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }() // the body is read below
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}
