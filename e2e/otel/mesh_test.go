// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package otel

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/e2e/envoytest"
	"github.com/outrigger-mesh/outrigger/e2e/meshtest"
	"github.com/outrigger-mesh/outrigger/e2e/ownnet"
)

func TestMain(m *testing.M) { os.Exit(ownnet.Tests(m).Run()) }

// mesh is a running mesh. Each client is a workload whose Envoy a test uses.
type mesh struct {
	network string // the first three bytes of its addresses
	clients []string
}

// meshOf runs a mesh with a catalog and clients until the test ends. The collector is the service
// collector.observe in the objects.
func meshOf(t *testing.T, m mesh, c *collector, settings, objects string) mesh {
	t.Helper()
	envoytest.Binary(t) // says why the test cannot run
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir, bin := t.TempDir(), filepath.Join(root, "bin")
	var file strings.Builder
	fmt.Fprintf(&file, "config: config\nnetwork: %s.0/24\nmesh:\n%s\nworkloads:\n", m.network, indent(settings))
	fmt.Fprintf(&file, "- {name: catalog, command: [%s/shop, catalog, --listen, \"127.0.0.1:$(PORT)\"], port: %s, servicePort: 8080}\n", bin, port(t))
	for _, name := range m.clients {
		fmt.Fprintf(&file, "- {name: %s, command: [sleep, infinity]}\n", name)
	}
	ports := strings.NewReplacer("PORT_GRPC", c.grpcPort, "PORT_OTLP", c.httpPort, "PORT_ZIPKIN", c.zipkinPort)
	for name, text := range map[string]string{"mesh.yaml": file.String(), "config/objects.yaml": ports.Replace(collectorEntry + objects)} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	meshtest.Run(t, bin, dir)
	return m
}

const collectorEntry = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: collector, namespace: observe}
spec:
  hosts: [collector.observe.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 4317, name: grpc, protocol: GRPC}, {number: 4318, name: http-otlp, protocol: HTTP}, {number: 9411, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1, ports: {grpc: PORT_GRPC, http-otlp: PORT_OTLP, http: PORT_ZIPKIN}}]
`

// telemetryOf returns a Telemetry object with a spec for a workload.
func telemetryOf(workload, spec string) string {
	return "---\napiVersion: telemetry.istio.io/v1\nkind: Telemetry\nmetadata: {name: " + workload + ", namespace: default}\n" +
		"spec:\n  selector: {matchLabels: {app: " + workload + "}}\n" + indent(spec) + "\n"
}

func indent(text string) string {
	return "  " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n  ")
}

func port(t *testing.T) string {
	t.Helper()
	p, err := ownnet.FreePort("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// get requests a path of the catalog through the Envoy of a client and returns the status. A request
// without an answer ends the test.
func (m mesh) get(t *testing.T, from, path string, header ...string) int {
	t.Helper()
	address := ""
	for i, name := range m.clients {
		if name == from {
			address = fmt.Sprintf("%s.%d:15080", m.network, i+3) // after the control plane and the catalog
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://catalog:8080"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range header {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	through := &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: address}), DisableKeepAlives: true}, Timeout: 2 * time.Minute}
	resp, err := through.Do(req)
	if err != nil {
		t.Fatalf("%s from %s: %v", path, from, err)
	}
	_, err = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close() // it was read
	if err != nil {
		t.Fatalf("%s from %s: %v", path, from, err)
	}
	return resp.StatusCode
}
