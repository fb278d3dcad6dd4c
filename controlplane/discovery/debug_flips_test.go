// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery/debug"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery/debug/debugtest"
	"github.com/outrigger-mesh/outrigger/controlplane/generate"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// flipWorld starts a control plane with a proxy of the cart and a service web with a subset, and returns
// a function that requests what a change would do.
func flipWorld(t *testing.T, cfg debug.Config, more ...*model.Config) func(form url.Values) report.WhatIf {
	t.Helper()
	h := startDebug(t, true)
	objects := slices.Concat(guardedCart(), debugtest.Shop()[:6])
	objects = slices.DeleteFunc(objects, func(c *model.Config) bool {
		return c.Kind == model.AuthorizationPolicy || c.Kind == model.RequestAuthentication
	})
	objects = append(objects, more...)
	if cfg.FlipTime == 0 {
		cfg.FlipTime = time.Hour
	}
	cfg.Objects, cfg.Preview = objects, func() debug.Generator { return generate.New(generate.Config{}) }
	cfg.Propose = func(prev *snapshot.Mesh, p debug.Proposal) debug.Outcome {
		return debug.Outcome{Mesh: objects.Changed(p.Objects).Mesh(prev)}
	}
	h.server.Debug(cfg)
	h.server.Push(objects.Mesh(nil), model.Change{All: true})
	h.join(t, "cart-1", "default")
	return func(form url.Values) (answer report.WhatIf) {
		form.Set("namespace", "default")
		code, body := postDebug(h.server, "whatif", form)
		if err := json.Unmarshal([]byte(body), &answer); code != http.StatusOK || err != nil {
			t.Fatalf("%s: got %d %s", form, code, body)
		}
		return answer
	}
}

// flipTexts returns the results that change, each as one line.
func flipTexts(answer report.WhatIf) (got []string) {
	for _, x := range answer.Flips {
		text := fmt.Sprintf("%s %s:%d%s %s > %s %s", x.Method, x.Host, x.Port, x.Path, x.Before, x.After, x.By)
		text = strings.Replace(text, ":0", "", 1) // the host of a route has a port
		if x.Fails {
			text = "!" + text
		}
		if x.Rule != nil {
			text += fmt.Sprintf(" %s[%d]", x.Rule.Name, x.Rule.Index)
		}
		if with := x.With(); len(with) > 0 {
			text += " with " + strings.Join(with, ", ")
		}
		if len(x.Clients) > 0 {
			text += " from " + strings.Join(x.Clients, "+")
		}
		got = append(got, text)
	}
	return got
}

// TestDebugWhatIfFlips checks which requests a change denies, allows and routes otherwise.
func TestDebugWhatIfFlips(t *testing.T) {
	t.Parallel()
	whatIf := flipWorld(t, debug.Config{})
	policy := func(spec string) string {
		return `{"apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy", "metadata": {"name": "a"}, "spec": ` + spec + `}`
	}
	route := func(spec string) string {
		return `{"apiVersion": "networking.istio.io/v1", "kind": "VirtualService", "metadata": {"name": "web"}, "spec": {"hosts": ["web"], "http": ` + spec + `}}`
	}
	const both, web = " from none+spiffe://cluster.local/ns/default/sa/", "outbound|80||web.default.svc.cluster.local"
	for name, c := range map[string]struct {
		object string
		want   []string
	}{
		"deny all": {policy(`{"action": "DENY", "rules": [{}]}`), []string{
			"!GET cart.default.svc.cluster.local:8080/ allowed > denied rule a[0]" + both, "! cart.default.svc.cluster.local:9090 allowed > denied rule a[0]" + both,
		}},
		"allow nothing": {policy(`{}`), []string{
			"!GET cart.default.svc.cluster.local:8080/ allowed > denied no-rule" + both, "! cart.default.svc.cluster.local:9090 allowed > denied no-rule" + both,
		}},
		"one path": {policy(`{"action": "DENY", "rules": [{"to": [{"operation": {"paths": ["/admin*"], "methods": ["POST"], "ports": ["8080"]}}]}]}`), []string{
			"!POST cart.default.svc.cluster.local:8080/admin allowed > denied rule a[0]" + both,
		}},
		"one client": {policy(`{"rules": [{"from": [{"source": {"namespaces": ["default"]}}]}]}`), []string{
			"!GET cart.default.svc.cluster.local:8080/ allowed > denied no-rule from none", "! cart.default.svc.cluster.local:9090 allowed > denied no-rule from none",
		}},
		"another namespace": {policy(`{"action": "DENY", "rules": [{"from": [{"source": {"namespaces": ["other"]}}]}]}`), []string{
			"!GET cart.default.svc.cluster.local:8080/ allowed > denied rule a[0] from spiffe://cluster.local/ns/other/sa/default", "! cart.default.svc.cluster.local:9090 allowed > denied rule a[0] from spiffe://cluster.local/ns/other/sa/default",
		}},
		"mutual TLS": {`{"apiVersion": "security.istio.io/v1", "kind": "PeerAuthentication", "metadata": {"name": "a"}, "spec": {"mtls": {"mode": "STRICT"}}}`, []string{
			"!GET cart.default.svc.cluster.local:8080/ allowed > denied connection from none", "! cart.default.svc.cluster.local:9090 allowed > denied connection from none",
		}},
		"no mutual TLS": {`{"apiVersion": "security.istio.io/v1", "kind": "PeerAuthentication", "metadata": {"name": "a"}, "spec": {"mtls": {"mode": "DISABLE"}}}`, nil},
		"another subset": {route(`[{"match": [{"uri": {"prefix": "/v1"}}], "route": [{"destination": {"host": "web", "subset": "v1"}}]}, {"route": [{"destination": {"host": "web"}}]}]`), []string{
			"GET web.default.svc.cluster.local:80/v1 " + web + " > outbound|80|v1|web.default.svc.cluster.local ",
		}},
		"unknown subset": {route(`[{"route": [{"destination": {"host": "web", "subset": "v9"}}]}]`), []string{
			"!GET web.default.svc.cluster.local:80/ " + web + " > outbound|80|v9|web.default.svc.cluster.local (the proxy has no such cluster: the host, port or subset is unknown) ",
		}},
		"abort": {route(`[{"fault": {"abort": {"httpStatus": 418, "percentage": {"value": 100}}}, "route": [{"destination": {"host": "web"}}]}]`), []string{
			"!GET web.default.svc.cluster.local:80/ " + web + " > status 418, abort 100 % with status 418 ",
		}},
		"timeout": {route(`[{"timeout": "1s", "route": [{"destination": {"host": "web"}}]}]`), nil},
	} {
		answer := whatIf(url.Values{"objects": {c.object}})
		got := flipTexts(answer)
		if len(got) != len(c.want) || answer.Requests == 0 || len(answer.Untried) > 0 {
			t.Errorf("%s: got %d requests, %q, untried %q", name, answer.Requests, got, answer.Untried)
		}
		for _, want := range c.want {
			if !slices.ContainsFunc(got, func(text string) bool { return strings.HasPrefix(text, want) }) {
				t.Errorf("%s: got\n%s\nwant %s", name, strings.Join(got, "\n"), want)
			}
		}
	}
}

// TestDebugWhatIfAttributes checks requests with headers, tokens, addresses, senders and parameters that
// rules and routes compare, and connections.
func TestDebugWhatIfAttributes(t *testing.T) {
	t.Parallel()
	whatIf := flipWorld(t, debug.Config{}, debugtest.Stored(model.ServiceEntry, "default", "db", &networkingv1alpha3.ServiceEntry{
		Hosts: []string{"db.default.svc.cluster.local"}, Addresses: []string{"240.0.9.1"}, Resolution: networkingv1alpha3.ServiceEntry_STATIC, Location: networkingv1alpha3.ServiceEntry_MESH_INTERNAL,
		Ports:     []*networkingv1alpha3.ServicePort{{Number: 3306, Name: "tcp", Protocol: "TCP"}, {Number: 8443, Name: "tls", Protocol: "TLS"}},
		Endpoints: []*networkingv1alpha3.WorkloadEntry{{Address: "127.1.0.7"}},
	}))
	policy := func(spec string) string {
		return `{"apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy", "metadata": {"name": "a"}, "spec": ` + spec + "}\n"
	}
	route := func(hosts, spec string) string {
		return `{"apiVersion": "networking.istio.io/v1", "kind": "VirtualService", "metadata": {"name": "web"}, "spec": {"hosts": [` + hosts + `], ` + spec + `}}`
	}
	short := [][2]string{
		{"CART", "cart.default.svc.cluster.local:8080"},
		{"DENIES", "allowed > denied rule a[0]"},
		{"NOTOKEN", "allowed > denied token"},
		{"BOTH", " from none+spiffe://cluster.local/ns/default/sa/shop"},
		{"V1", "outbound|80||web.default.svc.cluster.local > outbound|80|v1|web.default.svc.cluster.local"},
		{"WEB", "web.default.svc.cluster.local:80"},
		{"DB", "outbound|3306||db.default.svc.cluster.local > outbound|3306|v9|db.default.svc.cluster.local (the proxy has no such cluster: the host, port or subset is unknown)"},
	}
	const tokens = `---
{"apiVersion": "security.istio.io/v1", "kind": "RequestAuthentication", "metadata": {"name": "a"}, "spec": {"jwtRules": [{"issuer": "https://issuer.example", "audiences": ["shop"], "jwks": "{\"keys\":[]}"}]}}`
	for name, c := range map[string]struct {
		object string
		want   []string
	}{
		"header": {policy(`{"action": "DENY", "rules": [{"when": [{"key": "request.headers[x-team]", "values": ["red*"]}], "to": [{"operation": {"ports": ["8080"]}}]}]}`), []string{
			"!GET CART/ DENIES with x-team: redBOTH",
		}},
		"two values": {policy(`{"action": "DENY", "rules": [{"to": [{"operation": {"ports": ["8080"], "paths": ["/a", "*/b", "/{*}/c"], "methods": ["PUT"]}}]}]}`), []string{
			"!PUT CART/a DENIESBOTH",
			"!PUT CART/x/b DENIESBOTH",
			"!PUT CART/x/c DENIESBOTH",
		}},
		"address": {policy(`{"action": "DENY", "rules": [{"from": [{"source": {"ipBlocks": ["10.1.0.0/16"]}}]}]}`), []string{
			"!GET CART/ DENIES with address 10.1.0.1BOTH",
			"! cart.default.svc.cluster.local:9090 DENIES with address 10.1.0.1BOTH",
		}},
		"client address": {policy(`{"action": "DENY", "rules": [{"from": [{"source": {"remoteIpBlocks": ["10.1.0.0/16"]}}], "to": [{"operation": {"ports": ["8080"]}}]}]}`), []string{
			"!GET CART/ DENIES with x-forwarded-for: 10.1.0.1, address 10.1.0.1BOTH",
		}},
		"sender": {policy(`{"action": "DENY", "rules": [{"from": [{"source": {"principals": ["cluster.local/ns/other/sa/robot", "cluster.local/ns/shop/*"]}}], "to": [{"operation": {"ports": ["8080"]}}]}]}`), []string{
			"!GET CART/ DENIES from spiffe://cluster.local/ns/other/sa/robot+spiffe://cluster.local/ns/shop/sa/default",
		}},
		"not a sender": {policy(`{"action": "DENY", "rules": [{"from": [{"source": {"notServiceAccounts": ["robot"]}}], "to": [{"operation": {"ports": ["8080"]}}]}]}`), []string{
			"!GET CART/ DENIESBOTH",
		}},
		"tokens": {policy(`{"action": "DENY", "rules": [{"from": [{"source": {"notRequestPrincipals": ["*"]}}], "to": [{"operation": {"ports": ["8080"]}}]}]}`) + tokens, []string{
			"!GET CART/ DENIESBOTH",
			"!GET CART/ NOTOKEN with a token with aud=https://issuer.invalid iss=https://issuer.example sub=subjectBOTH",
			"!GET CART/ NOTOKEN with a token with iss=https://issuer.invalid sub=subjectBOTH",
		}},
		"claims": {policy(`{"action": "DENY", "rules": [{"when": [{"key": "request.auth.claims[groups][name]", "values": ["a"]}, {"key": "request.auth.audiences", "values": ["shop"]}], "to": [{"operation": {"ports": ["8080"]}}]}]}`) + tokens, []string{
			"!GET CART/ NOTOKEN with a token with aud=https://issuer.invalid iss=https://issuer.example sub=subjectBOTH",
			"!GET CART/ DENIES with a token with aud=shop groups={\"name\":\"a\"} iss=https://issuer.example sub=subjectBOTH",
			"!GET CART/ NOTOKEN with a token with iss=https://issuer.invalid sub=subjectBOTH",
		}},
		"other port": {policy(`{"action": "DENY", "rules": [{"to": [{"operation": {"ports": ["9090"]}}]}]}`), []string{
			"! cart.default.svc.cluster.local:9090 DENIESBOTH",
		}},
		"route by header": {route(`"web"`, `"http": [{"match": [{"headers": {"x-user": {"exact": "jason"}}}, {"headers": {"x-version": {"regex": "v[0-9]+(-beta)?"}}}], "route": [{"destination": {"host": "web", "subset": "v1"}}]}, {"route": [{"destination": {"host": "web"}}]}]`), []string{
			"GET WEB/ V1 with x-user: jason",
			"GET WEB/ V1 with x-version: v0",
		}},
		"route by parameter": {route(`"web"`, `"http": [{"match": [{"queryParams": {"v": {"exact": "2"}}, "method": {"exact": "POST"}, "uri": {"prefix": "/api"}}], "route": [{"destination": {"host": "web", "subset": "v1"}}]}, {"route": [{"destination": {"host": "web"}}]}]`), []string{
			"POST WEB/api?v=2 V1",
		}},
		"route without header": {route(`"web"`, `"http": [{"match": [{"withoutHeaders": {"x-user": {"exact": "jason"}}}], "route": [{"destination": {"host": "web", "subset": "v1"}}]}, {"route": [{"destination": {"host": "web"}}]}]`), []string{
			"GET WEB/ V1",
		}},
		"TCP route": {route(`"db"`, `"tcp": [{"match": [{"port": 3306}], "route": [{"destination": {"host": "db", "subset": "v9"}}]}]`), []string{
			"! 127.1.0.2:3306 DB",
			"!CONNECT db.default.svc.cluster.local:3306 DB",
		}},
		"TLS route": {route(`"db", "more.example.com"`, `"tls": [{"match": [{"port": 8443, "sniHosts": ["more.example.com"]}], "route": [{"destination": {"host": "web", "port": {"number": 80}}}]}]`), []string{
			"! 127.1.0.2:8443 outbound|8443||db.default.svc.cluster.local > no filter chain of the listener accepts the connection with SNI db.default.svc.cluster.local",
			" 127.1.0.2:8443 no filter chain of the listener accepts the connection > outbound|80||web.default.svc.cluster.local with SNI more.example.com",
		}},
	} {
		answer := whatIf(url.Values{"objects": {c.object}})
		var got []string
		for _, text := range flipTexts(answer) {
			for _, long := range short {
				text = strings.ReplaceAll(text, long[1], long[0])
			}
			got = append(got, strings.TrimSuffix(strings.ReplaceAll(text, "  ", " "), " "))
		}
		if diff := cmp.Diff(c.want, got); diff != "" || len(answer.Untried) > 0 {
			t.Errorf("%s: %d requests, untried %q (-want +got):\n%s", name, answer.Requests, answer.Untried, diff)
		}
	}
}

// TestDebugWhatIfBounds checks that the work is bounded, that equal questions have equal answers, and that
// what is left out is counted.
func TestDebugWhatIfBounds(t *testing.T) {
	t.Parallel()
	var rules []string
	for i := range 200 {
		rules = append(rules, fmt.Sprintf(`{"to": [{"operation": {"paths": ["/%d", "/%d/more"]}}]}`, i, i))
	}
	form := func() url.Values {
		return url.Values{"objects": {`{"apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy", "metadata": {"name": "a"}, "spec": {"action": "DENY", "rules": [` + strings.Join(rules, ", ") + `]}}`}}
	}
	answers := map[int]report.WhatIf{}
	for _, work := range []int{1, 0} {
		whatIf := flipWorld(t, debug.Config{FlipWork: work})
		answers[work] = whatIf(form())
		if again := whatIf(form()); !reflect.DeepEqual(answers[work].Flips, again.Flips) || again.Requests != answers[work].Requests || !slices.Equal(again.Untried, answers[work].Untried) {
			t.Errorf("%d units: got another answer, with %d requests and not %d", work, again.Requests, answers[work].Requests)
		}
	}
	// Of 401 requests, 256 are made. The port 8080 has all of them from two clients, 9090 the first one.
	const all, values = 2*256 + 2, "145 values of rules were not tried"
	if got := answers[0]; got.Requests != all || len(got.Flips) != 100 || !slices.Equal(got.Untried, []string{values, "156 results that change are not listed"}) {
		t.Errorf("got %d requests, %d results, %q", got.Requests, len(got.Flips), got.Untried)
	}
	if got := answers[1]; got.Requests == 0 || len(got.Flips) == 0 || !slices.Equal(got.Untried, []string{values, fmt.Sprint(all-got.Requests, " further requests were not tried")}) {
		t.Errorf("one unit of work: got %d requests, %d results, %q", got.Requests, len(got.Flips), got.Untried)
	}
	if got := flipWorld(t, debug.Config{FlipTime: 1})(form()); got.Requests > 0 || !slices.ContainsFunc(got.Untried, func(s string) bool { return strings.HasPrefix(s, "the time limit of 1ns was reached: ") }) {
		t.Errorf("no time: got %d requests, %q", got.Requests, got.Untried)
	}
}

// TestDebugWhatIfOrder checks that the same proxies of many are tried each time.
func TestDebugWhatIfOrder(t *testing.T) {
	t.Parallel()
	var objects debugtest.Objects
	var s *Server
	s, objects = benchMesh(t, 3, 300, debug.Config{
		FlipTime: time.Hour, FlipWork: 3000, Preview: func() debug.Generator { return generate.New(generate.Config{}) },
		Propose: func(prev *snapshot.Mesh, p debug.Proposal) debug.Outcome {
			return debug.Outcome{Mesh: objects.Changed(p.Objects).Mesh(prev)}
		},
	})
	form := url.Values{"namespace": {"default"}, "objects": {`{"apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy", "metadata": {"name": "a"}, "spec": {"action": "DENY", "rules": [{"to": [{"operation": {"paths": ["/a", "/b"]}}]}]}}`}}
	var first []string
	for range 3 {
		_, body := postDebug(s, "whatif", form)
		var answer report.WhatIf
		if err := json.Unmarshal([]byte(body), &answer); err != nil {
			t.Fatal(err)
		}
		got := append(flipTexts(answer), answer.Untried...)
		for _, x := range answer.Flips {
			got = append(got, x.Proxy)
		}
		if first == nil {
			first = got
		}
		if !slices.Equal(got, first) || len(answer.Untried) < 2 || answer.Requests == 0 || answer.Requests > 3000 {
			t.Errorf("%d requests; other results (-first +now): %.2000s", answer.Requests, cmp.Diff(first, got))
		}
	}
}

// TestDebugWhatIfGateway checks requests to a gateway: the names of its TLS servers, routes by claims, and
// TLS that it passes through.
func TestDebugWhatIfGateway(t *testing.T) {
	t.Parallel()
	h := startDebug(t, true)
	server := func(number uint32, protocol, host string, mode networkingv1alpha3.ServerTLSSettings_TLSmode) *networkingv1alpha3.Server {
		s := &networkingv1alpha3.Server{Port: &networkingv1alpha3.Port{Number: number, Name: strings.ToLower(protocol) + host[:1], Protocol: protocol}, Hosts: []string{host}}
		if protocol != "HTTP" {
			s.Tls = &networkingv1alpha3.ServerTLSSettings{Mode: mode, CredentialName: "shop"}
		}
		return s
	}
	objects := append(debugtest.Shop()[:6], debugtest.Stored(model.Gateway, "default", "front", &networkingv1alpha3.Gateway{Servers: []*networkingv1alpha3.Server{
		server(8081, "HTTP", "*.example.com", 0), server(8443, "HTTPS", "a.example.com", networkingv1alpha3.ServerTLSSettings_SIMPLE),
		server(8443, "HTTPS", "b.example.com", networkingv1alpha3.ServerTLSSettings_SIMPLE), server(9443, "TLS", "c.example.com", networkingv1alpha3.ServerTLSSettings_PASSTHROUGH),
	}}))
	settings := meshconfig.Default()
	settings.ExtensionProviders = append(settings.ExtensionProviders, &meshv1alpha1.MeshConfig_ExtensionProvider{
		Name: "guard", Provider: &meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyExtAuthzGrpc{
			EnvoyExtAuthzGrpc: &meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationGrpcProvider{Service: "web.default.svc.cluster.local", Port: 80},
		},
	})
	mesh := func(objects debugtest.Objects, prev *snapshot.Mesh) *snapshot.Mesh {
		return snapshot.Build(prev, snapshot.Input{Mesh: settings, List: func(k model.Kind) []*model.Config { return objects.List(k, "") }, Get: objects.Get}, model.Change{All: true})
	}
	h.server.Debug(debug.Config{
		Objects: objects, FlipTime: time.Hour, Preview: func() debug.Generator { return generate.New(generate.Config{}) },
		Propose: func(prev *snapshot.Mesh, p debug.Proposal) debug.Outcome {
			return debug.Outcome{Mesh: mesh(objects.Changed(p.Objects), prev)}
		},
	})
	h.server.Push(mesh(objects, nil), model.Change{All: true})
	const both = " from none+spiffe://cluster.local/ns/default/sa/shop"
	h.joinAs(t, "router~127.1.0.3~front-1.default~default.svc.cluster.local", "default", "NONE")
	route := func(spec string) string {
		return `{"apiVersion": "networking.istio.io/v1", "kind": "VirtualService", "metadata": {"name": "front", "namespace": "default"}, "spec": {"hosts": ["a.example.com", "c.example.com"], "gateways": ["front"], ` + spec + `}}`
	}
	for name, c := range map[string]struct {
		object string
		want   []string
	}{
		"authorizer": {`{"apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy", "metadata": {"name": "a", "namespace": "default"}, "spec": {"action": "CUSTOM", "provider": {"name": "guard"}, "rules": [{"to": [{"operation": {"paths": ["/admin"], "ports": ["8081"]}}]}]}}`, []string{
			"GET front-1.default:8081/admin allowed > allowed if guard allows it " + both,
		}},
		"policy": {`{"apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy", "metadata": {"name": "a", "namespace": "default"}, "spec": {"action": "DENY", "rules": [{"to": [{"operation": {"hosts": ["b.example.com"]}}]}]}}`, []string{
			"!GET b.example.com:8081/ allowed > denied rule a[0]" + both, "!GET b.example.com:8443/ allowed > denied rule a[0]" + both,
		}},
		"claims": {route(`"http": [{"match": [{"headers": {"@request.auth.claims.group": {"exact": "admin"}}}], "route": [{"destination": {"host": "web"}}]}, {"match": [{"withoutHeaders": {"@request.auth.claims.group": {"exact": "guest"}}}], "directResponse": {"status": 201}}, {"directResponse": {"status": 202}}]`), []string{
			"GET a.example.com/ status 404 > status 201 ",
			"GET a.example.com/ status 404 > outbound|80||web.default.svc.cluster.local  with a token with group=admin",
			"GET a.example.com/ status 404 > status 202  with a token with group=guest",
			"GET c.example.com/ status 404 > status 201 ",
			"GET c.example.com/ status 404 > outbound|80||web.default.svc.cluster.local  with a token with group=admin",
			"GET c.example.com/ status 404 > status 202  with a token with group=guest",
			"GET a.example.com/ status 404 > status 201 ", // over TLS
			"GET a.example.com/ status 404 > outbound|80||web.default.svc.cluster.local  with a token with group=admin",
			"GET a.example.com/ status 404 > status 202  with a token with group=guest",
		}},
		"TLS": {route(`"tls": [{"match": [{"port": 9443, "sniHosts": ["c.example.com"]}], "route": [{"destination": {"host": "web"}}]}]`), []string{
			" c.example.com:9443 denied > allowed connection" + both,
			" c.example.com:9443 no listener of the proxy accepts it > outbound|80||web.default.svc.cluster.local  with SNI c.example.com",
		}},
	} {
		_, body := postDebug(h.server, "whatif", url.Values{"objects": {c.object}})
		var answer report.WhatIf
		if err := json.Unmarshal([]byte(body), &answer); err != nil {
			t.Fatalf("%s: %v: %s", name, err, body)
		}
		if diff := cmp.Diff(c.want, flipTexts(answer)); diff != "" || len(answer.Untried) > 0 {
			t.Errorf("%s: %d requests, untried %q (-want +got):\n%s", name, answer.Requests, answer.Untried, diff)
		}
	}
}
