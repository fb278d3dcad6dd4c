// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	securityv1beta1 "istio.io/api/security/v1beta1"
	typev1beta1 "istio.io/api/type/v1beta1"

	"github.com/outrigger-mesh/outrigger/controlplane/discovery/debug"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery/debug/debugtest"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

// guardedCart are a service with a workload at 127.1.0.2, and policies for it.
func guardedCart() debugtest.Objects {
	policy := func(name string, spec *securityv1beta1.AuthorizationPolicy) *model.Config {
		c := debugtest.Stored(model.AuthorizationPolicy, "default", name, spec)
		c.Source = name + ".yaml:1"
		return c
	}
	to := func(o *securityv1beta1.Operation) []*securityv1beta1.Rule_To {
		return []*securityv1beta1.Rule_To{{Operation: o}}
	}
	tried := policy("tried", &securityv1beta1.AuthorizationPolicy{
		Action: securityv1beta1.AuthorizationPolicy_DENY, Rules: []*securityv1beta1.Rule{{To: to(&securityv1beta1.Operation{Paths: []string{"/try"}})}},
	})
	tried.Annotations = map[string]string{"istio.io/dry-run": "true"}
	return debugtest.Objects{
		debugtest.Stored(model.ServiceEntry, "default", "cart", &networkingv1alpha3.ServiceEntry{
			Hosts: []string{"cart.default.svc.cluster.local"}, Resolution: networkingv1alpha3.ServiceEntry_STATIC, Location: networkingv1alpha3.ServiceEntry_MESH_INTERNAL,
			Ports:     []*networkingv1alpha3.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP", TargetPort: 8080}, {Number: 90, Name: "tcp", Protocol: "TCP", TargetPort: 9090}},
			Endpoints: []*networkingv1alpha3.WorkloadEntry{{Address: "127.1.0.2", ServiceAccount: "cart"}},
		}),
		debugtest.Stored(model.ServiceEntry, "default", "nobody", &networkingv1alpha3.ServiceEntry{
			Hosts: []string{"nobody.default.svc.cluster.local"}, Resolution: networkingv1alpha3.ServiceEntry_STATIC,
			Ports:     []*networkingv1alpha3.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP"}},
			Endpoints: []*networkingv1alpha3.WorkloadEntry{{Address: "127.1.0.9"}},
		}),
		debugtest.Stored(model.Sidecar, "default", "cart", &networkingv1alpha3.Sidecar{Ingress: []*networkingv1alpha3.IstioIngressListener{
			{Port: &networkingv1alpha3.SidecarPort{Number: 8080, Protocol: "HTTP", Name: "http"}, DefaultEndpoint: "127.0.0.1:1"},
			{Port: &networkingv1alpha3.SidecarPort{Number: 9090, Protocol: "TCP", Name: "tcp"}, DefaultEndpoint: "127.0.0.1:1"},
		}}),
		debugtest.Stored(model.RequestAuthentication, "default", "tokens", &securityv1beta1.RequestAuthentication{
			JwtRules: []*securityv1beta1.JWTRule{{Issuer: "https://issuer.example", Jwks: `{"keys":[]}`}},
		}),
		policy("readers", &securityv1beta1.AuthorizationPolicy{Rules: []*securityv1beta1.Rule{
			{
				From: []*securityv1beta1.Rule_From{{Source: &securityv1beta1.Source{ServiceAccounts: []string{"shop/web"}}}},
				To:   to(&securityv1beta1.Operation{Methods: []string{"GET", "HEAD"}, Ports: []string{"8080"}}),
			},
			{When: []*securityv1beta1.Condition{{Key: "request.headers[x-team]", Values: []string{"red"}}}},
		}}),
		policy("nothing", &securityv1beta1.AuthorizationPolicy{}),
		policy("private", &securityv1beta1.AuthorizationPolicy{
			Action: securityv1beta1.AuthorizationPolicy_DENY, Rules: []*securityv1beta1.Rule{{To: to(&securityv1beta1.Operation{Paths: []string{"/admin"}, Ports: []string{"8080"}})}},
		}),
		policy("asked", &securityv1beta1.AuthorizationPolicy{
			Selector: &typev1beta1.WorkloadSelector{}, Action: securityv1beta1.AuthorizationPolicy_CUSTOM,
			ActionDetail: &securityv1beta1.AuthorizationPolicy_Provider{Provider: &securityv1beta1.AuthorizationPolicy_ExtensionProvider{Name: "missing"}},
			Rules:        []*securityv1beta1.Rule{{To: to(&securityv1beta1.Operation{Paths: []string{"/ask"}, Ports: []string{"8080"}})}},
		}),
		tried,
	}
}

// TestDebugRequest checks what a proxy decides about requests.
func TestDebugRequest(t *testing.T) {
	t.Parallel()
	h := startDebug(t, true)
	objects := guardedCart()
	h.server.Debug(debug.Config{Replica: "one", Objects: objects})
	h.server.Push(objects.Mesh(nil), model.Change{All: true})
	h.join(t, "cart-1", "default")
	for query, want := range map[string]string{
		"from=shop/web&to=cart&port=80":                                         `"identity":"spiffe://cluster.local/ns/shop/sa/web","port":8080,"http":true,"method":"GET","host":"cart.default.svc.cluster.local","path":"/","allowed":true,"decided_by":"rule","rule":{"kind":"AuthorizationPolicy","namespace":"default","name":"readers","index":0,"source":"readers.yaml:1"},"matched":[{"name":"principals"`,
		"from=shop/web&to=cart&port=80&refused=true":                            `"status":401,"decided_by":"token"`,
		`from=shop/web&to=cart&port=80&claims={"iss":"other"}`:                  `"status":401,"decided_by":"token"`,
		`from=shop/web&to=cart&port=80&claims={"iss":"https://issuer.example"}`: `"allowed":true`,
		"from=shop/web&to=cart-1.default&port=8080":                             `"allowed":true`,
		"from=shop/web&to=cart-1&port=8080":                                     `"allowed":true`,
		"from=shop/web&to=cart.default&port=80&method=PUT":                      `"status":403,"decided_by":"no-rule","candidates":[{"kind":"AuthorizationPolicy","namespace":"default","name":"readers","index":0,"source":"readers.yaml:1","attribute":{"name":"methods","value":"PUT"},"wanted":["GET","HEAD"]},{"kind":"AuthorizationPolicy","namespace":"default","name":"readers","index":1,"source":"readers.yaml:1","attribute":{"name":"request.headers[x-team]","value":""},"wanted":["red"]},{"kind":"AuthorizationPolicy","namespace":"default","name":"nothing","index":-1,"source":"nothing.yaml:1","reason":`,
		"from=shop/web&to=cart.default&port=90":                                 `"allowed":false,"decided_by":"no-rule"`,
		"from=none&to=cart&port=80&header=X-Team=red":                           `"name":"readers","index":1,"source":"readers.yaml:1"},"matched":[{"name":"request.headers[x-team]","value":"red"}]`,
		"from=cart&to=cart&port=80":                                             `"identity":"spiffe://cluster.local/ns/default/sa/cart","address":"127.1.0.2"`,
		"from=cart-1.default&to=cart&port=80":                                   `"identity":"spiffe://cluster.local/ns/default/sa/shop","address":"127.1.0.2"`,
		"from=cluster.local/ns/shop/sa/web&to=cart&port=80":                     `"allowed":true`,
		"from=shop/web&to=cart&port=80&path=/x/../Admin%3ba?b":                  `"path":"/Admin;a","allowed":false,"status":403,"decided_by":"rule","rule":{"kind":"AuthorizationPolicy","namespace":"default","name":"private"`,
		"from=shop/web&to=cart&port=80&path=/ask":                               `"name":"asked"`,
		"from=shop/web&to=cart&port=80&path=/try":                               `"dry_run":[{"rule":{"kind":"AuthorizationPolicy","namespace":"default","name":"tried"`,
		"from=shop/web&to=cart&port=80&jwt=x.y.z":                               `"allowed":false,"status":401,"decided_by":"token"`,
		"from=spiffe://evil.example/ns/shop/sa/web&to=cart&port=80":             `"decided_by":"connection","reason":"the port does not accept the trust domain of spiffe://evil.example/ns/shop/sa/web"`,
		"from=shop/web&to=cart-1&port=7":                                        `"decided_by":"connection","reason":"nothing listens on port 7"`,
		"from=shop/web&to=cart&port=80&path=/a%2500":                            `"decided_by":"path"`,
	} {
		var raw json.RawMessage
		debugGet(t, h.server, "request?"+query, &raw)
		if !strings.Contains(string(raw), want) {
			t.Errorf("%s: %s lacks %s", query, raw, want)
		}
		fields, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		if code, body := postDebug(h.server, "request", fields); code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s, as a form: %d %s lacks %s", query, code, body, want)
		}
	}
	for query, want := range map[string]string{
		"from=shop/web":                                                      "the destination of the request is missing",
		"to=cart&port=80":                                                    "the client of the request is missing",
		"from=shop/web&to=cart":                                              "has the ports 80, 90: choose one with --port",
		"from=shop/web&to=cart&port=81":                                      "has the ports 80, 90: choose one with --port",
		"from=shop/web&to=cart&port=x":                                       `the port "x" is not a number`,
		"from=shop/web&to=cart-1":                                            "has the ports 8080, 9090: choose one with --port",
		"from=shop/web&to=absent":                                            `"absent" is unknown`,
		"from=absent&to=cart&port=80":                                        "a service account is written NAMESPACE/NAME",
		"from=shop/&to=cart&port=80":                                         "is not a service account",
		"from=shop/web&to=nobody":                                            "none of its workloads has a proxy",
		"from=shop/web&to=cart&port=80&path=x":                               "does not begin with a slash",
		"from=shop/web&to=cart&port=80&header=x":                             "is not written as NAME=VALUE",
		"from=shop/web&to=cart&port=80&header=Host%3Da.example":              "write it as --host a.example",
		"from=shop/web&to=cart&port=80&address=x":                            "is not an IP address",
		"from=shop/web&to=cart&port=80&path=/" + strings.Repeat("x", 20_000): "16384 bytes",
	} {
		fields, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		if code, body := postDebug(h.server, "request", fields); code == http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s lacks %s", query, code, body, want)
		}
	}
	if code, body := postDebug(h.server, "mesh", nil); code != http.StatusMethodNotAllowed {
		t.Errorf("a form for another question: %d %s", code, body)
	}
	if code, body := postDebug(h.server, "request", url.Values{"jwt": {strings.Repeat("x", 200_000)}}); code != http.StatusBadRequest {
		t.Errorf("a large form: %d %s", code, body)
	}
}

// postDebug sends a form, from this machine.
func postDebug(s *Server, name string, fields url.Values) (int, string) {
	r := httptest.NewRequest(http.MethodPost, "http://127.0.0.1/debug/"+name, strings.NewReader(fields.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.RemoteAddr = "127.77.51.3:1"
	w := httptest.NewRecorder()
	s.DebugHandler().ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

// TestDebugRequestVisibility checks that a caller of another namespace learns nothing about a proxy.
func TestDebugRequestVisibility(t *testing.T) {
	t.Parallel()
	h := startDebug(t, true)
	objects := guardedCart()
	h.server.Debug(debug.Config{Objects: objects})
	h.server.Push(objects.Mesh(nil), model.Change{All: true})
	h.join(t, "cart-1", "default")
	other := h.join(t, "spy-1", "other")
	for _, to := range []string{"cart", "cart-1.default", "cart-1"} {
		answers := other.question(debug.Type, "request?from=shop/web&port=80&to="+to)
		if len(answers) != 1 || !strings.Contains(string(answers[0].GetValue()), "unknown") {
			t.Errorf("%s: got %v", to, answers)
		}
	}
	var got report.Decision
	debugGet(t, h.server, "request?from=shop/web&port=80&to=cart", &got)
	if !got.Allowed || got.Proxy != "cart-1.default" {
		t.Errorf("got %+v", got)
	}
}
