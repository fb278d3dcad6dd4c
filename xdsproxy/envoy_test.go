// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xdsproxy

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/outrigger-mesh/outrigger/e2e/envoytest"
	"github.com/outrigger-mesh/outrigger/xdsproxy/lastgood"
)

const routeType = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"

const envoyConfig = `
node: {id: web, cluster: web}
dynamic_resources:
  ads_config: {api_type: %[1]s, transport_api_version: V3, set_node_on_first_message_only: true, grpc_services: [{envoy_grpc: {cluster_name: xds}}]}
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
    load_assignment:
      cluster_name: xds
      endpoints: [{lb_endpoints: [{endpoint: {address: {pipe: {path: %[2]s}}}}]}]
`

// startEnvoy runs an Envoy that connects to the relay until the test ends, and returns its process
// id.
func startEnvoy(t *testing.T, r *rig) (pid int) {
	t.Helper()
	api := "GRPC"
	if r.delta {
		api = "DELTA_GRPC"
	}
	cmd := exec.Command(envoytest.Binary(t), "--config-yaml", fmt.Sprintf(envoyConfig, api, r.socket), "--disable-hot-restart", "--concurrency", "1", "-l", "error")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have exited
		_ = cmd.Wait()
	})
	return cmd.Process.Pid
}

// mesh returns the resources of a control plane: a listener whose route responds with a word.
func mesh(t *testing.T, address, word string) map[string]proto.Message {
	t.Helper()
	ads := &corev3.ConfigSource{
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
		ResourceApiVersion:    corev3.ApiVersion_V3, InitialFetchTimeout: durationpb.New(0),
	}
	host, port, _ := strings.Cut(address, ":")
	var number uint32
	if _, err := fmt.Sscan(port, &number); err != nil {
		t.Fatal(err)
	}
	hcm := pack(t, &hcmv3.HttpConnectionManager{
		StatPrefix:     "web",
		RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{RouteConfigName: "r", ConfigSource: ads}},
		HttpFilters:    []*hcmv3.HttpFilter{{Name: "router", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: pack(t, &routerv3.Router{})}}},
	})
	return map[string]proto.Message{
		listenerType: &listenerv3.Listener{
			Name: "l", Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
				Address: host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: number},
			}}},
			FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{Name: "hcm", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: hcm}}}}},
		},
		routeType: &routev3.RouteConfiguration{Name: "r", VirtualHosts: []*routev3.VirtualHost{{Name: "h", Domains: []string{"*"}, Routes: []*routev3.Route{{
			Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
			Action: &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{
				Status: http.StatusOK, Body: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: word}},
			}},
		}}}}},
	}
}

func pack(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// meshAnswer returns the response with the resources of a type.
func (r *rig) meshAnswer(t *testing.T, mesh map[string]proto.Message, typeURL, nonce string) proto.Message {
	t.Helper()
	sotw := &discoveryv3.DiscoveryResponse{TypeUrl: typeURL, Nonce: nonce, VersionInfo: "1"}
	inc := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURL, Nonce: nonce}
	if m := mesh[typeURL]; m != nil {
		name := map[string]string{listenerType: "l", routeType: "r"}[typeURL]
		sotw.Resources = []*anypb.Any{pack(t, m)}
		inc.Resources = []*discoveryv3.Resource{{Name: name, Version: "1", Resource: pack(t, m)}}
	}
	if r.delta {
		return inc
	}
	return sotw
}

// answerAll makes the control plane respond to the first request for each type on each stream with
// the resources of the mesh. It must be called before start.
func (r *rig) answerAll(t *testing.T, mesh map[string]proto.Message) {
	t.Helper()
	responses := map[string]proto.Message{}
	for _, typeURL := range []string{clusterType, listenerType, routeType} {
		responses[typeURL] = r.meshAnswer(t, mesh, typeURL, "n")
	}
	r.respond = func(request proto.Message) proto.Message {
		q := says(request)
		if q.nonce != "" && !strings.HasPrefix(q.nonce, "last-good") {
			return nil
		}
		return responses[q.typeURL]
	}
}

// TestEnvoyMovesFromLastGood checks that a real Envoy that starts without a control plane serves
// with the last good configuration, and moves to the control plane without a failed request.
func TestEnvoyMovesFromLastGood(t *testing.T) {
	bothVariants(t, func(t *testing.T, delta bool) {
		dir, address := t.TempDir(), "127.77.51.20:18080"
		if delta {
			address = "127.77.51.21:18080"
		}
		envoytest.Binary(t)
		seed, last := openStored(t, dir)
		keep(t, seed, last, mesh(t, address, "old"), delta)
		_, last = openStored(t, dir)
		upstream := closedAddress(t)
		r := startRig(t, Config{LastGood: last, Upstream: UpstreamConfig{Address: upstream}}, delta)
		began := time.Now()
		startEnvoy(t, r)
		eventually(t, "envoy answers", func() bool { body, _ := fetch(t, address); return body == "old" })
		t.Logf("envoy answered %s after its start", time.Since(began))

		r.answerAll(t, mesh(t, address, "new"))
		r.start(t, listen(t, upstream))
		deadline := time.Now().Add(2 * time.Minute)
		for requests := 1; ; requests++ {
			body, err := fetch(t, address)
			if err != nil || body != "old" && body != "new" {
				t.Fatalf("request %d: %q, %v", requests, body, err)
			}
			if body == "new" {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("envoy has not moved to the control plane, status %+v", r.proxy.Status())
			}
		}
		if st := r.proxy.Status(); st.LastGood || !st.Connected {
			t.Errorf("status %+v", st)
		}
		for _, typeStatus := range r.proxy.Status().Types {
			if !typeStatus.Rejected.IsZero() {
				t.Errorf("rejected: %+v", typeStatus)
			}
		}
	})
}

// TestEnvoyAfterHalfAStart checks that a real Envoy whose control plane stops after sending the
// clusters continues with the last good configuration.
func TestEnvoyAfterHalfAStart(t *testing.T) {
	bothVariants(t, func(t *testing.T, delta bool) {
		dir, address := t.TempDir(), "127.77.51.22:18080"
		if delta {
			address = "127.77.51.23:18080"
		}
		envoytest.Binary(t)
		seed, last := openStored(t, dir)
		keep(t, seed, last, mesh(t, address, "old"), delta)
		_, last = openStored(t, dir)
		upstream := closedAddress(t)
		r := startRig(t, Config{LastGood: last, Upstream: UpstreamConfig{Address: upstream}}, delta)
		plane := r.start(t, listen(t, upstream))
		startEnvoy(t, r)
		r.nextOf(t, clusterType)
		r.answers <- r.meshAnswer(t, nil, clusterType, "n")
		receive(t, r.got, "answer, or what comes after clusters")
		plane.Stop()
		eventually(t, "envoy answers", func() bool { body, _ := fetch(t, address); return body == "old" })
	})
}

// spoil changes the listener of a mesh so that Envoy rejects it.
func spoil(mesh map[string]proto.Message) map[string]proto.Message {
	mesh[listenerType].(*listenerv3.Listener).AccessLog = []*accesslogv3.AccessLog{{Name: "unknown"}}
	return mesh
}

// configured waits until an Envoy is configured. If reason is not empty, it waits until Envoy is
// not configured for this reason.
func (r *rig) configured(t *testing.T, pid int, reason string) {
	t.Helper()
	eventually(t, "configured: "+reason, func() bool {
		err := r.proxy.Configured(pid)
		return reason == "" && err == nil || reason != "" && err != nil && strings.Contains(err.Error(), reason)
	})
}

// TestEnvoyRejectsFirst checks that a real Envoy that rejects its only listener is not configured
// until the control plane removes the listener.
func TestEnvoyRejectsFirst(t *testing.T) {
	bothVariants(t, func(t *testing.T, delta bool) {
		envoytest.Binary(t)
		r := startRig(t, Config{}, delta)
		pid := startEnvoy(t, r)
		r.nextOf(t, clusterType)
		r.answers <- r.meshAnswer(t, nil, clusterType, "1")
		for r.next(t, "request for listeners").typeURL != listenerType {
		}
		r.answers <- r.meshAnswer(t, spoil(mesh(t, "127.77.51.24:18080", "x")), listenerType, "2")
		r.configured(t, pid, "rejected its first listeners (LDS)")
		if delta {
			r.answers <- &discoveryv3.DeltaDiscoveryResponse{TypeUrl: listenerType, Nonce: "3", RemovedResources: []string{"l"}}
		} else {
			r.answers <- &discoveryv3.DiscoveryResponse{TypeUrl: listenerType, Nonce: "3", VersionInfo: "2"}
		}
		r.configured(t, pid, "")
	})
}

// TestEnvoyRejectsLastGood checks that a real Envoy that rejects a listener of the last good
// configuration is not configured until it has the configuration of the control plane.
func TestEnvoyRejectsLastGood(t *testing.T) {
	bothVariants(t, func(t *testing.T, delta bool) {
		dir, address := t.TempDir(), "127.77.51.25:18080"
		if delta {
			address = "127.77.51.26:18080"
		}
		envoytest.Binary(t)
		seed, last := openStored(t, dir)
		keep(t, seed, last, spoil(mesh(t, address, "old")), delta)
		_, last = openStored(t, dir)
		upstream := closedAddress(t)
		r := startRig(t, Config{LastGood: last, Upstream: UpstreamConfig{Address: upstream}}, delta)
		pid := startEnvoy(t, r)
		r.configured(t, pid, "rejected its last good listeners (LDS)")
		r.answerAll(t, mesh(t, address, "new"))
		r.start(t, listen(t, upstream))
		r.configured(t, pid, "")
		eventually(t, "envoy answers", func() bool { body, _ := fetch(t, address); return body == "new" })
	})
}

// keep runs a simulated Envoy that accepts a mesh, and waits until the mesh is stored.
func keep(t *testing.T, s *lastgood.Store, last *LastGood, mesh map[string]proto.Message, delta bool) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	r := startRig(t, Config{LastGood: last}, delta)
	e := r.envoy(t)
	for _, typeURL := range []string{clusterType, listenerType, routeType} {
		var names []string
		if typeURL == routeType {
			names = []string{"r"}
		}
		e.ask(typeURL, names...)
		r.nextOf(t, typeURL)
		r.answers <- r.meshAnswer(t, mesh, typeURL, typeURL)
		e.wants(typeURL, typeURL)
		e.take(typeURL, "1", typeURL, names...)
		r.nextOf(t, typeURL)
	}
	_ = e.conn.Close()
	eventually(t, "it is kept", func() bool { return s.Usable() == nil })
	cancel()
	if err := <-done; err != nil {
		t.Errorf("store: %v", err)
	}
}

func fetch(t *testing.T, address string) (string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}
