// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"net/http"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// TestProxyCertificateExpires checks that a proxy with an expired certificate is not ready,
// regardless of Envoy, and reports the reason. With a new certificate it must be ready again.
func TestProxyCertificateExpires(t *testing.T) {
	t.Parallel()
	const life = 6 * time.Second
	old := newControlPlane(t)
	a := startAgent(t, "127.77.104.2", `,"terminationDrainDuration":"0s"`, old, "SECRET_TTL="+life.String())
	a.waitReady()
	old.server.Stop()
	ends := time.Now().Add(life) // at the latest
	var code int
	var body string
	eventually(t, "the proxy is not ready", func() bool {
		code, body = a.get(15020, "/healthz/ready")
		return code != http.StatusOK
	})
	if code != http.StatusServiceUnavailable || !strings.HasPrefix(body, "the workload's certificate expired at 20") ||
		!strings.Contains(body, "\ncontrol plane: lost ") || !strings.Contains(body, "\ncertificate: until 20") {
		t.Errorf("readiness: got %d %s", code, body)
	}
	if late := time.Since(ends); late > time.Minute {
		t.Errorf("the proxy was ready for %s with an expired certificate", late)
	}
	// Health checks of load balancers go through Envoy, which is still serving.
	if code, _ := a.get(15021, "/healthz/ready"); code != http.StatusServiceUnavailable {
		t.Errorf("readiness through Envoy: got %d, want 503", code)
	}
	if code, body := a.get(15000, "/ready"); code != http.StatusOK {
		t.Errorf("Envoy's own readiness: got %d %s, want 200", code, body)
	}
	next := newControlPlaneAt(t, old.address)
	writeIn(t, a.dir, "var/run/secrets/istio/root-cert.pem", next.rootPEM())
	a.waitReady()
}

// TestProxyReadinessReportsRejection checks that readiness reports rejected resources with
// Envoy's error, before and after Envoy was ready.
func TestProxyReadinessReportsRejection(t *testing.T) {
	t.Parallel()
	const clusterType, listenerType = "type.googleapis.com/envoy.config.cluster.v3.Cluster", "type.googleapis.com/envoy.config.listener.v3.Listener"
	for name, c := range map[string]struct {
		address, typeURL string
		want             []string
	}{
		"clusters":  {"127.77.104.3", clusterType, []string{"envoy has rejected every configuration of its clusters (CDS) so far", "\nrejected ", ": " + clusterType + ": ", "broken-one"}},
		"listeners": {"127.77.104.4", listenerType, []string{"envoy has rejected every configuration of its listeners (LDS) so far", "\nrejected ", ": " + listenerType + ": ", "broken-one"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cp := newControlPlane(t)
			// The resource has a name, but lacks a required field: an address, or the source of a
			// cluster of type EDS, which is the value 3 of field 2.
			cp.resources = map[string][]*discoveryv3.Resource{c.typeURL: {{
				Name: "broken-one", Version: "1", Resource: &anypb.Any{TypeUrl: c.typeURL, Value: append([]byte{2 << 3, 3, 1<<3 | 2, 10}, "broken-one"...)},
			}}}
			a := startAgent(t, c.address, `,"terminationDrainDuration":"0s"`, cp)
			last := ""
			eventually(t, "the response contains the rejected resource", func() bool {
				code, body := a.get(15020, "/healthz/ready")
				if code == http.StatusOK {
					t.Fatalf("the proxy is ready: %s", body)
				}
				if body != last {
					t.Logf("%d %s", code, body)
					last = body
				}
				for _, part := range c.want {
					if !strings.Contains(body, part) {
						return false
					}
				}
				return true
			})
		})
	}
}

// TestProxyNotReadyWithoutFirstRoutes checks that a proxy whose Envoy has rejected its first
// routes is not ready, because it would respond to every request with 404. It must report what was
// rejected and why.
func TestProxyNotReadyWithoutFirstRoutes(t *testing.T) {
	t.Parallel()
	const listenerType, routeType = "type.googleapis.com/envoy.config.listener.v3.Listener", "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
	ads := &corev3.ConfigSource{ResourceApiVersion: corev3.ApiVersion_V3, ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}}}
	manager := anyOf(t, &hcmv3.HttpConnectionManager{
		StatPrefix:     "x",
		RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{ConfigSource: ads, RouteConfigName: "first"}},
		HttpFilters: []*hcmv3.HttpFilter{{
			Name: "router", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: anyOf(t, &routerv3.Router{})},
		}},
	})
	listener := &listenerv3.Listener{
		Name: "web",
		Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
			Address: "127.77.104.5", PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 0},
		}}},
		FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{
			Name: "http", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: manager},
		}}}},
	}
	routes := &routev3.RouteConfiguration{Name: "first", VirtualHosts: []*routev3.VirtualHost{
		{Name: "twice", Domains: []string{"a.example.com"}}, {Name: "again", Domains: []string{"a.example.com"}},
	}}
	cp := newControlPlane(t)
	cp.resources = map[string][]*discoveryv3.Resource{
		listenerType: {{Name: "web", Version: "1", Resource: anyOf(t, listener)}},
		routeType:    {{Name: "first", Version: "1", Resource: anyOf(t, routes)}},
	}
	a := startAgent(t, "127.77.104.5", `,"terminationDrainDuration":"0s"`, cp)
	eventually(t, "the response contains the routes", func() bool {
		code, body := a.get(15020, "/healthz/ready")
		if code == http.StatusOK {
			t.Fatalf("the proxy is ready: %s", body)
		}
		return strings.HasPrefix(body, "envoy has rejected its first routes (RDS) and has accepted none since: ") && strings.Contains(body, "a.example.com")
	})
	if code, _ := a.get(15021, "/healthz/ready"); code != http.StatusServiceUnavailable {
		t.Errorf("readiness through Envoy: got %d, want 503", code)
	}
	if code, body := a.get(15000, "/ready"); code != http.StatusOK {
		t.Errorf("Envoy's own readiness: got %d %s, want 200", code, body)
	}
}

func anyOf(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}
