// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"slices"
	"testing"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery/debug"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery/debug/debugtest"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// The configuration dump of a proxy with VHDS has the virtual hosts in their routes, like that of
// Envoy.
func TestDebugShowsHostsInRoutes(t *testing.T) {
	t.Parallel()
	h := startDebug(t, true)
	settings := meshconfig.Default()
	settings.ProxyHttpPort = 15080
	h.server.Push(snapshot.Build(nil, snapshot.Input{Mesh: settings, List: func(kind model.Kind) []*model.Config {
		if kind == model.ServiceEntry {
			return []*model.Config{debugtest.External("a", "240.0.0.1")}
		}
		return nil
	}}, model.Change{All: true}), model.Change{All: true})
	h.auth.now.Store(&authn.Caller{ID: certs.ID{TrustDomain: "cluster.local", Namespace: "default", ServiceAccount: "shop"}})
	p := h.connect(t, true)
	p.node = withAgent(shopNode(t, nil), "envoy", 1, 39)
	p.describer = func(*testing.T, *anypb.Any) string { return "" }
	p.must(&discoveryv3.DeltaDiscoveryRequest{Node: p.node, TypeUrl: xds.TypeCluster})
	p.any()
	all := p.question(debug.Type + "/config_dump")
	if len(all) != 5 {
		t.Fatalf("got %d parts", len(all))
	}
	var routes adminv3.RoutesConfigDump
	if err := all[2].UnmarshalTo(&routes); err != nil || len(routes.DynamicRouteConfigs) != 1 {
		t.Fatalf("got %v, %v", &routes, err)
	}
	var config routev3.RouteConfiguration
	if err := routes.DynamicRouteConfigs[0].RouteConfig.UnmarshalTo(&config); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, host := range config.VirtualHosts {
		names = append(names, host.Name)
	}
	if want := []string{config.Name + "/a.example.com:80", config.Name + "/allow_any"}; config.GetVhds() == nil || !slices.Equal(names, want) {
		t.Errorf("got the virtual hosts %q of %v, want %q", names, config.GetVhds(), want)
	}
}
