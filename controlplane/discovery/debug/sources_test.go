// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package debug

import (
	"slices"
	"strings"
	"testing"

	extensionsv1alpha1 "istio.io/api/extensions/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/discovery/debug/debugtest"
	"github.com/outrigger-mesh/outrigger/controlplane/gatewayapi"
	"github.com/outrigger-mesh/outrigger/controlplane/generate"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// shortNames are the names of the types in the tests.
var shortNames = map[string]string{
	xds.TypeCluster: "cds", xds.TypeEndpoint: "eds", xds.TypeListener: "lds", xds.TypeRoute: "rds", xds.TypeVirtualHost: "vhds", xds.TypeExtension: "ecds",
}

// madeOf returns the resources of a proxy with their source objects.
func madeOf(objects debugtest.Objects, converted debugtest.Objects, proxy *model.Proxy) []string {
	mesh := append(slices.Clone(objects), converted...).Mesh(nil)
	gen := generate.New(generate.Config{})
	var out []string
	for _, typeURL := range explained {
		for _, r := range gen.Generate(mesh, proxy, typeURL).Resources {
			var words []string
			for _, key := range r.Sources.Keys() {
				words = append(words, string(key.Kind)+"/"+key.Name)
			}
			out = append(out, shortNames[typeURL]+" "+r.Name+": "+strings.Join(words, " "))
		}
	}
	return out
}

func compareLines(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: got\n%s\nwant\n%s", what, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestSources compares each resource of proxies with its source objects.
func TestSources(t *testing.T) {
	t.Parallel()
	objects := debugtest.Shop()
	for name, tc := range map[string]struct {
		vhds bool
		want []string
	}{
		"envoy": {false, []string{
			"cds BlackHoleCluster: ", "cds ForwardProxyCluster: ", "cds inbound|8080||: Sidecar/shop",
			"cds outbound|80|v1|web.default.svc.cluster.local: DestinationRule/web ServiceEntry/web",
			"cds outbound|80||a.example.com: ServiceEntry/a",
			"cds outbound|80||web.default.svc.cluster.local: DestinationRule/web ServiceEntry/web",
			"eds outbound|80|v1|web.default.svc.cluster.local: DestinationRule/web ServiceEntry/web WorkloadEntry/web-1",
			"eds outbound|80||a.example.com: ServiceEntry/a",
			"eds outbound|80||web.default.svc.cluster.local: DestinationRule/web ServiceEntry/web WorkloadEntry/web-1 WorkloadEntry/web-2",
			"lds 127.77.51.2_15080: ", "lds 127.77.51.2_8080: PeerAuthentication/default Sidecar/shop",
			"rds http_proxy: ServiceEntry/a ServiceEntry/web VirtualService/web",
		}},
		"with virtual hosts apart": {true, []string{
			"rds http_proxy.vhds: ", "vhds http_proxy.vhds/a.example.com:80: ServiceEntry/a", "vhds http_proxy.vhds/allow_any: ",
			"vhds http_proxy.vhds/web.default.svc.cluster.local:80: ServiceEntry/web VirtualService/web",
		}},
	} {
		proxy := &model.Proxy{
			ID: "shop.default", Role: "sidecar", IPs: []string{"127.77.51.2"}, Namespace: "default", Domain: "default.svc.cluster.local",
			Interception: model.InterceptionNone, VHDS: tc.vhds,
		}
		got := madeOf(objects, nil, proxy)
		if tc.vhds { // the others are the same
			got = slices.DeleteFunc(got, func(l string) bool { return l[0] != 'r' && l[0] != 'v' })
		}
		compareLines(t, name, got, tc.want)
	}
}

// TestSourcesOfRedirected is TestSources for a proxy with redirected traffic and without a Sidecar
// object: the first workload of the shop.
func TestSourcesOfRedirected(t *testing.T) {
	t.Parallel()
	objects := slices.DeleteFunc(debugtest.Shop(), func(c *model.Config) bool { return c.Kind == model.Sidecar })
	objects = append(
		objects,
		debugtest.Stored(model.ServiceEntry, "default", "db", &networkingv1alpha3.ServiceEntry{
			Hosts: []string{"db.example.com"}, Addresses: []string{"240.0.0.7"}, Resolution: networkingv1alpha3.ServiceEntry_STATIC,
			Ports:     []*networkingv1alpha3.ServicePort{{Number: 5432, Name: "tcp", Protocol: "TCP"}, {Number: 9, Name: "any"}},
			Endpoints: []*networkingv1alpha3.WorkloadEntry{{Address: "127.77.54.8"}},
		}),
		debugtest.Stored(model.VirtualService, "default", "db", &networkingv1alpha3.VirtualService{
			Hosts: []string{"db.example.com"}, Tcp: []*networkingv1alpha3.TCPRoute{{Route: []*networkingv1alpha3.RouteDestination{{Destination: &networkingv1alpha3.Destination{Host: "db.example.com"}}}}},
		}),
		debugtest.Stored(model.VirtualService, "default", "parts", &networkingv1alpha3.VirtualService{
			Http: []*networkingv1alpha3.HTTPRoute{{Route: []*networkingv1alpha3.HTTPRouteDestination{{Destination: &networkingv1alpha3.Destination{Host: "web"}}}}},
		}),
		debugtest.Stored(model.WasmPlugin, "default", "count", &extensionsv1alpha1.WasmPlugin{Url: "file:///count.wasm"}),
		debugtest.Stored(model.WasmPlugin, "default", "counter", &extensionsv1alpha1.WasmPlugin{
			Url: "file:///counter.wasm", Match: []*extensionsv1alpha1.WasmPlugin_TrafficSelector{{Mode: 2}}, // only what is sent to the workload
		}),
	)
	web := slices.IndexFunc(objects, func(c *model.Config) bool { return c.Kind == model.VirtualService && c.Name == "web" })
	objects[web] = debugtest.Stored(model.VirtualService, "default", "web", &networkingv1alpha3.VirtualService{
		Hosts: []string{"web"}, Http: []*networkingv1alpha3.HTTPRoute{{Delegate: &networkingv1alpha3.Delegate{Name: "parts"}}},
	})
	proxy := &model.Proxy{
		ID: "web-1.default", Role: "sidecar", IPs: []string{"127.77.51.8"}, Namespace: "default", Domain: "default.svc.cluster.local",
		Interception: model.InterceptionRedirect,
	}
	got := slices.DeleteFunc(madeOf(objects, nil, proxy), func(l string) bool { return strings.HasPrefix(l, "eds") || strings.HasPrefix(l, "cds outbound") })
	compareLines(t, "redirected", got, []string{
		"cds BlackHoleCluster: ", "cds ForwardProxyCluster: ", "cds InboundPassthroughClusterIpv4: ", "cds PassthroughCluster: ", "cds inbound|80||: ServiceEntry/web",
		"lds 0.0.0.0_80: ServiceEntry/a ServiceEntry/web WasmPlugin/count",
		"lds 127.77.51.8_15080: WasmPlugin/count",
		"lds 240.0.0.7_5432: ServiceEntry/db VirtualService/db",
		"lds 240.0.0.7_9: ServiceEntry/db VirtualService/db WasmPlugin/count",
		"lds virtualInbound: PeerAuthentication/default ServiceEntry/web WasmPlugin/count WasmPlugin/counter",
		"lds virtualOutbound: ",
		"rds 80: ServiceEntry/a ServiceEntry/web VirtualService/parts VirtualService/web",
		"rds db.example.com:9: ServiceEntry/db",
		"rds http_proxy: ServiceEntry/a ServiceEntry/db ServiceEntry/web VirtualService/db VirtualService/parts VirtualService/web",
		"ecds default.count: WasmPlugin/count", "ecds default.counter: WasmPlugin/counter",
	})
}

// TestSourcesOfEgress is TestSources for the listeners that a Sidecar names.
func TestSourcesOfEgress(t *testing.T) {
	t.Parallel()
	objects := slices.DeleteFunc(debugtest.Shop(), func(c *model.Config) bool { return c.Kind == model.Sidecar })
	objects = append(objects, debugtest.Stored(model.Sidecar, "default", "out", &networkingv1alpha3.Sidecar{
		Egress: []*networkingv1alpha3.IstioEgressListener{
			{Port: &networkingv1alpha3.SidecarPort{Number: 80, Protocol: "HTTP", Name: "http"}, Bind: "127.77.51.3", Hosts: []string{"./web.default.svc.cluster.local"}},
			{Port: &networkingv1alpha3.SidecarPort{Protocol: "HTTP", Name: "http"}, Bind: "unix:///run/a", Hosts: []string{"./a.example.com"}},
			{Hosts: []string{"*/none.example.com"}},
		},
		OutboundTrafficPolicy: &networkingv1alpha3.OutboundTrafficPolicy{Mode: networkingv1alpha3.OutboundTrafficPolicy_ALLOW_ANY},
	}))
	proxy := &model.Proxy{ID: "shop.default", Role: "sidecar", IPs: []string{"127.77.51.2"}, Namespace: "default", Domain: "default.svc.cluster.local", Interception: model.InterceptionRedirect}
	got := slices.DeleteFunc(madeOf(objects, nil, proxy), func(l string) bool { return l[0] != 'l' && l[0] != 'r' })
	compareLines(t, "egress", got, []string{
		"lds /run/a: ServiceEntry/a Sidecar/out",
		"lds 127.77.51.2_15080: Sidecar/out",
		"lds 127.77.51.3_80: ServiceEntry/web Sidecar/out",
		"lds virtualInbound: PeerAuthentication/default", "lds virtualOutbound: Sidecar/out",
		"rds /run/a: ServiceEntry/a Sidecar/out", "rds 80: ServiceEntry/web Sidecar/out VirtualService/web", "rds http_proxy: ServiceEntry/a ServiceEntry/web Sidecar/out VirtualService/web",
	})
}

// TestSourcesOfGateways is TestSources for gateways: of objects of Istio, and of
// those that were made of others.
func TestSourcesOfGateways(t *testing.T) {
	t.Parallel()
	objects, converted := debugtest.Shop(), debugtest.Objects{}
	port := func(number uint32, protocol, name string) *networkingv1alpha3.Port {
		return &networkingv1alpha3.Port{Number: number, Protocol: protocol, Name: name}
	}
	labels := map[string]string{"istio": "edge", gatewayapi.NameLabel: "front"}
	objects = append(
		objects,
		debugtest.Stored(model.Gateway, "default", "edge", &networkingv1alpha3.Gateway{Selector: map[string]string{"istio": "edge"}, Servers: []*networkingv1alpha3.Server{
			{Port: port(8080, "HTTP", "http"), Hosts: []string{"*"}},
			{Port: port(8443, "HTTPS", "https"), Hosts: []string{"web.test"}, Bind: "127.77.51.4", Tls: &networkingv1alpha3.ServerTLSSettings{Mode: networkingv1alpha3.ServerTLSSettings_SIMPLE, CredentialName: "web"}},
			{Port: port(15443, "TLS", "sni"), Hosts: []string{"*.local"}, Tls: &networkingv1alpha3.ServerTLSSettings{Mode: networkingv1alpha3.ServerTLSSettings_AUTO_PASSTHROUGH}},
			{Port: port(9000, "TCP", "tcp"), Hosts: []string{"*"}},
		}}),
		debugtest.Stored(model.Gateway, "default", "other", &networkingv1alpha3.Gateway{Selector: map[string]string{"istio": "other"}, Servers: []*networkingv1alpha3.Server{{Port: port(8080, "HTTP", "http"), Hosts: []string{"*"}}}}),
		debugtest.Stored(model.VirtualService, "default", "site", &networkingv1alpha3.VirtualService{
			Hosts: []string{"web.test"}, Gateways: []string{"edge"},
			Http: []*networkingv1alpha3.HTTPRoute{{Route: []*networkingv1alpha3.HTTPRouteDestination{{Destination: &networkingv1alpha3.Destination{Host: "web"}}}}},
		}),
		debugtest.Stored(model.VirtualService, "default", "wires", &networkingv1alpha3.VirtualService{
			Hosts: []string{"wires.test"}, Gateways: []string{"edge"},
			Tcp: []*networkingv1alpha3.TCPRoute{{Route: []*networkingv1alpha3.RouteDestination{{Destination: &networkingv1alpha3.Destination{Host: "web"}}}}},
		}),
	)
	objects = append(objects, debugtest.GatewayObjects()...)
	result := gatewayapi.Convert(gatewayapi.Input{List: func(k model.Kind) []*model.Config { return objects.List(k, "") }, Mesh: objects.Mesh(nil).Config, IngressNamespace: "default"})
	for _, list := range result.Objects {
		converted = append(converted, list...)
	}
	proxy := &model.Proxy{ID: "edge.default", Role: "router", IPs: []string{"127.77.51.2"}, Namespace: "default", Domain: "default.svc.cluster.local", Labels: labels}
	got := slices.DeleteFunc(madeOf(objects, converted, proxy), func(l string) bool {
		return strings.HasPrefix(l, "eds outbound|") || strings.HasPrefix(l, "cds outbound|")
	})
	compareLines(t, "gateway", got, []string{
		"cds BlackHoleCluster: ",
		"cds outbound_.80_._.web.default.svc.cluster.local: DestinationRule/web Gateway/edge ServiceEntry/web",
		"cds outbound_.80_.v1_.web.default.svc.cluster.local: DestinationRule/web Gateway/edge ServiceEntry/web",
		"eds outbound_.80_._.web.default.svc.cluster.local: DestinationRule/web Gateway/edge ServiceEntry/web WorkloadEntry/web-1 WorkloadEntry/web-2",
		"eds outbound_.80_.v1_.web.default.svc.cluster.local: DestinationRule/web Gateway/edge ServiceEntry/web WorkloadEntry/web-1",
		"lds 0.0.0.0_15443: DestinationRule/web Gateway/edge ServiceEntry/web", "lds 0.0.0.0_8080: Gateway/edge", "lds 0.0.0.0_8081: KubernetesGateway/front",
		"lds 0.0.0.0_9000: Gateway/edge ServiceEntry/web VirtualService/wires", "lds 127.77.51.4_8443: Gateway/edge",
		"rds http.8080: Gateway/edge ServiceEntry/web VirtualService/site", "rds http.8081: HTTPRoute/to.web KubernetesGateway/front",
		"rds https.8443.https.edge.default.127.77.51.4: Gateway/edge ServiceEntry/web VirtualService/site",
	})
	ingress := &model.Proxy{ID: "in.default", Role: "router", IPs: []string{"127.77.51.3"}, Namespace: "default", Domain: "default.svc.cluster.local", Labels: map[string]string{"istio": "ingressgateway"}, VHDS: true}
	got = slices.DeleteFunc(madeOf(objects, converted, ingress), func(l string) bool { return l[0] == 'c' || l[0] == 'e' })
	compareLines(t, "ingress", got, []string{
		"lds 0.0.0.0_80: Ingress/one Ingress/two", "rds http.80.vhds: Ingress/one Ingress/two", "vhds http.80.vhds/in.test:80: Ingress/one Ingress/two",
	})
}
