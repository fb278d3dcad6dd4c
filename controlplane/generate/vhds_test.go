// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/anypb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// withVHDS returns a copy of the proxy with VHDS.
func withVHDS(proxy *model.Proxy) *model.Proxy {
	p := *proxy
	p.VHDS = true
	return &p
}

// assemble adds the virtual hosts to their routes, under the names that they have there.
func assemble(t *testing.T, routes, hosts *xds.Set) map[string]*routev3.RouteConfiguration {
	t.Helper()
	out := map[string]*routev3.RouteConfiguration{}
	for _, r := range routes.Resources {
		config := unpack(t, r).(*routev3.RouteConfiguration)
		if config.GetVhds().GetConfigSource().GetAds() == nil || len(config.GetVirtualHosts()) > 0 {
			t.Errorf("the routes of a proxy with VHDS: %v", config)
		}
		out[r.Name] = config
	}
	for _, r := range hosts.Resources {
		vh := unpack(t, r).(*routev3.VirtualHost)
		of, name, ok := strings.Cut(vh.GetName(), vhdsSuffix+"/")
		config := out[of+vhdsSuffix]
		if !ok || vh.GetName() != r.Name || config == nil {
			t.Fatalf("the resource %q holds the virtual host %q", r.Name, vh.GetName())
		}
		vh.Name = name
		config.VirtualHosts = append(config.VirtualHosts, vh)
	}
	for _, config := range out {
		config.Name, config.Vhds = strings.TrimSuffix(config.Name, vhdsSuffix), nil
	}
	return out
}

// sortHosts sorts by name: their order has no meaning in Envoy.
func sortHosts(config *routev3.RouteConfiguration) {
	slices.SortFunc(config.VirtualHosts, func(a, b *routev3.VirtualHost) int { return strings.Compare(a.GetName(), b.GetName()) })
}

// TestVHDSIsTheSame builds every case with and without VHDS. The combined parts must equal the
// result without VHDS, and everything else must be equal except for the route names in listeners.
func TestVHDSIsTheSame(t *testing.T) {
	t.Parallel()
	for _, c := range testCases(t) {
		if c.proxy.Role == "router" {
			continue // see TestGatewayVHDS
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			mesh, g := c.build(), New(Config{})
			whole, parts := generateAll(g, mesh, c.proxy), generateAll(g, mesh, withVHDS(c.proxy))
			at := func(sets []*xds.Set, typeURL string) *xds.Set { return sets[slices.Index(xds.Types, typeURL)] }
			if len(at(whole, xds.TypeVirtualHost).Resources) > 0 {
				t.Error("virtual hosts for a proxy without VHDS")
			}
			for _, typeURL := range []string{xds.TypeCluster, xds.TypeEndpoint} {
				sameSet(t, typeURL, at(whole, typeURL), at(parts, typeURL))
			}
			got := assemble(t, at(parts, xds.TypeRoute), at(parts, xds.TypeVirtualHost))
			if len(got) != len(at(whole, xds.TypeRoute).Resources) {
				t.Errorf("%d routes with VHDS, %d without", len(got), len(at(whole, xds.TypeRoute).Resources))
			}
			for _, r := range at(whole, xds.TypeRoute).Resources {
				want, got := unpack(t, r).(*routev3.RouteConfiguration), got[r.Name+vhdsSuffix]
				sortHosts(want)
				sortHosts(got)
				if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
					t.Errorf("the parts of %s together (-whole +parts):\n%s", r.Name, diff)
				}
			}
			if diff := cmp.Diff(at(whole, xds.TypeRoute).Problems, at(parts, xds.TypeVirtualHost).Problems); diff != "" {
				t.Errorf("problems (-whole +parts):\n%s", diff)
			}
			for _, r := range at(whole, xds.TypeListener).Resources {
				got := at(parts, xds.TypeListener).Get(r.Name)
				if got == nil {
					t.Fatalf("there is no listener %s with VHDS", r.Name)
				}
				l := unpack(t, got).(*listenerv3.Listener)
				renameRoutes(t, l)
				if diff := cmp.Diff(unpack(t, r), proto.Message(l), protocmp.Transform()); diff != "" {
					t.Errorf("listener (-whole +parts):\n%s", diff)
				}
			}
		})
	}
}

// renameRoutes replaces the route names of a listener with VHDS by those without.
func renameRoutes(t *testing.T, l *listenerv3.Listener) {
	t.Helper()
	for _, chain := range l.GetFilterChains() {
		for _, f := range chain.GetFilters() {
			hcm := &hcmv3.HttpConnectionManager{}
			if !f.GetTypedConfig().MessageIs(hcm) {
				continue
			}
			if err := f.GetTypedConfig().UnmarshalTo(hcm); err != nil {
				t.Fatal(err)
			}
			if rds := hcm.GetRds(); rds != nil {
				rds.RouteConfigName = strings.TrimSuffix(rds.GetRouteConfigName(), vhdsSuffix)
				f.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: envoyconf.Pack(hcm)}
			}
		}
	}
}

// TestVHDSChanges checks that a change affects only the virtual hosts concerned, and no other
// type.
func TestVHDSChanges(t *testing.T) {
	t.Parallel()
	route := func(subset string) func(*model.Config) {
		return func(c *model.Config) {
			c.Spec = &networkingv1alpha3.VirtualService{Hosts: []string{"svc-0000"}, Http: []*networkingv1alpha3.HTTPRoute{{
				Route: []*networkingv1alpha3.HTTPRouteDestination{{Destination: &networkingv1alpha3.Destination{Host: "svc-0000", Subset: subset}}},
			}}}
		}
	}
	vs := model.Key{Kind: model.VirtualService, Namespace: "default", Name: "svc-0000"}
	tests := []struct {
		name   string
		change func(w *world)
		want   int
	}{
		{"nothing", func(w *world) { w.build(model.Change{All: true}) }, 0},
		{"endpoint", func(w *world) { w.moveEndpoint(0, 2) }, 0},
		{"route", func(w *world) { w.edit(vs, route("v2")) }, 1},
		{"the same domain for two", func(w *world) {
			w.edit(model.Key{Kind: model.VirtualService, Namespace: "default", Name: "svc-0010"}, route("v1"))
		}, 1},
		{"another host", func(w *world) {
			w.edit(vs, func(c *model.Config) {
				c.Spec = &networkingv1alpha3.VirtualService{Hosts: []string{"new.example.com"}, Http: []*networkingv1alpha3.HTTPRoute{{DirectResponse: &networkingv1alpha3.HTTPDirectResponse{Status: 200}}}}
			})
		}, 2},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			w, g := newWorld(t, 20), New(Config{})
			proxy := withVHDS(proxyAt("127.1.0.2"))
			before := generateAll(g, w.mesh, proxy)
			tc.change(w)
			after := generateAll(g, w.mesh, proxy)
			for i, typeURL := range xds.Types {
				switch {
				case typeURL == xds.TypeVirtualHost:
					if got := difference(before[i], after[i]); got != tc.want {
						t.Errorf("%d virtual hosts changed, want %d", got, tc.want)
					}
				case typeURL != xds.TypeEndpoint && before[i] != after[i]:
					t.Errorf("%s: another *Set although nothing changed", typeURL)
				}
			}
		})
	}
}

// once is an ADS server that sends each delta stream what it requests first, and nothing after
// that.
type once struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	t     *testing.T
	mesh  *snapshot.Mesh
	proxy *model.Proxy
}

func (o *once) DeltaAggregatedResources(s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	g := New(Config{})
	for n := 0; ; n++ {
		q, err := s.Recv()
		if err != nil {
			return nil // the test has ended
		}
		if q.GetErrorDetail() != nil {
			o.t.Errorf("envoy rejects %s: %s", q.GetTypeUrl(), q.GetErrorDetail().GetMessage())
		}
		if q.GetResponseNonce() != "" || len(q.GetResourceNamesUnsubscribe()) > 0 {
			continue
		}
		r := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: q.GetTypeUrl(), Nonce: fmt.Sprint(n)}
		for _, res := range g.Generate(o.mesh, o.proxy, q.GetTypeUrl()).Resources {
			if names := q.GetResourceNamesSubscribe(); len(names) > 0 && !slices.Contains(names, res.Name) {
				continue
			}
			a := &anypb.Any{}
			if err := proto.Unmarshal(res.Any, a); err != nil {
				return err
			}
			r.Resources = append(r.Resources, &discoveryv3.Resource{Name: res.Name, Version: "1", Resource: a})
		}
		if err := s.Send(r); err != nil {
			return err
		}
	}
}

// serveDelta serves the resources of a proxy over the delta protocol, and returns the bootstrap of
// an Envoy that requests them.
func serveDelta(t *testing.T, mesh *snapshot.Mesh, proxy *model.Proxy) []byte {
	t.Helper()
	l, err := net.Listen("tcp", "127.77.141.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, &once{t: t, mesh: mesh, proxy: proxy})
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	type object = map[string]any
	ads := object{"ads": object{}, "resource_api_version": "V3"}
	address := object{"socket_address": object{"address": "127.77.141.1", "port_value": l.Addr().(*net.TCPAddr).Port}}
	b, err := json.Marshal(object{
		"node": object{"id": "test", "cluster": "test"},
		"dynamic_resources": object{"lds_config": ads, "cds_config": ads, "ads_config": object{
			"api_type": "DELTA_GRPC", "transport_api_version": "V3", "grpc_services": []any{object{"envoy_grpc": object{"cluster_name": "ads"}}},
		}},
		"static_resources": object{"clusters": []any{object{
			"name": "ads", "type": "STATIC", "connect_timeout": "5s",
			"typed_extension_protocol_options": object{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": object{
				"@type":                "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
				"explicit_http_config": object{"http2_protocol_options": object{}},
			}},
			"load_assignment": object{"cluster_name": "ads", "endpoints": []any{object{"lb_endpoints": []any{object{"endpoint": object{"address": address}}}}}},
		}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}
