// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package cluster

import (
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

func httpOf(t *testing.T, c *clusterv3.Cluster) *httpv3.HttpProtocolOptions {
	t.Helper()
	out := &httpv3.HttpProtocolOptions{}
	if err := c.GetTypedExtensionProtocolOptions()[HTTPOptionsKey].UnmarshalTo(out); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestToOriginal checks the clusters for original destinations, and the Sidecar settings for
// inbound connections.
func TestToOriginal(t *testing.T) {
	t.Parallel()
	mesh := &meshv1alpha1.MeshConfig{H2UpgradePolicy: meshv1alpha1.MeshConfig_UPGRADE}
	pool := &networkingv1alpha3.ConnectionPoolSettings{Tcp: &networkingv1alpha3.ConnectionPoolSettings_TCPSettings{MaxConnections: 7}}
	own := InboundPolicy(pool, nil, 80)
	for _, tc := range []struct {
		c      *clusterv3.Cluster
		name   string
		source string
		limit  uint32
		http   string
		idle   time.Duration
	}{
		{Passthrough(mesh), PassthroughName, "", 1<<32 - 1, "as client", 5 * time.Minute},
		{InboundPassthrough(false, mesh), InboundPassthrough4, "127.0.0.6", 1<<32 - 1, "as client", 5 * time.Minute},
		{InboundPassthrough(true, mesh, own), InboundPassthrough6, "::6", 7, "as client", 5 * time.Minute},
		{InboundOriginal("inbound|80||", model.ProtocolHTTP, true, false, mesh, own), "inbound|80||", "127.0.0.6", 7, "1", 0},
		{InboundOriginal("inbound|80||", model.ProtocolGRPC, false, true, mesh), "inbound|80||", "::6", 1<<32 - 1, "2", 0},
		{Inbound("inbound|80||", envoyconf.SocketAddress("127.0.0.1", 80), model.ProtocolHTTP, mesh, own), "inbound|80||", "", 7, "1", 0},
	} {
		c := tc.c
		if err := c.ValidateAll(); err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
		http := httpOf(t, c)
		spoken := "1"
		switch {
		case http.GetUseDownstreamProtocolConfig() != nil:
			spoken = "as client"
		case http.GetExplicitHttpConfig().GetHttp2ProtocolOptions() != nil:
			spoken = "2"
		}
		source := c.GetUpstreamBindConfig().GetSourceAddress().GetAddress()
		limit := c.GetCircuitBreakers().GetThresholds()[0].GetMaxConnections().GetValue()
		idle := http.GetCommonHttpProtocolOptions().GetIdleTimeout().AsDuration()
		if c.GetName() != tc.name || source != tc.source || limit != tc.limit || spoken != tc.http || idle != tc.idle {
			t.Errorf("%s: from %q, at most %d, HTTP %s, idle %s; want %+v", c.GetName(), source, limit, spoken, idle, tc)
		}
	}
}

// TestInboundPolicy checks that the pool of the Sidecar applies as a whole, otherwise that of the
// service's rule, and that nothing else of the rule applies.
func TestInboundPolicy(t *testing.T) {
	t.Parallel()
	pool := func(n int32) *networkingv1alpha3.ConnectionPoolSettings {
		return &networkingv1alpha3.ConnectionPoolSettings{Tcp: &networkingv1alpha3.ConnectionPoolSettings_TCPSettings{MaxConnections: n}}
	}
	rule := &snapshot.DestinationRule{Policy: &networkingv1alpha3.TrafficPolicy{
		ConnectionPool: pool(1), OutlierDetection: &networkingv1alpha3.OutlierDetection{},
		PortLevelSettings: []*networkingv1alpha3.TrafficPolicy_PortTrafficPolicy{{Port: &networkingv1alpha3.PortSelector{Number: 81}, ConnectionPool: pool(2)}},
	}}
	for _, tc := range []struct {
		sidecar *networkingv1alpha3.ConnectionPoolSettings
		rule    *snapshot.DestinationRule
		port    uint32
		want    int32
	}{{nil, nil, 80, 0}, {nil, rule, 80, 1}, {nil, rule, 81, 2}, {pool(3), rule, 81, 3}, {pool(3), nil, 80, 3}} {
		p := InboundPolicy(tc.sidecar, tc.rule, tc.port)
		if got := p.Pool.GetTcp().GetMaxConnections(); got != tc.want || p.Outlier != nil {
			t.Errorf("port %d: %d connections, outlier detection %v; want %d", tc.port, got, p.Outlier, tc.want)
		}
	}
}
