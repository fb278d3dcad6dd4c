// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"google.golang.org/grpc"
	grpccredentials "google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/outrigger-mesh/outrigger/controlplane/discovery/debug"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery/debug/debugtest"
	"github.com/outrigger-mesh/outrigger/controlplane/generate"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
	"github.com/outrigger-mesh/outrigger/xdsproxy"
)

// TestDebugThroughAgent queries the debug port of the agent's relay, over HTTP as "outrigger-agent
// request" does and over gRPC as istioctl does.
func TestDebugThroughAgent(t *testing.T) {
	t.Parallel()
	for name, delta := range map[string]bool{"sotw": false, "delta": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := startAgent(t, delta)
			for path, want := range map[string]string{
				"/debug/syncz":                                    `"genericXdsConfigs"`,
				"/debug/ndsz":                                     `"a.example.com"`,
				"/debug/config_dump":                              `envoy.admin.v3.ClustersConfigDump`,
				"/debug?resourceName=config_dump":                 `a.example.com`,
				"/debug?resourceName=syncz":                       `"proxy": "gateway-1.default"`,
				"/debug/config_dump?resourceName=other.elsewhere": `no proxy \"other.elsewhere\"`,
				"/debug/mesh":                                     `for callers of the namespace istio-system`,
			} {
				if got := httpGet(t, "http://"+address+path); !strings.Contains(got, want) {
					t.Errorf("%s: %s lacks %s", path, got, want)
				}
			}
			conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			s, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(t.Context())
			if err == nil {
				err = s.Send(&discoveryv3.DiscoveryRequest{TypeUrl: debug.Type + "/syncz", Node: &corev3.Node{Id: "sidecar~0.0.0.0~istioctl.default~default.svc.cluster.local"}})
			}
			if err != nil {
				t.Fatal(err)
			}
			r, err := s.Recv()
			if err != nil {
				t.Fatal(err)
			}
			var c statusv3.ClientConfig
			if len(r.Resources) != 1 || r.Resources[0].UnmarshalTo(&c) != nil || c.GetNode().GetId() != "gateway-1.default" {
				t.Errorf("got %v", r)
			}
		})
	}
}

// startAgent runs a relay with its debug port between a server and an Envoy, which has requested
// its clusters.
func startAgent(t *testing.T, delta bool) (address string) {
	t.Helper()
	h := &harness{}
	root := mint(t, "root")
	server, client := root.issue(t, "server").tls(root)
	h.serve(t, Config{Generator: generate.New(generate.Config{}), Workers: 2}, gatewayCaller, grpccredentials.NewTLS(server), grpccredentials.NewTLS(client))
	h.server.Push(snapshotOf(nil, nil, debugtest.External("a", "240.0.0.1")), model.Change{All: true})
	socket := filepath.Join(t.TempDir(), "XDS")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	relay, err := xdsproxy.New(xdsproxy.Config{Listener: listener, Upstream: xdsproxy.UpstreamConfig{
		Address: h.address, ServerName: "localhost", TLS: func() (*tls.Config, error) { return client, nil },
	}})
	if err != nil {
		t.Fatal(err)
	}
	port, err := net.Listen("tcp", "127.77.103.1:0")
	if err != nil {
		t.Fatal(err)
	}
	debug, err := xdsproxy.NewDebug(xdsproxy.DebugConfig{Listener: port, Proxy: relay})
	if err != nil {
		t.Fatal(err)
	}
	for _, run := range []func(context.Context) error{relay.Run, debug.Run} {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- run(ctx) }()
		t.Cleanup(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	envoy := &harness{client: discoveryv3.NewAggregatedDiscoveryServiceClient(conn)}
	p := envoy.connect(t, delta)
	p.node = shopNode(t, map[string]any{"SERVICE_ACCOUNT": "gateway"})
	p.node.Id = "sidecar~127.77.103.2~gateway-1.default~default.svc.cluster.local"
	p.subscribe(xds.TypeCluster)
	p.any()
	return port.Addr().String()
}

func httpGet(t *testing.T, url string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("%s: %s, %v", url, resp.Status, err)
	}
	return string(b)
}
