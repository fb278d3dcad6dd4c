// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package wasm

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/outrigger-mesh/outrigger/e2e/envoytest"
	"github.com/outrigger-mesh/outrigger/xdsproxy/wasm/wasmtest"
)

const ecdsType = "type.googleapis.com/" + extensionType

// TestEnvoy runs a real Envoy with real modules whose plugins the cache rewrites:
//   - two plugins are loaded, one as a message and one as a TypedStruct;
//   - if a new version of one of them is unusable, Envoy keeps the old one and accepts the change
//     of the other;
//   - with fail_open, requests pass without the unusable plugin;
//   - if a module is unavailable and its plugin fails closed, requests are denied until the module
//     arrives, but the listener does not wait for it.
func TestEnvoy(t *testing.T) {
	t.Parallel()
	binary := envoytest.Binary(t)
	wasmtest.NeedRuntime(t, binary)
	for _, unified := range []bool{false, true} {
		t.Run(fmt.Sprintf("unified=%t", unified), func(t *testing.T) {
			t.Parallel()
			testEnvoy(t, binary, unified)
		})
	}
}

func testEnvoy(t *testing.T, binary string, unified bool) {
	cp := newControlPlane(t)
	e := startEnvoy(t, binary, cp.address, unified)
	first, second := serveBytes(t, testModule("x-first", "1")), serveBytes(t, testModule("x-second", "1"))
	broken := serve(t, http.NotFoundHandler())
	late := testModule("x-late", "1")
	missing := http.Handler(http.NotFoundHandler())
	var there atomic.Pointer[http.Handler]
	there.Store(&missing)
	never := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*there.Load()).ServeHTTP(w, r) }))
	c := newCache(t, Config{})

	rewritten := c.RewriteResponse(t.Context(), response(t,
		pluginSpec{name: "first", url: first.URL, env: hints()}.resource(t),
		pluginSpec{name: "second", url: second.URL, env: hints()}.structured(t, false),
		pluginSpec{name: "never", url: never.URL}.resource(t)), false)
	if len(rewritten.Failures) != 1 {
		t.Fatalf("failures: %s", rewritten.Reason())
	}
	cp.push(t, rewritten.Frame)
	e.want(t, "main", "200 x-first=1 x-second=1")
	e.want(t, "closed", "403")

	changed := serveBytes(t, testModule("x-second", "2"))
	push := func(failOpen bool) {
		cp.push(t, c.RewriteResponse(t.Context(), response(t,
			pluginSpec{name: "first", url: broken.URL, failOpen: failOpen}.resource(t),
			pluginSpec{name: "second", url: changed.URL}.structured(t, true),
			pluginSpec{name: "never", url: never.URL}.resource(t)), false).Frame)
	}
	push(false)
	e.want(t, "main", "200 x-first=1 x-second=2")
	push(true)
	e.want(t, "main", "200 x-second=2")
	comes := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(late) }))
	there.Store(&comes)
	cp.push(t, c.RewriteResponse(t.Context(), response(t,
		pluginSpec{name: "first", url: broken.URL, failOpen: true}.resource(t),
		pluginSpec{name: "second", url: changed.URL}.structured(t, true),
		pluginSpec{name: "never", url: never.URL, sha256: sum(late)}.resource(t)), false).Frame)
	e.want(t, "closed", "200 x-late=1")
}

// response returns a state-of-the-world response of ECDS.
func response(t *testing.T, resources ...[]byte) []byte {
	t.Helper()
	r := &discoveryv3.DiscoveryResponse{TypeUrl: ecdsType}
	for _, b := range resources {
		a := &anypb.Any{}
		if err := proto.Unmarshal(b, a); err != nil {
			t.Fatal(err)
		}
		r.Resources = append(r.Resources, a)
	}
	b, err := proto.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// controlPlane sends ECDS responses and receives Envoy's acknowledgements.
type controlPlane struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	address   string
	responses chan *discoveryv3.DiscoveryResponse
	answers   chan *discoveryv3.DiscoveryRequest
	pushed    int
}

func newControlPlane(t *testing.T) *controlPlane {
	t.Helper()
	l := listen(t, testHost)
	cp := &controlPlane{
		address:   l.Addr().String(),
		responses: make(chan *discoveryv3.DiscoveryResponse), answers: make(chan *discoveryv3.DiscoveryRequest, 100),
	}
	s := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, cp)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return cp
}

func (cp *controlPlane) StreamAggregatedResources(s discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	go func() {
		for {
			r, err := s.Recv()
			if err != nil {
				return
			}
			if r.GetResponseNonce() != "" {
				cp.answers <- r
			}
		}
	}()
	for {
		select {
		case r := <-cp.responses:
			if err := s.Send(r); err != nil {
				return err
			}
		case <-s.Context().Done():
			return s.Context().Err()
		}
	}
}

// push sends a response and expects Envoy to accept it.
func (cp *controlPlane) push(t *testing.T, frame []byte) {
	t.Helper()
	r := &discoveryv3.DiscoveryResponse{}
	if err := proto.Unmarshal(frame, r); err != nil {
		t.Fatal(err)
	}
	cp.pushed++
	r.Nonce, r.VersionInfo = fmt.Sprint(cp.pushed), fmt.Sprint(cp.pushed)
	deadline := time.After(2 * time.Minute)
	select {
	case cp.responses <- r:
	case <-deadline:
		t.Fatal("Envoy does not connect")
	}
	for {
		select {
		case a := <-cp.answers:
			if a.GetErrorDetail() != nil {
				t.Fatalf("Envoy rejects the response: %s", a.GetErrorDetail().GetMessage())
			}
			if a.GetResponseNonce() == r.GetNonce() {
				return
			}
		case <-deadline:
			t.Fatal("Envoy does not answer")
		}
	}
}

// runningEnvoy is an Envoy with two listeners: "main" has the plugins first and second, "closed"
// the plugin never.
type runningEnvoy struct {
	admin string
}

const envoyConfig = `{
"node": {"id": "n", "cluster": "c"},
"layered_runtime": {"layers": [{"name": "static", "static_layer": {"envoy.reloadable_features.unified_mux": UNIFIED}}]},
"admin": {"address": {"socket_address": {"address": "HOST", "port_value": 0}}},
"dynamic_resources": {"ads_config": {"api_type": "GRPC", "transport_api_version": "V3", "grpc_services": [{"envoy_grpc": {"cluster_name": "xds"}}]}},
"static_resources": {
  "clusters": [{"name": "xds", "type": "STATIC",
    "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
      "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions", "explicit_http_config": {"http2_protocol_options": {}}}},
    "load_assignment": {"cluster_name": "xds", "endpoints": [{"lb_endpoints": [
      {"endpoint": {"address": {"socket_address": {"address": "XDSHOST", "port_value": XDSPORT}}}}]}]}}],
  "listeners": [LISTENERS]}}`

const listenerConfig = `{"name": "NAME", "address": {"socket_address": {"address": "HOST", "port_value": 0}},
 "filter_chains": [{"filters": [{"name": "hcm", "typed_config": {
  "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
  "stat_prefix": "NAME", "http_filters": [FILTERS, {"name": "router", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}],
  "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "direct_response": {"status": 200}}]}]}}}]}]}`

const filterDiscovery = `{"name": "NAME", "config_discovery": {
  "config_source": {"ads": {}, "resource_api_version": "V3", "initial_fetch_timeout": "TIMEOUT"},
  "type_urls": ["type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm", "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC"]}}`

func startEnvoy(t *testing.T, binary, xds string, unified bool) *runningEnvoy {
	t.Helper()
	host, port, err := net.SplitHostPort(xds)
	if err != nil {
		t.Fatal(err)
	}
	filter := func(name, timeout string) string {
		return strings.NewReplacer("NAME", name, "TIMEOUT", timeout).Replace(filterDiscovery)
	}
	listener := func(name string, filters ...string) string {
		return strings.NewReplacer("NAME", name, "HOST", testHost, "FILTERS", strings.Join(filters, ",")).Replace(listenerConfig)
	}
	config := strings.NewReplacer("XDSHOST", host, "XDSPORT", port, "HOST", testHost, "UNIFIED", fmt.Sprint(unified), "LISTENERS",
		listener("main", filter("first", "0s"), filter("second", "0s"))+","+listener("closed", filter("never", "1s"))).Replace(envoyConfig)
	dir := t.TempDir()
	admin, log := filepath.Join(dir, "admin"), filepath.Join(dir, "log")
	cmd := exec.Command(binary, "--config-yaml", config, "--admin-address-path", admin, "--log-path", log, "--concurrency", "1", "--disable-hot-restart")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have exited
		_ = cmd.Wait()         // it was killed
		if t.Failed() {
			b, _ := os.ReadFile(log)
			t.Logf("Envoy's log:\n%s", b[max(0, len(b)-8000):])
		}
	})
	e := &runningEnvoy{}
	poll(t, func() string {
		b, err := os.ReadFile(admin)
		e.admin = string(b)
		if err != nil || e.admin == "" {
			return "Envoy does not start"
		}
		return ""
	})
	return e
}

// want waits until a request to a listener has the expected status and headers of the test modules.
func (e *runningEnvoy) want(t *testing.T, listener, want string) {
	t.Helper()
	poll(t, func() string {
		address, err := e.listener(listener)
		if err != nil {
			return err.Error()
		}
		resp, err := get("http://" + address)
		if err != nil {
			return err.Error()
		}
		_ = resp.Body.Close()
		got := fmt.Sprint(resp.StatusCode)
		for _, h := range []string{"x-first", "x-second", "x-late"} {
			if v := resp.Header.Get(h); v != "" {
				got += " " + h + "=" + v
			}
		}
		if got != want {
			return fmt.Sprintf("%s: got %q, want %q", listener, got, want)
		}
		return ""
	})
}

// listener returns the address of a listener.
func (e *runningEnvoy) listener(name string) (string, error) {
	resp, err := get("http://" + e.admin + "/listeners?format=json")
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	var found struct {
		Statuses []struct {
			Name    string `json:"name"`
			Address struct {
				Socket struct {
					Address string `json:"address"`
					Port    int    `json:"port_value"`
				} `json:"socket_address"`
			} `json:"local_address"`
		} `json:"listener_statuses"`
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", err
	}
	if err := json.Unmarshal(b, &found); err != nil {
		return "", err
	}
	for _, l := range found.Statuses {
		if l.Name == name {
			return net.JoinHostPort(l.Address.Socket.Address, fmt.Sprint(l.Address.Socket.Port)), nil
		}
	}
	return "", fmt.Errorf("no listener %s", name)
}

func get(url string) (*http.Response, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	req.Close = true
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close() // it has been read to the end
	resp.Body = io.NopCloser(strings.NewReader(string(b)))
	return resp, err
}

// poll waits until ok returns no error.
func poll(t *testing.T, ok func() string) {
	t.Helper()
	complaint := ""
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if complaint = ok(); complaint == "" {
			return
		}
	}
	t.Fatal(complaint)
}
