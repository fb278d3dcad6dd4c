// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"testing"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// TestAddressInTwoClusters checks clusters with separate networks that use the same addresses. A
// proxy must serve the ports of its own workload only.
func TestAddressInTwoClusters(t *testing.T) {
	t.Parallel()
	on := func(port uint32, cluster, network string) func(*model.Service) []*model.Endpoint {
		return func(svc *model.Service) []*model.Endpoint {
			svc.Ports[0].Protocol = model.ProtocolTCP
			return []*model.Endpoint{{Address: "10.0.0.9", Port: port, ServicePort: 80, Namespace: svc.Namespace, Weight: 1, Cluster: cluster, Network: network}}
		}
	}
	in := inputOf(nil, meshconfig.Default())
	var platform clusters
	for host, endpoints := range map[string]func(*model.Service) []*model.Endpoint{
		"own.shop.svc.cluster.local": on(8080, "c1", "n1"), "other.shop.svc.cluster.local": on(9090, "c2", "n2"),
		"far.shop.svc.cluster.local": on(9091, "", "n2"), "machine.shop.svc.cluster.local": on(8081, "", ""),
	} {
		p := serving(host, nil)
		p.Endpoints = endpoints(p.Service)
		platform = append(platform, p)
	}
	in.Platform = platform
	mesh := snapshot.Build(nil, in, model.Change{All: true})
	proxy := proxyAt("10.0.0.9")
	proxy.Interception, proxy.ClusterID, proxy.Network = model.InterceptionRedirect, "c1", "n1"
	got := map[uint32]bool{}
	for _, c := range unpack(t, New(Config{}).Generate(mesh, proxy, xds.TypeListener).Get("virtualInbound")).(*listenerv3.Listener).GetFilterChains() {
		got[c.GetFilterChainMatch().GetDestinationPort().GetValue()] = true
	}
	for port, want := range map[uint32]bool{8080: true, 8081: true, 9090: false, 9091: false} {
		if got[port] != want {
			t.Errorf("port %d is served: %t, want %t", port, got[port], want)
		}
	}
}
