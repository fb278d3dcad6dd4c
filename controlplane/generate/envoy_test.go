// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
	"github.com/outrigger-mesh/outrigger/xdsproxy/wasm/wasmtest"
)

// envoyBinary returns the path of the Envoy for tests, or skips the test.
func envoyBinary(t testing.TB) string {
	t.Helper()
	if path := os.Getenv("ENVOY"); path != "" {
		return path
	}
	if path, err := filepath.Abs("../../bin/envoy"); err == nil {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	path, err := exec.LookPath("envoy")
	if err != nil {
		t.Skip("no Envoy found: run `make envoy`, or set ENVOY to its path")
	}
	return path
}

// TestEnvoyAccepts validates the resources of every case with the real Envoy.
func TestEnvoyAccepts(t *testing.T) {
	t.Parallel()
	binary := envoyBinary(t)
	for _, c := range testCases(t) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			validateWithEnvoy(t, binary, c.build(), c.proxy)
		})
	}
}

// newFields are fields that a supported Envoy may not know yet: the minor version of 1.x that
// added them, and the JSON to remove for older ones. Envoy ignores unknown fields over xDS, but
// not in a static file. docs/compatibility.md lists what does not work with an older Envoy.
var newFields = []struct {
	since int
	field *regexp.Regexp
}{
	{38, regexp.MustCompile(`"noContextPropagation":true,?`)},
	{39, regexp.MustCompile(`"budgetInterval":"[0-9.]+s",?`)},
}

// validateWithEnvoy fails unless Envoy accepts the resources of a proxy without deprecation
// warnings.
func validateWithEnvoy(t *testing.T, binary string, mesh *snapshot.Mesh, proxy *model.Proxy) {
	t.Helper()
	known := *proxy
	known.Envoy = "1." + strconv.Itoa(envoyMinor(t)) + ".0"
	config := staticBootstrap(t, mesh, &known)
	for _, f := range newFields {
		if envoyMinor(t) < f.since {
			config = f.field.ReplaceAll(config, nil)
		}
	}
	path := filepath.Join(t.TempDir(), "envoy.json")
	if err := os.WriteFile(path, config, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), binary, "--mode", "validate", "-c", path, "--concurrency", "1").CombinedOutput()
	if err != nil && bytes.Contains(config, []byte("envoy.wasm.runtime")) {
		wasmtest.NeedRuntime(t, binary)
	}
	if err != nil {
		t.Fatalf("envoy refuses the configuration: %v\n%s", err, out)
	}
	if strings.Contains(strings.ToLower(string(out)), "deprecated") {
		t.Errorf("envoy finds deprecated fields:\n%s", out)
	}
}

// printed is what envoy --version prints. Many tests ask, and starting Envoy takes a tenth of a second.
var printed struct {
	sync.Once
	out []byte
	err error
}

// envoyVersion returns the version that the Envoy of the tests prints.
func envoyVersion(t testing.TB) string {
	t.Helper()
	binary := envoyBinary(t)
	printed.Do(func() { printed.out, printed.err = exec.Command(binary, "--version").Output() })
	if printed.err != nil {
		t.Fatalf("envoy --version: %v", printed.err)
	}
	return string(printed.out)
}

// envoyMinor returns the x of Envoy 1.x.
func envoyMinor(t testing.TB) int {
	t.Helper()
	out := envoyVersion(t)
	match := regexp.MustCompile(`/1\.(\d+)\.\d+`).FindStringSubmatch(out)
	if match == nil {
		t.Fatalf("envoy --version names no version: %s", out)
	}
	minor, err := strconv.Atoi(match[1])
	if err != nil {
		t.Fatal(err)
	}
	return minor
}

// staticBootstrap returns a static configuration with all resources: routes are embedded in
// listeners, and endpoints in clusters.
func staticBootstrap(t testing.TB, mesh *snapshot.Mesh, proxy *model.Proxy) []byte {
	t.Helper()
	g := New(Config{})
	var clusters, listeners []json.RawMessage
	clusters = append(clusters, json.RawMessage(`{"name":"sds-grpc","type":"STATIC","connect_timeout":"1s",
		"typed_extension_protocol_options":{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions":{
			"@type":"type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions","explicit_http_config":{"http2_protocol_options":{}}}},
		"load_assignment":{"cluster_name":"sds-grpc","endpoints":[{"lb_endpoints":[{"endpoint":{"address":{"pipe":{"path":"./socket"}}}}]}]}}`))
	endpoints := g.Generate(mesh, proxy, xds.TypeEndpoint)
	for _, r := range g.Generate(mesh, proxy, xds.TypeCluster).Resources {
		c := unpack(t, r).(*clusterv3.Cluster)
		if c.GetType() == clusterv3.Cluster_EDS {
			cla := endpoints.Get(c.GetName())
			if cla == nil {
				t.Fatalf("no endpoints for the cluster %s", c.GetName())
			}
			c.LoadAssignment = unpack(t, cla).(*endpointv3.ClusterLoadAssignment)
			c.EdsClusterConfig, c.ClusterDiscoveryType = nil, &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}
		}
		clusters = append(clusters, compactJSON(t, c))
	}
	routes := g.Generate(mesh, proxy, xds.TypeRoute)
	for _, r := range g.Generate(mesh, proxy, xds.TypeListener).Resources {
		l := unpack(t, r).(*listenerv3.Listener)
		inlineRoutes(t, l, routes)
		inlinePlugins(t, l, g.Generate(mesh, proxy, xds.TypeExtension))
		listeners = append(listeners, compactJSON(t, l))
	}
	b, err := json.Marshal(map[string]any{
		"node": map[string]any{"id": "test", "cluster": "test"},
		"layered_runtime": map[string]any{"layers": []any{map[string]any{ // as in the agent's bootstrap
			"name": "global", "static_layer": map[string]any{"re2.max_program_size.error_level": "32768"},
		}}},
		"static_resources": map[string]any{"clusters": clusters, "listeners": listeners},
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// inlineRoutes replaces the names of routes in a listener by the routes.
func inlineRoutes(t testing.TB, l *listenerv3.Listener, routes *xds.Set) {
	t.Helper()
	for _, chain := range l.GetFilterChains() {
		for _, f := range chain.GetFilters() {
			msg, err := f.GetTypedConfig().UnmarshalNew()
			if err != nil {
				t.Fatal(err)
			}
			hcm, ok := msg.(*hcmv3.HttpConnectionManager)
			if !ok || hcm.GetRds() == nil {
				continue
			}
			r := routes.Get(hcm.GetRds().GetRouteConfigName())
			if r == nil {
				t.Fatalf("no routes %q for the listener %s", hcm.GetRds().GetRouteConfigName(), l.GetName())
			}
			hcm.RouteSpecifier = &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: unpack(t, r).(*routev3.RouteConfiguration)}
			packed := &anypb.Any{}
			if err := anypb.MarshalFrom(packed, hcm, proto.MarshalOptions{}); err != nil {
				t.Fatal(err)
			}
			f.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: packed}
		}
	}
}
