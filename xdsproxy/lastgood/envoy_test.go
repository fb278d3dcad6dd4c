// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package lastgood

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/outrigger-mesh/outrigger/e2e/envoytest"
	"github.com/outrigger-mesh/outrigger/e2e/ownnet"
)

const testHost = "127.77.52.1"

// rawCodec passes frames unchanged, like the relay.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

// relay is the server to which Envoy connects: a control plane whose streams are recorded, or the
// store.
type relay struct {
	store     *Store
	serve     bool
	resources map[string][]proto.Message // resources of the control plane by type
	mu        sync.Mutex
	rejected  []string
}

func (r *relay) listen(t *testing.T) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", testHost+":0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.ForceServerCodecV2(rawCodec{}))
	handle := func(delta bool) grpc.StreamHandler {
		return func(_ any, stream grpc.ServerStream) error { return r.stream(stream, delta) }
	}
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: "envoy.service.discovery.v3.AggregatedDiscoveryService", HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{
			{StreamName: "StreamAggregatedResources", Handler: handle(false), ServerStreams: true, ClientStreams: true},
			{StreamName: "DeltaAggregatedResources", Handler: handle(true), ServerStreams: true, ClientStreams: true},
		},
	}, nil)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

func (r *relay) stream(stream grpc.ServerStream, delta bool) error {
	recv := func() (b []byte, err error) {
		if err = stream.RecvMsg(&b); err == nil {
			r.look(b, delta)
		}
		return b, err
	}
	send := func(b []byte) error { return stream.SendMsg(&b) }
	if r.serve {
		return r.store.Serve(stream.Context(), delta, recv, send)
	}
	rec := r.store.Record(delta)
	defer rec.Close()
	sent := 0
	asked := map[string]bool{}
	for {
		b, err := recv()
		if err != nil {
			return nil //nolint:nilerr // Envoy is gone
		}
		rec.Request(mem.BufferSlice{mem.SliceBuffer(b)})
		q, err := readRequest(mem.BufferSlice{mem.SliceBuffer(b)}, delta)
		if err != nil {
			return err
		}
		first := !asked[q.typeURL]
		asked[q.typeURL] = true
		if !first && (q.nonce != "" || len(q.names) == 0) && (!delta || len(q.names) == 0) {
			continue
		}
		sent++
		if b, err = r.respond(q, delta, strconv.Itoa(sent)); err != nil {
			return err
		}
		rec.Response(mem.BufferSlice{mem.SliceBuffer(b)})
		if err := send(b); err != nil {
			return nil //nolint:nilerr // Envoy is gone
		}
	}
}

// look records Envoy's rejections.
func (r *relay) look(b []byte, delta bool) {
	if q, err := readRequest(mem.BufferSlice{mem.SliceBuffer(b)}, delta); err == nil && q.rejected != "" {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.rejected = append(r.rejected, q.typeURL+": "+q.rejected)
	}
}

// respond returns the control plane's response.
func (r *relay) respond(q request, delta bool, nonce string) ([]byte, error) {
	sotw := &discoveryv3.DiscoveryResponse{TypeUrl: q.typeURL, Nonce: nonce, VersionInfo: nonce}
	inc := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: q.typeURL, Nonce: nonce}
	for _, m := range r.resources[q.typeURL] {
		a, err := anypb.New(m)
		if err != nil {
			return nil, err
		}
		name := messageName(m)
		parent, _, _ := strings.Cut(name, "/")
		if len(q.names) > 0 && !slices.Contains(q.names, name) && !slices.Contains(q.names, parent) {
			continue
		}
		sotw.Resources = append(sotw.Resources, a)
		inc.Resources = append(inc.Resources, &discoveryv3.Resource{Name: name, Version: "1", Resource: a})
	}
	if delta {
		return proto.Marshal(inc)
	}
	return proto.Marshal(sotw)
}

func messageName(m proto.Message) string {
	if e, ok := m.(*endpointv3.ClusterLoadAssignment); ok {
		return e.GetClusterName()
	}
	return m.(interface{ GetName() string }).GetName()
}

func ads() *corev3.ConfigSource {
	return &corev3.ConfigSource{
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
		ResourceApiVersion:    corev3.ApiVersion_V3, InitialFetchTimeout: durationpb.New(0), // without a limit
	}
}

func edsCluster(name string) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name: name, ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{EdsConfig: ads()},
	}
}

func address(t *testing.T, hostPort string) *corev3.Address {
	t.Helper()
	host, port, err := net.SplitHostPort(hostPort)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(n)},
	}}}
}

func assignment(t *testing.T, cluster, hostPort string) *endpointv3.ClusterLoadAssignment {
	t.Helper()
	return &endpointv3.ClusterLoadAssignment{ClusterName: cluster, Endpoints: []*endpointv3.LocalityLbEndpoints{{
		LbEndpoints: []*endpointv3.LbEndpoint{{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{
			Endpoint: &endpointv3.Endpoint{Address: address(t, hostPort)},
		}}},
	}}}
}

func httpListener(t *testing.T, name, hostPort, routes string) *listenerv3.Listener {
	t.Helper()
	hcm := toAny(t, &hcmv3.HttpConnectionManager{
		StatPrefix: name,
		RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{
			RouteConfigName: routes, ConfigSource: ads(),
		}},
		HttpFilters: []*hcmv3.HttpFilter{{Name: "envoy.filters.http.router", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: toAny(t, &routerv3.Router{})}}},
	})
	return &listenerv3.Listener{Name: name, Address: address(t, hostPort), FilterChains: []*listenerv3.FilterChain{{
		Filters: []*listenerv3.Filter{{Name: "hcm", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: hcm}}},
	}}}
}

func host(name, domain, cluster string) *routev3.VirtualHost {
	return &routev3.VirtualHost{Name: name, Domains: []string{domain}, Routes: []*routev3.Route{{
		Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
		Action: &routev3.Route_Route{Route: &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster}}},
	}}}
}

const envoyConfig = `
node: {id: web, cluster: web}
admin: {address: {socket_address: {address: %[1]s, port_value: 0}}}
layered_runtime: {layers: [{name: static, static_layer: {envoy.reloadable_features.unified_mux: %[4]t}}]}
dynamic_resources:
  ads_config: {api_type: %[3]s, transport_api_version: V3, grpc_services: [{envoy_grpc: {cluster_name: xds}}]}
  cds_config: {ads: {}, resource_api_version: V3, initial_fetch_timeout: 0s}
  lds_config: {ads: {}, resource_api_version: V3, initial_fetch_timeout: 0s}
static_resources:
  clusters:
  - name: xds
    type: STATIC
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
    load_assignment: {cluster_name: xds, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: %[1]s, port_value: %[2]s}}}}]}]}
`

// startEnvoy starts an Envoy that connects to a relay. It waits until Envoy has its whole
// configuration, and returns how long that took.
func startEnvoy(t *testing.T, relay string, delta, unified bool) (stop func(), took time.Duration) {
	t.Helper()
	binary, dir := envoytest.Binary(t), t.TempDir()
	_, port, err := net.SplitHostPort(relay)
	if err != nil {
		t.Fatal(err)
	}
	api := map[bool]string{true: "DELTA_GRPC", false: "GRPC"}[delta]
	config, admin := filepath.Join(dir, "envoy.yaml"), filepath.Join(dir, "admin")
	if err := os.WriteFile(config, fmt.Appendf(nil, envoyConfig, testHost, port, api, unified), 0o600); err != nil {
		t.Fatal(err)
	}
	var log syncBuffer
	cmd := exec.Command(binary, "-c", config, "--admin-address-path", admin, "--concurrency", "1", "--disable-hot-restart", "-l", "warning")
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	stop = sync.OnceFunc(func() {
		_ = cmd.Process.Kill() // it may have exited
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	t.Cleanup(stop)
	eventually(t, "Envoy is ready", func() bool {
		b, err := os.ReadFile(admin)
		if err != nil {
			return false
		}
		status, _ := get("http://"+string(b)+"/ready", "")
		return status == http.StatusOK
	})
	return stop, time.Since(began)
}

// get sends a request with a Host header.
func get(url, host string) (int, string) {
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return 0, err.Error()
	}
	req.Host = host
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = res.Body.Close() }() // read-only: closing cannot lose data
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err.Error()
	}
	return res.StatusCode, string(b)
}

func freeAddress(t *testing.T) string {
	t.Helper()
	port, err := ownnet.FreePort(testHost)
	if err != nil {
		t.Fatal(err)
	}
	return net.JoinHostPort(testHost, port)
}

// takesVHDS reports whether the Envoy binary supports virtual hosts over ADS.
func takesVHDS(t *testing.T) bool {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), envoytest.Binary(t), "--version").CombinedOutput()
	if err != nil {
		t.Fatalf("envoy --version: %v: %s", err, out)
	}
	return !strings.Contains(string(out), "/1.36.")
}

// TestEnvoy boots a real Envoy from what another one acknowledged:
//   - an Envoy gets its configuration from a control plane and answers;
//   - the control plane and the agent's process are gone;
//   - a new Envoy gets the same from a store that was opened again and answers,
//     over the other protocol as well.
func TestEnvoy(t *testing.T) {
	t.Parallel()
	envoytest.Binary(t)
	for _, tc := range []struct{ recorded, served, unified bool }{
		{true, true, false},
		{true, true, true},
		{false, false, false},
		{false, false, true},
		{true, false, false},
		{false, true, true},
	} {
		t.Run(fmt.Sprintf("recorded delta=%t, served delta=%t, unified=%t", tc.recorded, tc.served, tc.unified), func(t *testing.T) {
			t.Parallel()
			backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
			t.Cleanup(backend.Close)
			at, dynamic := freeAddress(t), freeAddress(t)
			r := &relay{resources: map[string][]proto.Message{
				clusterType:  {edsCluster("web"), edsCluster("other")},
				endpointType: {assignment(t, "web", backend.Listener.Addr().String()), assignment(t, "other", backend.Listener.Addr().String())},
				listenerType: {httpListener(t, "in", at, "routes")},
				routeType:    {&routev3.RouteConfiguration{Name: "routes", VirtualHosts: []*routev3.VirtualHost{host("any", "any", "web")}}},
			}}
			vhds := tc.recorded && tc.served && takesVHDS(t)
			if vhds {
				r.resources[listenerType] = append(r.resources[listenerType], httpListener(t, "dynamic", dynamic, "hosts"))
				r.resources[routeType] = append(r.resources[routeType], &routev3.RouteConfiguration{Name: "hosts", Vhds: &routev3.Vhds{ConfigSource: ads()}})
				r.resources[virtualHostType] = []proto.Message{host("hosts/one", "one", "web"), host("hosts/two", "two", "other")}
			}
			check := func(what string) {
				t.Helper()
				if status, body := get("http://"+at, "any"); status != 200 || body != "hello" {
					t.Errorf("%s: got %d %q", what, status, body)
				}
				for _, name := range []string{"one", "two"} {
					if status, body := get("http://"+dynamic, name); vhds && (status != 200 || body != "hello") {
						t.Errorf("%s, virtual host %s: got %d %q", what, name, status, body)
					}
				}
			}
			r.store = open(t, config(t))
			halt := run(t, r.store)
			stop, _ := startEnvoy(t, r.listen(t), tc.recorded, tc.unified)
			check("with the control plane")
			eventually(t, "a snapshot", func() bool { return r.store.Usable() == nil })
			stop()
			halt()

			cold := &relay{store: open(t, r.store.cfg), serve: true}
			if err := cold.store.Usable(); err != nil {
				t.Fatal(err)
			}
			_, took := startEnvoy(t, cold.listen(t), tc.served, tc.unified)
			t.Logf("Envoy was ready after %s", took)
			check("without the control plane")
			cold.mu.Lock()
			defer cold.mu.Unlock()
			if len(cold.rejected) > 0 {
				t.Errorf("Envoy rejected %q", cold.rejected)
			}
		})
	}
}

// TestEnvoyWithGaps boots a real Envoy from a state in which things are
// missing. It must not wait for them:
//   - endpoints and a route configuration that were never sent;
//   - virtual hosts of a route configuration that has none.
func TestEnvoyWithGaps(t *testing.T) {
	t.Parallel()
	envoytest.Binary(t)
	for _, tc := range []struct{ delta, unified bool }{{true, false}, {true, true}, {false, false}, {false, true}} {
		t.Run(fmt.Sprintf("delta=%t, unified=%t", tc.delta, tc.unified), func(t *testing.T) {
			t.Parallel()
			backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
			t.Cleanup(backend.Close)
			at, lost := freeAddress(t), freeAddress(t)
			listeners := []proto.Message{httpListener(t, "in", at, "routes"), httpListener(t, "lost", lost, "lost")}
			routes := []proto.Message{&routev3.RouteConfiguration{Name: "routes", VirtualHosts: []*routev3.VirtualHost{host("any", "any", "web"), host("gone", "gone", "gone")}}}
			empty := freeAddress(t)
			vhds := tc.delta && takesVHDS(t)
			if vhds {
				listeners = append(listeners, httpListener(t, "empty", empty, "empty"))
				routes = append(routes, &routev3.RouteConfiguration{Name: "empty", Vhds: &routev3.Vhds{ConfigSource: ads()}})
			}
			store := open(t, config(t))
			stop := run(t, store)
			s := newStream(t, store, true)
			s.give(clusterType, edsCluster("web"), edsCluster("gone"))
			s.give(endpointType, assignment(t, "web", backend.Listener.Addr().String()))
			s.give(listenerType, listeners...)
			s.give(routeType, routes...)
			s.rec.Close()
			eventually(t, "a snapshot", func() bool { return store.Usable() == nil })
			stop()

			r := &relay{store: store, serve: true}
			startEnvoy(t, r.listen(t), tc.delta, tc.unified)
			for _, want := range []struct {
				address, host string
				status        int
			}{{at, "any", 200}, {at, "gone", 503}, {lost, "any", 404}, {empty, "any", 404}} {
				if want.address == empty && !vhds {
					continue
				}
				if got, body := get("http://"+want.address, want.host); got != want.status {
					t.Errorf("%s of %s: got %d %q, want %d", want.host, want.address, got, body, want.status)
				}
			}
		})
	}
}
