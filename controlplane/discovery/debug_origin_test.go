// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"slices"
	"strings"
	"testing"

	extensionsv1alpha1 "istio.io/api/extensions/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	kubenetworkingv1 "k8s.io/api/networking/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/controlplane/gatewayapi"
	"github.com/outrigger-mesh/outrigger/controlplane/generate"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// madeOf lists the resources of a proxy with the objects that have a part in them.
func madeOf(objects shelf, converted shelf, proxy *model.Proxy) []string {
	mesh := append(slices.Clone(objects), converted...).mesh(nil)
	o := newOrigins(mesh, proxy, false, func(k model.Key) bool { return objects.Get(k) != nil })
	self := o.own(proxy, objects.List(model.PeerAuthentication, ""))
	gen := generate.New(generate.Config{})
	var out []string
	for _, typeURL := range configTypes {
		for _, r := range gen.Generate(mesh, proxy, typeURL).Resources {
			var words []string
			for _, key := range joined(o.of(typeURL, r.Name), self.of(typeURL, r)) {
				words = append(words, string(key.Kind)+"/"+key.Name)
			}
			if typeURL == xds.TypeRoute {
				slices.Sort(words) // they come from a map
			}
			out = append(out, shortType(typeURL)+" "+r.Name+": "+strings.Join(words, " "))
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

// TestOrigins compares each resource that is made for proxies with the objects
// that it is made of.
func TestOrigins(t *testing.T) {
	t.Parallel()
	objects := shop()
	for name, tc := range map[string]struct {
		vhds bool
		want []string
	}{
		"envoy": {false, []string{
			"cds BlackHoleCluster: ", "cds inbound|8080||: Sidecar/shop",
			"cds outbound|80|v1|web.default.svc.cluster.local: ServiceEntry/web DestinationRule/web",
			"cds outbound|80||a.example.com: ServiceEntry/a",
			"cds outbound|80||web.default.svc.cluster.local: ServiceEntry/web DestinationRule/web",
			"eds outbound|80|v1|web.default.svc.cluster.local: ServiceEntry/web DestinationRule/web WorkloadEntry/web-1",
			"eds outbound|80||a.example.com: ServiceEntry/a",
			"eds outbound|80||web.default.svc.cluster.local: ServiceEntry/web DestinationRule/web WorkloadEntry/web-1 WorkloadEntry/web-2",
			"lds 127.77.51.2_15080: ", "lds 127.77.51.2_8080: Sidecar/shop PeerAuthentication/default",
			"rds http_proxy: ServiceEntry/a ServiceEntry/web VirtualService/web",
		}},
		"with virtual hosts apart": {true, []string{
			"rds http_proxy.vhds: ", "vhds http_proxy.vhds/a.example.com:80: ServiceEntry/a", "vhds http_proxy.vhds/block_all: ",
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

// TestOriginsOfRedirected is TestOrigins for a proxy that all traffic is
// redirected to, without a Sidecar object: it is the first workload of the shop.
func TestOriginsOfRedirected(t *testing.T) {
	t.Parallel()
	objects := slices.DeleteFunc(shop(), func(c *model.Config) bool { return c.Kind == model.Sidecar })
	objects = append(
		objects,
		stored(model.ServiceEntry, "default", "db", &networkingv1alpha3.ServiceEntry{
			Hosts: []string{"db.example.com"}, Addresses: []string{"240.0.0.7"}, Resolution: networkingv1alpha3.ServiceEntry_STATIC,
			Ports:     []*networkingv1alpha3.ServicePort{{Number: 5432, Name: "tcp", Protocol: "TCP"}, {Number: 9, Name: "any"}},
			Endpoints: []*networkingv1alpha3.WorkloadEntry{{Address: "127.77.54.8"}},
		}),
		stored(model.VirtualService, "default", "db", &networkingv1alpha3.VirtualService{
			Hosts: []string{"db.example.com"}, Tcp: []*networkingv1alpha3.TCPRoute{{Route: []*networkingv1alpha3.RouteDestination{{Destination: &networkingv1alpha3.Destination{Host: "db.example.com"}}}}},
		}),
		stored(model.VirtualService, "default", "parts", &networkingv1alpha3.VirtualService{
			Http: []*networkingv1alpha3.HTTPRoute{{Route: []*networkingv1alpha3.HTTPRouteDestination{{Destination: &networkingv1alpha3.Destination{Host: "web"}}}}},
		}),
		stored(model.WasmPlugin, "default", "count", &extensionsv1alpha1.WasmPlugin{Url: "file:///count.wasm"}),
		stored(model.WasmPlugin, "default", "counter", &extensionsv1alpha1.WasmPlugin{
			Url: "file:///counter.wasm", Match: []*extensionsv1alpha1.WasmPlugin_TrafficSelector{{Mode: 2}}, // only what is sent to the workload
		}),
	)
	web := slices.IndexFunc(objects, func(c *model.Config) bool { return c.Kind == model.VirtualService && c.Name == "web" })
	objects[web] = stored(model.VirtualService, "default", "web", &networkingv1alpha3.VirtualService{
		Hosts: []string{"web"}, Http: []*networkingv1alpha3.HTTPRoute{{Delegate: &networkingv1alpha3.Delegate{Name: "parts"}}},
	})
	proxy := &model.Proxy{
		ID: "web-1.default", Role: "sidecar", IPs: []string{"127.77.51.8"}, Namespace: "default", Domain: "default.svc.cluster.local",
		Interception: model.InterceptionRedirect,
	}
	got := slices.DeleteFunc(madeOf(objects, nil, proxy), func(l string) bool { return strings.HasPrefix(l, "eds") || strings.HasPrefix(l, "cds outbound") })
	compareLines(t, "redirected", got, []string{
		"cds BlackHoleCluster: ", "cds InboundPassthroughClusterIpv4: ", "cds PassthroughCluster: ", "cds inbound|80||: ServiceEntry/web",
		"lds 0.0.0.0_80: ServiceEntry/a ServiceEntry/web WasmPlugin/count",
		"lds 127.77.51.8_15080: WasmPlugin/count",
		"lds 240.0.0.7_5432: ServiceEntry/db VirtualService/db",
		"lds 240.0.0.7_9: ServiceEntry/db VirtualService/db WasmPlugin/count",
		"lds virtualInbound: ServiceEntry/web PeerAuthentication/default WasmPlugin/count WasmPlugin/counter",
		"lds virtualOutbound: ",
		"rds 80: ServiceEntry/a ServiceEntry/web VirtualService/parts VirtualService/web",
		"rds db.example.com:9: ServiceEntry/db",
		"rds http_proxy: ServiceEntry/a ServiceEntry/db ServiceEntry/web VirtualService/parts VirtualService/web",
		"ecds default.count: WasmPlugin/count", "ecds default.counter: WasmPlugin/counter",
	})
}

// TestOriginsOfEgress is TestOrigins for the listeners that a Sidecar names.
func TestOriginsOfEgress(t *testing.T) {
	t.Parallel()
	objects := slices.DeleteFunc(shop(), func(c *model.Config) bool { return c.Kind == model.Sidecar })
	objects = append(objects, stored(model.Sidecar, "default", "out", &networkingv1alpha3.Sidecar{
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
		"lds /run/a: Sidecar/out ServiceEntry/a",
		"lds 127.77.51.2_15080: ",
		"lds 127.77.51.3_80: Sidecar/out ServiceEntry/web",
		"lds virtualInbound: PeerAuthentication/default", "lds virtualOutbound: Sidecar/out",
		"rds /run/a: ServiceEntry/a", "rds 80: ServiceEntry/web VirtualService/web", "rds http_proxy: ServiceEntry/a ServiceEntry/web VirtualService/web",
	})
}

// TestOriginsOfGateways is TestOrigins for gateways: of objects of Istio, and of
// those that were made of others.
func TestOriginsOfGateways(t *testing.T) {
	t.Parallel()
	objects, converted := shop(), shelf{}
	port := func(number uint32, protocol, name string) *networkingv1alpha3.Port {
		return &networkingv1alpha3.Port{Number: number, Protocol: protocol, Name: name}
	}
	labels := map[string]string{"istio": "edge", gatewayapi.NameLabel: "front"}
	objects = append(
		objects,
		stored(model.Gateway, "default", "edge", &networkingv1alpha3.Gateway{Selector: map[string]string{"istio": "edge"}, Servers: []*networkingv1alpha3.Server{
			{Port: port(8080, "HTTP", "http"), Hosts: []string{"*"}},
			{Port: port(8443, "HTTPS", "https"), Hosts: []string{"web.test"}, Bind: "127.77.51.4", Tls: &networkingv1alpha3.ServerTLSSettings{Mode: networkingv1alpha3.ServerTLSSettings_SIMPLE, CredentialName: "web"}},
			{Port: port(15443, "TLS", "sni"), Hosts: []string{"*.local"}, Tls: &networkingv1alpha3.ServerTLSSettings{Mode: networkingv1alpha3.ServerTLSSettings_AUTO_PASSTHROUGH}},
			{Port: port(9000, "TCP", "tcp"), Hosts: []string{"*"}},
		}}),
		stored(model.Gateway, "default", "other", &networkingv1alpha3.Gateway{Selector: map[string]string{"istio": "other"}, Servers: []*networkingv1alpha3.Server{{Port: port(8080, "HTTP", "http"), Hosts: []string{"*"}}}}),
		stored(model.VirtualService, "default", "site", &networkingv1alpha3.VirtualService{
			Hosts: []string{"web.test"}, Gateways: []string{"edge"},
			Http: []*networkingv1alpha3.HTTPRoute{{Route: []*networkingv1alpha3.HTTPRouteDestination{{Destination: &networkingv1alpha3.Destination{Host: "web"}}}}},
		}),
		stored(model.VirtualService, "default", "wires", &networkingv1alpha3.VirtualService{
			Hosts: []string{"wires.test"}, Gateways: []string{"edge"},
			Tcp: []*networkingv1alpha3.TCPRoute{{Route: []*networkingv1alpha3.RouteDestination{{Destination: &networkingv1alpha3.Destination{Host: "web"}}}}},
		}),
	)
	objects = append(objects, gatewayObjects()...)
	result := gatewayapi.Convert(gatewayapi.Input{List: func(k model.Kind) []*model.Config { return objects.List(k, "") }, Mesh: objects.mesh(nil).Config, IngressNamespace: "default"})
	for _, list := range result.Objects {
		converted = append(converted, list...)
	}
	proxy := &model.Proxy{ID: "edge.default", Role: "router", IPs: []string{"127.77.51.2"}, Namespace: "default", Domain: "default.svc.cluster.local", Labels: labels}
	got := slices.DeleteFunc(madeOf(objects, converted, proxy), func(l string) bool {
		return strings.HasPrefix(l, "eds outbound|") || strings.HasPrefix(l, "cds outbound|")
	})
	compareLines(t, "gateway", got, []string{
		"cds BlackHoleCluster: ",
		"cds outbound_.80_._.web.default.svc.cluster.local: ServiceEntry/web DestinationRule/web Gateway/edge",
		"cds outbound_.80_.v1_.web.default.svc.cluster.local: ServiceEntry/web DestinationRule/web Gateway/edge",
		"eds outbound_.80_._.web.default.svc.cluster.local: ServiceEntry/web DestinationRule/web WorkloadEntry/web-1 WorkloadEntry/web-2 Gateway/edge",
		"eds outbound_.80_.v1_.web.default.svc.cluster.local: ServiceEntry/web DestinationRule/web WorkloadEntry/web-1 Gateway/edge",
		"lds 0.0.0.0_15443: Gateway/edge", "lds 0.0.0.0_8080: Gateway/edge", "lds 0.0.0.0_8081: KubernetesGateway/front",
		"lds 0.0.0.0_9000: Gateway/edge VirtualService/wires", "lds 127.77.51.4_8443: Gateway/edge",
		"rds http.8080: Gateway/edge VirtualService/site", "rds http.8081: HTTPRoute/to.web KubernetesGateway/front",
		"rds https.8443.https.edge.default.127.77.51.4: Gateway/edge VirtualService/site",
	})
	ingress := &model.Proxy{ID: "in.default", Role: "router", IPs: []string{"127.77.51.3"}, Namespace: "default", Domain: "default.svc.cluster.local", Labels: map[string]string{"istio": "ingressgateway"}, VHDS: true}
	got = slices.DeleteFunc(madeOf(objects, converted, ingress), func(l string) bool { return l[0] == 'c' || l[0] == 'e' })
	compareLines(t, "ingress", got, []string{
		"lds 0.0.0.0_80: Ingress/one Ingress/two", "rds http.80.vhds: ", "vhds http.80.vhds/in.test:80: Ingress/one Ingress/two",
	})
}

// gatewayObjects are a Gateway with a route, and two Ingresses of one host.
func gatewayObjects() shelf {
	web := gatewayv1.BackendObjectReference{Name: "web", Port: new(gatewayv1.PortNumber(80))}
	ingress := func(name, path string) *model.Config {
		return stored(model.Ingress, "default", name, &kubenetworkingv1.IngressSpec{
			IngressClassName: new("istio"),
			Rules: []kubenetworkingv1.IngressRule{{Host: "in.test", IngressRuleValue: kubenetworkingv1.IngressRuleValue{HTTP: &kubenetworkingv1.HTTPIngressRuleValue{Paths: []kubenetworkingv1.HTTPIngressPath{{
				Path: path, PathType: new(kubenetworkingv1.PathTypePrefix),
				Backend: kubenetworkingv1.IngressBackend{Service: &kubenetworkingv1.IngressServiceBackend{Name: "web", Port: kubenetworkingv1.ServiceBackendPort{Number: 80}}},
			}}}}}},
		})
	}
	return shelf{
		stored(model.GatewayClass, "", "istio", &gatewayv1.GatewayClassSpec{ControllerName: gatewayapi.Controller}),
		stored(model.KubernetesGateway, "default", "front", &gatewayv1.GatewaySpec{
			GatewayClassName: "istio", Listeners: []gatewayv1.Listener{{Name: "http.one", Port: 8081, Protocol: gatewayv1.HTTPProtocolType}},
		}),
		stored(model.HTTPRoute, "default", "to.web", &gatewayv1.HTTPRouteSpec{
			CommonRouteSpec: gatewayv1.CommonRouteSpec{ParentRefs: []gatewayv1.ParentReference{{Name: "front"}}},
			Hostnames:       []gatewayv1.Hostname{"front.test"},
			Rules:           []gatewayv1.HTTPRouteRule{{BackendRefs: []gatewayv1.HTTPBackendRef{{BackendRef: gatewayv1.BackendRef{BackendObjectReference: web}}}}},
		}),
		stored(model.IngressClass, "", "istio", &kubenetworkingv1.IngressClassSpec{Controller: "istio.io/ingress-controller"}),
		ingress("one", "/one"), ingress("two", "/two"),
	}
}
