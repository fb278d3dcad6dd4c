// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"encoding/json"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/durationpb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/outrigger-mesh/outrigger/controlplane/discovery/debug"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery/debug/debugtest"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// routedCart is guardedCart with routes to its service, whose only workload has the version v1.
func routedCart() debugtest.Objects {
	to := func(host, subset string, weight int32) *networkingv1alpha3.HTTPRouteDestination {
		return &networkingv1alpha3.HTTPRouteDestination{Destination: &networkingv1alpha3.Destination{Host: host, Subset: subset}, Weight: weight}
	}
	path := func(prefix string) []*networkingv1alpha3.HTTPMatchRequest {
		return []*networkingv1alpha3.HTTPMatchRequest{{Uri: &networkingv1alpha3.StringMatch{MatchType: &networkingv1alpha3.StringMatch_Prefix{Prefix: prefix}}}}
	}
	routes := debugtest.Stored(model.VirtualService, "default", "routes", &networkingv1alpha3.VirtualService{
		Hosts: []string{"cart"},
		Http: []*networkingv1alpha3.HTTPRoute{
			{Name: "missing", Match: path("/missing"), Route: []*networkingv1alpha3.HTTPRouteDestination{to("cart", "v9", 0)}},
			{Name: "empty", Match: path("/empty"), Route: []*networkingv1alpha3.HTTPRouteDestination{to("cart", "v2", 0)}},
			{Name: "away", Match: path("/away"), Redirect: &networkingv1alpha3.HTTPRedirect{Uri: "/there", RedirectCode: 308}},
			{Name: "teapot", Match: path("/tea"), DirectResponse: &networkingv1alpha3.HTTPDirectResponse{Status: 418}},
			{Name: "elsewhere", Match: path("/elsewhere"), Route: []*networkingv1alpha3.HTTPRouteDestination{to("nobody", "", 0)}},
			{Name: "raw", Match: path("/raw"), Route: []*networkingv1alpha3.HTTPRouteDestination{to("cart", "raw", 0)}},
			{Name: "slow", Match: path("/slow"), Timeout: durationpb.New(3e9), Retries: &networkingv1alpha3.HTTPRetry{Attempts: 7}, Route: []*networkingv1alpha3.HTTPRouteDestination{to("cart", "v1", 0)}},
			{Name: "split", Match: path("/"), Route: []*networkingv1alpha3.HTTPRouteDestination{to("cart", "v1", 25), to("cart", "v2", 75)}},
		},
	})
	routes.Source = "routes.yaml:1"
	rule := debugtest.Stored(model.DestinationRule, "default", "subsets", &networkingv1alpha3.DestinationRule{
		Host: "cart", Subsets: []*networkingv1alpha3.Subset{{Name: "v1", Labels: map[string]string{"version": "v1"}}, {Name: "v2", Labels: map[string]string{"version": "v2"}}, {Name: "raw", TrafficPolicy: &networkingv1alpha3.TrafficPolicy{
			LoadBalancer: &networkingv1alpha3.LoadBalancerSettings{LbPolicy: &networkingv1alpha3.LoadBalancerSettings_Simple{Simple: networkingv1alpha3.LoadBalancerSettings_PASSTHROUGH}},
		}}},
	})
	rule.Source = "rule.yaml:2"
	objects := append(guardedCart(), routes, rule)
	objects[0].Spec.(*networkingv1alpha3.ServiceEntry).Endpoints[0].Labels = map[string]string{"version": "v1"}
	return objects
}

// TestDebugHop checks where the proxy of a client sends requests, and that the proxy that receives them
// decides.
func TestDebugHop(t *testing.T) {
	t.Parallel()
	h := startDebug(t, true)
	objects := routedCart()
	h.server.Debug(debug.Config{Replica: "one", Objects: objects})
	h.server.Push(objects.Mesh(nil), model.Change{All: true})
	h.join(t, "cart-1", "default")
	const origin = `"objects":[{"kind":"VirtualService","namespace":"default","name":"routes","source":"routes.yaml:1"}]`
	for query, wants := range map[string][]string{
		"port=80&path=/slow": {
			`"proxy":"cart-1.default","identity"`, `"port":8080,"client":{"proxy":"cart-1.default"`, `"virtual_host":"cart.default.svc.cluster.local:80","route":"slow",` + origin + `,"timeout":"3s","timeout_by":"route","retries":7`,
			`"cluster":"outbound|80|v1|cart.default.svc.cluster.local","percent":100,"objects":[{"kind":"DestinationRule","namespace":"default","name":"subsets","source":"rule.yaml:2"}],"endpoints":["127.1.0.2:8080"],"healthy":1,"all":1,"mutual_tls":1`,
			`"decided_by":"no-rule"`, // of the workload, which the request reaches
		},
		"port=80&path=/other": {
			`"route":"split"`, `"cluster":"outbound|80|v1|cart.default.svc.cluster.local","percent":25`, `"cluster":"outbound|80|v2|cart.default.svc.cluster.local","percent":75`, `"reason":"no workload belongs to it","lost":true`, `"failing_percent":75`, `"decided_by":"no-rule"`,
		},
		"port=80&path=/empty":     {`"allowed":false,"status":503,"decided_by":"route","reason":"no workload belongs to it"`},
		"port=80&path=/missing":   {`"allowed":false,"status":503,"decided_by":"route","reason":"the proxy has no such cluster`},
		"port=80&path=/away":      {`"route":"away"`, `"status":308,"location":"/there"`, `"allowed":true,"status":308,"decided_by":"route"`},
		"port=80&path=/tea":       {`"route":"teapot"`, `"allowed":false,"status":418,"decided_by":"route"`},
		"port=80&path=/elsewhere": {`"route":"elsewhere"`, `"endpoints":["127.1.0.9:80"]`, `"allowed":true,"decided_by":"","reason":"no proxy of the mesh receives it"`},
	} {
		var raw json.RawMessage
		debugGet(t, h.server, "request?from=cart&to=cart&"+query, &raw)
		for _, want := range wants {
			if !strings.Contains(string(raw), want) {
				t.Errorf("%s: %s lacks %s", query, raw, want)
			}
		}
	}
	// Neither the name of a proxy nor an account determines a client's proxy or a route.
	// A connection that no listener accepts bypasses the proxy.
	for _, query := range []string{"from=cart&to=cart-1&port=8080", "from=shop/web&to=cart&port=80", "from=cart&to=cart&port=90"} {
		var raw json.RawMessage
		if debugGet(t, h.server, "request?"+query, &raw); strings.Contains(string(raw), `"client":{"proxy"`) {
			t.Errorf("%s: %s has a hop of the client, want none", query, raw)
		}
	}
}

// TestDebugHopOriginal checks that a workload of the service decides about a request whose address the
// application chooses.
func TestDebugHopOriginal(t *testing.T) {
	t.Parallel()
	h := startDebug(t, true)
	objects := routedCart()
	h.server.Debug(debug.Config{Replica: "one", Objects: objects})
	h.server.Push(objects.Mesh(nil), model.Change{All: true})
	h.joinWith(t, "cart-1", "default", "REDIRECT")
	var raw json.RawMessage
	debugGet(t, h.server, "request?from=cart&to=cart&port=80&path=/raw", &raw)
	for _, want := range []string{`"reason":"the proxy forwards the connection to its original destination"}`, `"port":8080,"client":{`, `"decided_by":"no-rule"`, `"tls":{"mutual":true,"reason":"the proxy of the client uses it for all`} {
		if !strings.Contains(string(raw), want) {
			t.Errorf("%s lacks %s", raw, want)
		}
	}
}

// TestDebugSecured checks how connections are secured, and which objects decide.
func TestDebugSecured(t *testing.T) {
	t.Parallel()
	strict := debugtest.Stored(model.PeerAuthentication, "default", "strict", &securityv1beta1.PeerAuthentication{
		Mtls: &securityv1beta1.PeerAuthentication_MutualTLS{Mode: securityv1beta1.PeerAuthentication_MutualTLS_STRICT},
	})
	strict.Source = "strict.yaml:1"
	rule := func(tls networkingv1alpha3.ClientTLSSettings_TLSmode) *model.Config {
		c := debugtest.Stored(model.DestinationRule, "default", "tls", &networkingv1alpha3.DestinationRule{Host: "cart", TrafficPolicy: &networkingv1alpha3.TrafficPolicy{Tls: &networkingv1alpha3.ClientTLSSettings{Mode: tls}}})
		c.Source = "tls.yaml:2"
		return c
	}
	const (
		identity    = `"identity":"spiffe://cluster.local/ns/default/sa/`
		automatic   = `"tls":{"mutual":true,"reason":"the workload has a proxy that accepts it, so it is automatic","mode":`
		certificate = `"client":{` + identity + `cart","proxy":"cart-1.default","namespace":"default","address":"127.1.0.2"},"server":{` + identity + `shop","proxy":"cart-1.default","namespace":"default","address":"127.1.0.2"}}`
		ofRule      = `"objects":[{"kind":"DestinationRule","namespace":"default","name":"tls","source":"tls.yaml:2"}]`
	)
	for name, tc := range map[string]struct {
		query string
		more  debugtest.Objects
		want  string
	}{
		"automatic":    {"from=cart", nil, automatic + `"PERMISSIVE",` + certificate},
		"strict":       {"from=cart", debugtest.Objects{strict}, automatic + `"STRICT","mode_objects":[{"kind":"PeerAuthentication","namespace":"default","name":"strict","source":"strict.yaml:1"}],` + certificate},
		"without one":  {"from=none", nil, `"tls":{"mutual":false,"reason":"the client has no certificate","mode":"PERMISSIVE","server":`},
		"rule":         {"from=cart", debugtest.Objects{rule(networkingv1alpha3.ClientTLSSettings_ISTIO_MUTUAL)}, `"tls":{"mutual":true,"reason":"a DestinationRule sets TLS",` + ofRule},
		"switched off": {"from=cart", debugtest.Objects{rule(networkingv1alpha3.ClientTLSSettings_DISABLE)}, `"tls":{"mutual":false,"reason":"a DestinationRule switches TLS off",` + ofRule + `,"mode":"PERMISSIVE","server":`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := startDebug(t, true)
			objects := append(guardedCart(), tc.more...)
			h.server.Debug(debug.Config{Replica: "one", Objects: objects})
			h.server.Push(objects.Mesh(nil), model.Change{All: true})
			h.join(t, "cart-1", "default")
			var raw json.RawMessage
			if debugGet(t, h.server, "request?to=cart&port=80&"+tc.query, &raw); !strings.Contains(string(raw), tc.want) {
				t.Errorf("%s lacks %s", raw, tc.want)
			}
		})
	}
}
