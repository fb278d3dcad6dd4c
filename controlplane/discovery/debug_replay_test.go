// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/controlplane/discovery/debug"
	"github.com/outrigger-mesh/outrigger/controlplane/generate"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

// TestDebugReplay checks what would change with other policies.
func TestDebugReplay(t *testing.T) {
	t.Parallel()
	h := startDebug(t, true)
	objects := guardedCart()
	h.server.Debug(debug.Config{Replica: "one", Objects: objects, Preview: func() debug.Generator { return generate.New(generate.Config{}) }})
	before := objects.Mesh(nil)
	h.server.Push(before, model.Change{All: true})
	h.join(t, "cart-1", "default")
	const inbound = `"downstream_local_address":"127.1.0.2:8080","downstream_remote_address":"127.1.0.7:4000","upstream_cluster":"inbound|8080||","authority":"cart"`
	const web = `"downstream_peer_uri_san":"spiffe://cluster.local/ns/shop/sa/web"`
	records := strings.Join([]string{
		`{"method":"GET","path":"/",` + web + `,` + inbound + `}`,                                                                     // both allow it
		`{"method":"HEAD","path":"/",` + web + `,` + inbound + `}`,                                                                    // denied, as no rule matches
		`{"method":"HEAD","path":"/twice",` + web + `,` + inbound + `}`,                                                               // the same
		`{"method":"GET","path":"/secret",` + web + `,` + inbound + `}`,                                                               // denied by a rule
		`{"method":"POST","path":"/","downstream_peer_uri_san":null,"request_headers":{"X-Team":"blue","none":null},` + inbound + `}`, // allowed
		`{"method":"GET","path":"/admin","downstream_peer_uri_san":null,` + inbound + `}`,                                             // both deny it
		`{"method":"GET","path":"/",` + inbound + `}`,                                                                                 // from an unknown client
		`{"method":"GET","path":"/","upstream_cluster":"outbound|80||catalog",` + web + `}`,
		`{"method":"GET","path":"/"}`, `no record`, ``,
		`{"method":null,"path":"-","downstream_peer_uri_san":null,` + inbound + `}`, // no request was read from the connection
	}, "\n")
	const policies = `
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: readers, namespace: default}
spec:
  rules:
  - {from: [{source: {serviceAccounts: [shop/web]}}], to: [{operation: {methods: [GET]}}]}
  - {when: [{key: "request.headers[x-team]", values: [blue]}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: secret, namespace: default}
spec:
  action: DENY
  rules: [{to: [{operation: {paths: [/secret], ports: ["8080"]}}]}]
`
	fields := url.Values{"to": {"cart"}, "policies": {policies}, "source": {"proposed.yaml"}, "records": {records}}
	code, body := postDebug(h.server, "replay", fields)
	var got report.Replay
	if err := json.Unmarshal([]byte(body), &got); code != http.StatusOK || err != nil {
		t.Fatalf("got %d %s", code, body)
	}
	if got.Proxy != "cart-1.default" || got.Decided != 7 || got.Other != 1 || got.Unread != 3 || got.Unnamed != 1 || len(got.Flips) != 3 {
		t.Errorf("got %+v", got)
	}
	for _, want := range []string{
		`{"allowed":false,"decided_by":"no-rule","count":2,"example":{"identity":"spiffe://cluster.local/ns/shop/sa/web","address":"127.1.0.7","port":8080,"method":"HEAD","host":"cart","path":"/"}}`,
		`{"allowed":false,"decided_by":"rule","rule":{"kind":"AuthorizationPolicy","namespace":"default","name":"secret","index":0,"source":"proposed.yaml:10"},"count":1,`,
		`{"allowed":true,"decided_by":"no-rule","count":1,"example":{"address":"127.1.0.7","port":8080,"method":"POST",`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("%s lacks %s", body, want)
		}
	}
	// The caller does not wait for the response. Whether the request is served is random.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 {
		r := httptest.NewRequestWithContext(ctx, http.MethodPost, "http://127.0.0.1/debug/replay", strings.NewReader(fields.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.RemoteAddr = "127.77.51.3:1"
		w := httptest.NewRecorder()
		if h.server.DebugHandler().ServeHTTP(w, r); w.Code != http.StatusServiceUnavailable {
			t.Fatalf("a request that has ended: got %d %s", w.Code, w.Body)
		}
	}
	// Nothing has changed for proxies.
	var now report.Decision
	debugGet(t, h.server, "request?from=shop/web&to=cart&port=80&method=HEAD", &now)
	if mesh, _ := (source{h.server}).Snapshot(); !now.Allowed || mesh != before {
		t.Errorf("the policies are in force: %+v", now)
	}
	for text, want := range map[string]string{
		"": "no AuthorizationPolicies are proposed",
		"apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: a, namespace: b}\nspec: {egress: [{hosts: [./*]}]}": "only AuthorizationPolicies can be replayed",
		strings.Replace(policies, "methods", "verbs", 1): "verbs",
	} {
		if code, body := postDebug(h.server, "replay", url.Values{"to": {"cart"}, "policies": {text}}); code != http.StatusBadRequest || !strings.Contains(body, want) {
			t.Errorf("%s: got %d %s, want %s", text, code, body, want)
		}
	}
	if code, _ := postDebug(h.server, "replay", url.Values{"records": {strings.Repeat("x", 9<<20)}}); code != http.StatusBadRequest {
		t.Errorf("a form that is too large: %d", code)
	}
}

// TestDebugReplayTokens checks what would change for requests with tokens and for connections.
func TestDebugReplayTokens(t *testing.T) {
	t.Parallel()
	h := startDebug(t, true)
	objects := guardedCart()
	h.server.Debug(debug.Config{Replica: "one", Objects: objects, Preview: func() debug.Generator { return generate.New(generate.Config{}) }})
	h.server.Push(objects.Mesh(nil), model.Change{All: true})
	h.join(t, "cart-1", "default")
	const (
		web        = `"downstream_peer_uri_san":"spiffe://cluster.local/ns/shop/sa/web",`
		request    = web + `"method":"GET","path":"/","authority":"cart","downstream_local_address":"127.1.0.2:8080"`
		connection = web + `"method":null,"path":null,"downstream_local_address":"127.1.0.2:9090"`
	)
	records := strings.Join([]string{
		`{` + request + `,"request_claims":{"iss":"https://issuer.example","aud":"shop","sub":"ann","groups":["staff"]}}`,
		`{` + request + `,"request_claims":{"iss":"https://issuer.example","sub":"bob","groups":"staff"}}`,
		`{` + request + `,"request_claims":{"iss":"https://other.example","sub":"ann"}}`, // no token of it is accepted
		`{` + request + `,"request_claims":null}`,
		`{` + request + `}`, // unknown
		`{` + request + `,"response_code_details":"jwt_authn_access_denied{Jwt_is_expired}"}`,
		`{` + request + `,"request_claims":7}`,
		`{` + connection + `}`,
		`{` + strings.Replace(connection, "web", "other", 1) + `}`,
		`{` + request + `,"request_claims":{"iss":"https://issuer.example"},"request_claims_omitted":["email","sub"]}`,
		`{` + request + `,"request_claims":{"iss":"https://issuer.example"},"request_claims_omitted":["email"]}`,
		`{"requested_server_name":"db.example",` + strings.Replace(connection, `"spiffe://cluster.local/ns/shop/sa/web"`, "null", 1) + `}`, // the application speaks TLS
	}, "\n")
	const policies = `
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: staff, namespace: default}
spec:
  action: DENY
  rules: [{from: [{source: {requestPrincipals: [https://issuer.example/ann]}}], to: [{operation: {ports: ["8080"]}}], when: [{key: "request.auth.claims[groups]", values: [staff]}]}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: clients, namespace: default}
spec:
  rules: [{from: [{source: {serviceAccounts: [shop/web]}}], to: [{operation: {ports: ["9090"]}}]}]
`
	code, body := postDebug(h.server, "replay", url.Values{"to": {"cart"}, "policies": {policies}, "records": {records}, "tried": {"true"}})
	var got report.Replay
	if err := json.Unmarshal([]byte(body), &got); code != http.StatusOK || err != nil {
		t.Fatalf("got %d %s", code, body)
	}
	if got.Decided != 11 || got.Connections != 3 || got.Unread != 1 || got.Unclaimed != 2 || len(got.Flips) != 2 {
		t.Errorf("got %s", body)
	}
	wantDecided := map[int][2]bool{0: {true, false}, 1: {true, true}, 2: {false, false}, 3: {true, true}, 4: {true, true}, 5: {false, false}, 7: {false, true}, 8: {false, false}, 9: {true, true}, 10: {true, true}, 11: {false, false}}
	for _, tried := range got.Tried {
		if want := wantDecided[tried.Line]; tried.Now != want[0] || tried.Then != want[1] || tried.HTTP == slices.Contains([]int{7, 8, 11}, tried.Line) {
			t.Errorf("record %d: got %+v, want %v", tried.Line, tried, want)
		}
		hasToken := slices.Contains([]int{0, 1, 9, 10}, tried.Line)
		if is := tried.Token != nil && *tried.Token == (report.Token{Header: "Authorization", Prefix: "Bearer "}); is != hasToken {
			t.Errorf("record %d: %+v", tried.Line, tried)
		}
		if tried.Opaque != (tried.Line == 11) {
			t.Errorf("record %d: %+v", tried.Line, tried)
		}
	}
}
