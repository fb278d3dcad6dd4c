// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"slices"
	"strings"
	"testing"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// gatewayCases returns the cases of testdata whose proxy is a gateway.
func gatewayCases(t *testing.T) []testCase {
	t.Helper()
	cases := slices.DeleteFunc(testCases(t), func(c testCase) bool { return c.proxy.Role != "router" })
	if len(cases) == 0 {
		t.Fatal("no case has a proxy of the role router")
	}
	return cases
}

// TestGatewayVHDS builds every case with and without VHDS: the combined virtual hosts must equal
// those without VHDS.
func TestGatewayVHDS(t *testing.T) {
	t.Parallel()
	for _, c := range gatewayCases(t) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			mesh, g := c.build(), New(Config{})
			apart := withVHDS(c.proxy)
			for _, typeURL := range []string{xds.TypeCluster, xds.TypeEndpoint} {
				sameSet(t, typeURL, g.Generate(mesh, c.proxy, typeURL), g.Generate(mesh, apart, typeURL))
			}
			if hosts := g.Generate(mesh, c.proxy, xds.TypeVirtualHost); len(hosts.Resources) > 0 {
				t.Error("virtual hosts for a proxy without VHDS")
			}
			hosts := make(map[string][]*routev3.VirtualHost)
			for _, r := range g.Generate(mesh, apart, xds.TypeVirtualHost).Resources {
				vh := unpack(t, r).(*routev3.VirtualHost)
				i := strings.LastIndexByte(r.Name, '/')
				if vh.GetName() != r.Name || i < 0 {
					t.Errorf("the resource %q holds the virtual host %q", r.Name, vh.GetName())
				}
				vh.Name = r.Name[i+1:]
				hosts[r.Name[:i]] = append(hosts[r.Name[:i]], vh)
			}
			whole, parts := g.Generate(mesh, c.proxy, xds.TypeRoute), g.Generate(mesh, apart, xds.TypeRoute)
			if len(whole.Resources) != len(parts.Resources) {
				t.Errorf("%d and %d route configurations", len(whole.Resources), len(parts.Resources))
			}
			for _, r := range whole.Resources {
				want, got := unpack(t, r).(*routev3.RouteConfiguration), unpack(t, parts.Get(r.Name+vhdsSuffix)).(*routev3.RouteConfiguration)
				if got.GetVhds().GetConfigSource().GetAds() == nil || len(got.GetVirtualHosts()) > 0 {
					t.Errorf("the routes of a proxy with VHDS: %v", got)
				}
				got.VirtualHosts, got.Vhds, got.Name = hosts[got.GetName()], nil, want.GetName()
				sortHosts(want)
				sortHosts(got)
				if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
					t.Errorf("the parts together (-whole +parts):\n%s", diff)
				}
			}
			if diff := cmp.Diff(whole.Problems, g.Generate(mesh, apart, xds.TypeVirtualHost).Problems); diff != "" {
				t.Errorf("problems (-whole +parts):\n%s", diff)
			}
			wanted := slices.Sorted(slices.Values(routeNames(t, g.Generate(mesh, apart, xds.TypeListener))))
			var got []string
			for _, r := range parts.Resources {
				got = append(got, r.Name)
			}
			if diff := cmp.Diff(slices.Compact(wanted), got); diff != "" {
				t.Errorf("routes (-asked for +served):\n%s", diff)
			}
		})
	}
}

// routeNames returns the names of the routes that listeners refer to.
func routeNames(t *testing.T, listeners *xds.Set) []string {
	t.Helper()
	var names []string
	for _, r := range listeners.Resources {
		for _, chain := range unpack(t, r).(*listenerv3.Listener).GetFilterChains() {
			for _, f := range chain.GetFilters() {
				hcm := &hcmv3.HttpConnectionManager{}
				if inMessage(t, f.GetTypedConfig(), hcm) {
					names = append(names, hcm.GetRds().GetRouteConfigName())
				}
			}
		}
	}
	return names
}

// TestGatewaySharing changes objects one by one. Sets that do not depend on them must remain the
// same pointer, also for other replicas.
func TestGatewaySharing(t *testing.T) {
	t.Parallel()
	c := loadCase(t, "testdata/gateway-http")
	g := New(Config{})
	mesh := c.build()
	before := generateAll(g, mesh, c.proxy)
	replica := *c.proxy
	replica.ID = "edge-2.istio-system"
	if !slices.Equal(before, generateAll(g, mesh, &replica)) {
		t.Error("another replica gets other sets")
	}
	change := func(text string) []bool {
		t.Helper()
		objects := slices.Clone(c.objects)
		for _, o := range decode(t, text) {
			i := slices.IndexFunc(objects, func(have *model.Config) bool { return have.Key == o.Key })
			if i < 0 {
				objects = append(objects, o)
			} else {
				objects[i] = o
			}
			mesh = snapshot.Build(mesh, inputOf(objects, c.mesh), model.NewChange(o.Key))
		}
		after := generateAll(g, mesh, c.proxy)
		var changed []bool
		for i := range after {
			changed = append(changed, after[i] != before[i])
		}
		mesh = snapshot.Build(mesh, c.input(), model.Change{All: true})
		before = generateAll(g, mesh, c.proxy)
		return changed
	}
	// In the order of Types: clusters, endpoints, listeners, routes, virtual hosts.
	for name, tc := range map[string]struct {
		text string
		want []bool
	}{
		"a Gateway that does not select it": {`
kind: Gateway
metadata: {name: unselected, namespace: shop}
spec: {selector: {istio: egressgateway}, servers: [{port: {number: 8099, name: http, protocol: HTTP}, hosts: ["*"]}]}
`, []bool{false, false, false, false, false}},
		"a Sidecar of its namespace": {`
kind: Sidecar
metadata: {name: default, namespace: istio-system}
spec: {egress: [{hosts: ["~/*"]}]}
`, []bool{false, false, false, false, false}},
		"a route": {`
kind: VirtualService
metadata: {name: everything, namespace: other}
spec: {hosts: ["*"], gateways: [shop/public, second], http: [{redirect: {uri: /changed}}]}
`, []bool{false, false, false, true, false}},
		"a server": {`
kind: Gateway
metadata: {name: extra, namespace: shop}
spec: {servers: [{port: {number: 8099, name: http, protocol: HTTP}, hosts: ["*"]}]}
`, []bool{false, false, true, true, false}},
		"an endpoint": {`
kind: ServiceEntry
metadata: {name: web, namespace: shop}
spec:
  hosts: [web.shop.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 9080, name: http, protocol: HTTP}]
  endpoints: [{address: 10.0.0.99, serviceAccount: web}]
`, []bool{false, true, false, false, false}},
	} {
		if got := change(tc.text); !slices.Equal(got, tc.want) {
			t.Errorf("%s changes %v, want %v", name, got, tc.want)
		}
	}
}

// TestGatewayConfig checks the options that restrict what a gateway receives.
func TestGatewayConfig(t *testing.T) {
	t.Parallel()
	names := func(set *xds.Set) string {
		var out []string
		for _, r := range set.Resources {
			out = append(out, r.Name)
		}
		return strings.Join(out, " ")
	}
	c := loadCase(t, "testdata/gateway-http")
	if got := names(New(Config{GatewaysOwnNamespace: true}).Generate(c.build(), c.proxy, xds.TypeListener)); got != "" {
		t.Errorf("Gateways of other namespaces make the listeners %q", got)
	}
	own := *c.proxy
	own.Namespace = "shop"
	if got, want := names(New(Config{GatewaysOwnNamespace: true}).Generate(c.build(), &own, xds.TypeListener)), "0.0.0.0_80 0.0.0.0_8081 0.0.0.0_8082"; got != want {
		t.Errorf("the Gateways of its namespace make the listeners %q, want %q", got, want)
	}
	const all, some = "BlackHoleCluster outbound|80||edge.istio-system.svc.cluster.local outbound|9080||web.shop.svc.cluster.local",
		"BlackHoleCluster outbound|9080||web.shop.svc.cluster.local"
	for filter, want := range map[bool]string{false: all, true: some} {
		g := New(Config{FilterGatewayClusters: filter})
		if got := names(g.Generate(c.build(), c.proxy, xds.TypeCluster)); got != want {
			t.Errorf("clusters %q, want %q", got, want)
		}
		if got, want := names(g.Generate(c.build(), c.proxy, xds.TypeEndpoint)), strings.TrimPrefix(want, "BlackHoleCluster "); got != want {
			t.Errorf("endpoints %q, want %q", got, want)
		}
	}
}

// TestGatewayAddresses checks that a proxy without IPv4 listens on IPv6.
func TestGatewayAddresses(t *testing.T) {
	t.Parallel()
	objects := decode(t, `
kind: Gateway
metadata: {name: edge, namespace: default}
spec: {servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ["*"]}]}
`)
	mesh := snapshot.Build(nil, inputOf(objects, meshconfig.Default()), model.Change{All: true})
	for ip, want := range map[string]string{"10.0.0.9": "0.0.0.0_80", "2001:db8::9": "[::]_80"} {
		set := New(Config{}).Generate(mesh, &model.Proxy{Role: "router", Namespace: "default", IPs: []string{ip}}, xds.TypeListener)
		if len(set.Resources) != 1 || set.Resources[0].Name != want {
			t.Errorf("a proxy at %s gets %v, want %s", ip, set.Resources, want)
		}
	}
}

// inMessage reports whether the configuration of a filter has the type of msg, and decodes it.
func inMessage(t *testing.T, packed *anypb.Any, msg proto.Message) bool {
	t.Helper()
	if !packed.MessageIs(msg) {
		return false
	}
	if err := packed.UnmarshalTo(msg); err != nil {
		t.Fatal(err)
	}
	return true
}
