// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/e2e/envoytest"
)

// trialListener is a listener that denies requests to /admin, with x-team: blue, or from
// 10.0.0.0/8, if RULES is not empty.
const trialListener = `{"name": "NAME", "address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}},
 "listener_filters": [{"name": "proxy", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol"}}],
 "filter_chains": [{"filters": [{"name": "http", "typed_config": {
  "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager", "stat_prefix": "http", "normalize_path": true,
  "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "direct_response": {"status": 200}}]}]},
  "http_filters": [RULES{"name": "router", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}]}}]}]}`

const trialRules = `{"name": "rbac", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC", "rules": {"action": "DENY", "policies": {
 "path": {"permissions": [{"url_path": {"path": {"exact": "/admin"}}}], "principals": [{"any": true}]},
 "team": {"permissions": [{"header": {"name": "x-team", "string_match": {"exact": "blue"}}}], "principals": [{"any": true}]},
 "address": {"permissions": [{"any": true}], "principals": [{"source_ip": {"address_prefix": "10.0.0.0", "prefix_len": 8}}]}}}}}, `

// TestReplayEnvoy compares the decisions of a control plane, of which one is wrong, with those of
// the real Envoy.
func TestReplayEnvoy(t *testing.T) {
	t.Parallel()
	var asked []string
	control := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseForm(); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		a := report.Replay{Proxy: "catalog-1.shop"}
		if r.PostForm.Get("listeners") == "true" {
			for name, rules := range map[string]string{"now/in": "", "then/in": trialRules} {
				a.Listeners = append(a.Listeners, json.RawMessage(strings.NewReplacer("NAME", name, "RULES", rules).Replace(trialListener)))
			}
		}
		a.Flips = []report.Flip{{By: "rule", Rule: &report.Rule{Ref: report.Ref{Name: "private"}}, Example: report.Recorded{Method: "GET"}}}
		for i, line := range strings.Split(strings.TrimSpace(r.PostForm.Get("records")), "\n") {
			if line == "" || strings.Contains(line, "outbound|") {
				continue
			}
			asked = append(asked, line)
			tried := report.Tried{Line: i, Listener: "in", Server: "127.0.0.1:8080", HTTP: true, Now: true, Then: true, Flip: -1}
			switch {
			case strings.Contains(line, "wrong"): // whose team is blue
			case strings.Contains(line, "absent"):
				tried.Listener, tried.Now, tried.Then = "", false, false
			case strings.Contains(line, "/admin"), strings.Contains(line, "blue"), strings.Contains(line, "10.0.0."):
				tried.Then, tried.Flip = false, 0
			}
			a.Tried = append(a.Tried, tried)
		}
		_ = json.NewEncoder(w).Encode(a)
	}))
	defer control.Close()
	dir := t.TempDir()
	at := func(name, text string) string {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return filepath.Join(dir, name)
	}
	record := func(method, path, remote, more string) string {
		return `{"method":"` + method + `","path":"` + path + `","authority":"catalog","downstream_local_address":"127.0.0.1:8080","downstream_remote_address":"` +
			remote + `","downstream_peer_uri_san":null` + more + "}\n"
	}
	const near, far = "127.0.0.9:1", "10.0.0.7:1"
	good := strings.Join([]string{
		record("GET", "/", near, `,"request_id":"1"`), record("GET", "/?id=1", "127.0.0.9:2", `,"request_id":"2","user_agent":"a"`), // the same for the rules
		record("GET", "/admin", near, ``), record("GET", "//../admin?x", near, `,"user_agent":"b"`), record("PROPFIND", "/other", far, ``),
		record("POST", "/", near, `,"request_headers":{"x-team":"blue","x-none":null,"x-other":"a"}`), record("POST", "/", near, `,"request_headers":{"x-team":"blue","x-other":"b"}`),
		record("GET", "/absent", near, ``), record("CONNECT", "/", near, ``), record("GET", "/a b", near, ``),
		record("GET", "/", near, `,"upstream_cluster":"outbound|80||catalog"`), "no record\n",
	}, "")
	args := []string{"policy", "replay", "--control", control.URL, "--to", "catalog", "-f", at("policies.yaml", "a policy"), "--envoy", envoytest.Binary(t)}
	out, errs, code := run(t, append(args, at("good.log", good))...)
	for _, want := range []string{
		"10 requests to catalog-1.shop, 5 decisions change", "Now denied: 5 requests", "2 records were not sent to Envoy", "1 record is skipped", "1 line is skipped",
		"Envoy decides the same about 6 different requests",
	} {
		if code != 1 || !strings.Contains(out, want) {
			t.Errorf("got exit code %d, want 1 with %q:\n%s%s", code, want, out, errs)
		}
	}
	if len(asked) != 8 {
		t.Errorf("requests to the control plane: got %d, want 8:\n%s", len(asked), strings.Join(asked, "\n"))
	}
	out, errs, code = run(t, append(args, at("bad.log", record("GET", "/", near, "")+record("GET", "/wrong", near, `,"request_headers":{"x-team":"blue"}`)))...)
	want := "ENVOY DOES NOT AGREE about 1 request. Trust Envoy, and report this:\n  GET /wrong, host catalog: Envoy allowed, then denied; the control plane: allowed, then allowed\n"
	if code != 1 || !strings.Contains(out, want) {
		t.Errorf("got exit code %d, want 1 with %q:\n%s%s", code, want, out, errs)
	}
	args[len(args)-1] = filepath.Join(dir, "none")
	if _, errs, code := run(t, append(args, at("empty.log", ""))...); code != 1 || !strings.Contains(errs, "name its program with --envoy") {
		t.Errorf("without an Envoy: got exit code %d: %s", code, errs)
	}
}

// TestTrialOpaque sends TLS to a port that does not terminate it, and that denies one server name.
func TestTrialOpaque(t *testing.T) {
	t.Parallel()
	const listener = `{"name": "in", "address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}, "listener_filters": [
 {"name": "proxy", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol"}},
 {"name": "tls", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector"}}],
 "filter_chains": [{"filter_chain_match": {"transport_protocol": "tls"}, "filters": [
  {"name": "rbac", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.network.rbac.v3.RBAC", "stat_prefix": "in", "rules": {"action": "DENY", "policies": {
   "r&d": {"permissions": [{"requested_server_name": {"exact": "denied.example"}}], "principals": [{"any": true}]}}}}},
  {"name": "echo", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.network.echo.v3.Echo"}}]}]}`
	trial, err := newTrial(t.Context(), envoytest.Binary(t), []json.RawMessage{json.RawMessage(listener)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := trial.end(); err != nil {
			t.Error(err)
		}
	}()
	for name, want := range map[string]bool{"allowed.example": true, "denied.example": false} {
		requests := []*tried{{bytes: []byte(accepted)}, {bytes: []byte(accepted)}}
		if err := trial.ask(t.Context(), caller{listener: "in", server: "127.0.0.1:8080", sni: name, tls: true, opaque: true, connection: true}, requests); err != nil {
			t.Fatal(err)
		}
		if requests[0].allowed != want || requests[1].allowed != want {
			t.Errorf("%s: got %t and %t, want %t", name, requests[0].allowed, requests[1].allowed, want)
		}
	}
	if !trial.readsClaim("r&d") || trial.readsClaim("other") {
		t.Error("a name with a character that JSON escapes is not found, or another is")
	}
}
