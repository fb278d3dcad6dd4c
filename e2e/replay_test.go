// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package e2e

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// replayed are the policies that are tried, and then applied.
const replayed = `
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: catalog, namespace: default}
spec:
  selector: {matchLabels: {app: catalog}}
  rules:
  - from: [{source: {serviceAccounts: [frontend]}}]
    to: [{operation: {paths: [/]}}]
`

// TestPolicyReplay records requests to the shop, replays them with proposed policies, and compares
// the result with the decisions once the policies are applied.
func TestPolicyReplay(t *testing.T) {
	s := newShop(t)
	log := filepath.Join(s.dir, "access.log")
	s.edit("mesh.yaml", "config: config\n", `mesh:
  accessLogFile: `+log+`
  accessLogEncoding: JSON
  accessLogFormat: |
    {"method": "%REQ(:METHOD)%", "path": "%REQ(:PATH)%", "authority": "%REQ(:AUTHORITY)%",
     "upstream_cluster": "%UPSTREAM_CLUSTER%", "requested_server_name": "%REQUESTED_SERVER_NAME%",
     "downstream_local_address": "%DOWNSTREAM_LOCAL_ADDRESS%",
     "downstream_remote_address": "%DOWNSTREAM_DIRECT_REMOTE_ADDRESS%",
     "downstream_peer_uri_san": "%DOWNSTREAM_PEER_URI_SAN%"}
config: config
`)
	s.start()
	s.waitFor("Ctrl-C ends it", 2*time.Minute)
	send := func(caller, path string, want int) {
		t.Helper()
		client := throughProxy(t, caller)
		eventually(t, 2*time.Minute, func() string {
			code, body, _, err := get(t.Context(), client, "http://catalog:8080"+path, nil)
			if err == nil && code == want {
				return ""
			}
			return body
		})
	}
	send(frontend, "/", http.StatusOK) // until everything is ready
	send(orders, "/", http.StatusOK)
	send(frontend, "/?recorded=1", http.StatusOK)
	send(frontend, "/?recorded=2", http.StatusOK)
	send(orders, "/?recorded=3", http.StatusOK)
	records := filepath.Join(t.TempDir(), "records.log")
	eventually(t, 2*time.Minute, func() string { // Envoy writes the log after a while
		text, err := os.ReadFile(log)
		if err != nil {
			return err.Error()
		}
		lines := map[string]string{} // a request that was repeated has several
		for line := range strings.Lines(string(text)) {
			if _, number, ok := strings.Cut(line, "recorded="); ok && strings.HasSuffix(line, "\n") {
				lines[number[:1]+strconv.FormatBool(strings.Contains(line, "inbound|"))] = line
			}
		}
		if len(lines) == 6 { // by the caller's Envoy and by that of the catalog
			err = os.WriteFile(records, []byte(strings.Join(slices.Collect(maps.Values(lines)), "")), 0o600)
			if err != nil {
				return err.Error()
			}
			return ""
		}
		time.Sleep(20 * time.Millisecond)
		return "not all requests are in the log: " + string(text)
	})
	proposed := filepath.Join(t.TempDir(), "proposed.yaml")
	if err := os.WriteFile(proposed, []byte(replayed), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := s.tool("policy", "replay", "--to", "catalog", "-f", proposed, records)
	for _, want := range []string{
		"3 requests to catalog-v", "1 decision changes", "Now denied: 1 request\n", "denied   as no rule that allows requests matches",
		"such as  GET /?recorded=3, host catalog:8080", "from     spiffe://cluster.local/ns/default/sa/orders", "3 records are skipped",
	} {
		if err == nil || !strings.Contains(out, want) {
			t.Errorf("without %q (%v):\n%s", want, err, out)
		}
	}
	s.whatIf(proposed)
	s.configurations()
	s.replacedSidecar()
	send(orders, "/", http.StatusOK)
	s.write("catalog-policy.yaml", replayed)
	send(orders, "/", http.StatusForbidden)
	send(frontend, "/", http.StatusOK)
	send(frontend, "/other", http.StatusForbidden)
	if out, err := s.tool("policy", "replay", "--to", "catalog", "-f", proposed, records); err != nil || !strings.Contains(out, "0 decisions change") {
		t.Errorf("the policy is applied, and decisions change: %v\n%s", err, out)
	}
}

// whatIf asks what policies would do, and what an EnvoyFilter would that only Envoy finds wrong.
func (s *shop) whatIf(policies string) {
	s.t.Helper()
	out, err := s.tool("what-if", "-f", policies, "--envoy", envoyBinary(s.t))
	if err == nil {
		s.t.Errorf("requests would be denied, and the exit code is 0:\n%s", out)
	}
	wantAll(s.t, "what-if", out, []string{
		"Now denied: GET catalog.default.svc.cluster.local:",
		"authorizationpolicy/catalog.default created", "would receive other configuration", "catalog-v", "would close: ", "Envoy accepts the configuration of 2 proxies",
	})
	lua := filepath.Join(s.t.TempDir(), "lua.yaml")
	if err := os.WriteFile(lua, []byte(`
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: lua, namespace: default}
spec:
  workloadSelector: {labels: {app: orders}}
  configPatches:
  - applyTo: HTTP_FILTER
    match: {context: SIDECAR_INBOUND, listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager}}}}
    patch:
      operation: INSERT_FIRST
      value:
        name: lua
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua
          default_source_code: {inline_string: "function envoy_on_request("}
`), 0o600); err != nil {
		s.t.Fatal(err)
	}
	if out, err = s.tool("what-if", "-f", lua, "--envoy", envoyBinary(s.t)); err == nil {
		s.t.Errorf("the code of a filter is wrong, and nothing is said:\n%s", out)
	}
	wantAll(s.t, "what-if", out, []string{"envoyfilter/lua.default created", "1 proxy of ", "ENVOY REFUSES the configuration of 1 proxy such as orders.default: script load error: script:1: "})
}

// replacedSidecar writes a Sidecar with the name of a workload, which replaces the one of outrigger up.
func (s *shop) replacedSidecar() {
	s.t.Helper()
	const object = "apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: orders, namespace: default}\n" +
		"spec: {egress: [{hosts: [./catalog.default.svc.cluster.local]}], "
	s.write("sidecar.yaml", object+"workloadSelector: {labels: {app: orders}}}\n")
	s.waitFor("Sidecar default/orders: ", 2*time.Minute)
	_, needs, _ := strings.Cut(s.out.String(), " replaces it; it needs {")
	needs, _, ok := strings.Cut(needs, "} for the requests to the workload")
	if !ok {
		s.t.Errorf("the output does not say what the Sidecar needs:\n%s", s.out)
	}
	s.write("sidecar.yaml", object+needs+"}\n")
	eventually(s.t, 2*time.Minute, func() string {
		out, err := s.tool("explain", "sidecar/orders")
		if err == nil && strings.Contains(out, "sidecar.yaml:1") && strings.Contains(out, "1 of 1 proxy has it in force") {
			if out, err = s.tool("proxy", "listeners", "orders"); err == nil && strings.Contains(out, "inbound|8080") {
				return ""
			}
		}
		time.Sleep(20 * time.Millisecond)
		return out
	})
	if out, err := s.tool("analyze", "--mesh", filepath.Join(s.dir, "mesh.yaml")); err != nil {
		s.t.Errorf("analyze finds an error: %s", out)
	}
}

// configurations prints what proxies were given, and compares it with what their Envoys have.
func (s *shop) configurations() {
	s.t.Helper()
	for want, args := range map[string][]string{
		"catalog.default.svc.cluster.local 8080 v1 outbound EDS": {"clusters", "frontend", "-o", "wide"},
		catalogV1 + " 8080 ALL Cluster: inbound|8080||":          {"listeners", "catalog-v1"},
		catalogV1 + ":8080 HEALTHY OK outbound|8080|v1|catalog":  {"endpoints", "frontend", "--live", "--status", "healthy", "-o", "wide"},
		"No clusters.":                  {"clusters", "frontend", "--fqdn", "none"},
		"default Cert Chain ACTIVE":     {"secrets", "frontend"},
		"id: sidecar~" + frontend + "~": {"bootstrap", "frontend"},
		"rbac warning":                  {"log", "frontend", "--level", "warning"},
		"xdsproxy debug":                {"log", "frontend", "--agent", "--level", "xdsproxy=debug"},
		"xdsproxy warn":                 {"log", "catalog-v1", "--agent", "--level", "warn"},
	} {
		out, err := s.tool(append([]string{"proxy"}, args...)...)
		if err != nil || !strings.Contains(strings.Join(strings.Fields(out), " "), want) {
			s.t.Errorf("%v without %q: %v\n%s", args, want, err, out)
		}
	}
	for _, proxy := range []string{"frontend", "catalog-v1"} {
		eventually(s.t, 2*time.Minute, func() string { // Envoy may still take an update
			out, err := s.tool("proxy", "all", proxy, "--diff")
			if err == nil && strings.Contains(out, "No differences in ") && !strings.Contains(out, "left out") {
				return ""
			}
			time.Sleep(20 * time.Millisecond)
			return out
		})
	}
	if out, err := s.tool("status", "frontend"); err != nil || !strings.Contains(out, " left, until ") || !strings.Contains(out, "acknowledged") {
		s.t.Errorf("status frontend: %v\n%s", err, out)
	}
	report := filepath.Join(s.t.TempDir(), "report.tar.gz")
	out, err := s.tool("bug-report", "--file", report)
	if err != nil {
		s.t.Error(err)
	}
	wantAll(s.t, "bug-report", out, []string{"/log/control.log\n", "/log/frontend-agent.log\n", "/proxies/frontend.default.json\n", "collected  proxies/frontend.default: 11 files\n"})
	out, err = s.tool("proxy", "listeners", "frontend", "--admin", catalogV1+":15000", "--diff")
	if err == nil || !strings.Contains(out, frontend+"_8080") || !strings.Contains(out, "only in Envoy") {
		s.t.Errorf("two proxies have the same listeners: %v\n%s", err, out)
	}
}

// TestPolicyRecord records requests to the shop, and finds the one that proposed policies change in
// a replay.
func TestPolicyRecord(t *testing.T) {
	s := newShop(t)
	s.setenv("outrigger-agent", "OUTRIGGER_RECORD_HEADERS", "x-team")
	s.start()
	s.waitFor("Ctrl-C ends it", 2*time.Minute)
	send := func(caller, method, path string) {
		t.Helper()
		client := throughProxy(t, caller)
		eventually(t, 2*time.Minute, func() string {
			req, err := http.NewRequestWithContext(t.Context(), method, "http://catalog:8080"+path, strings.NewReader("a secret body"))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("X-Team", "red")
			req.Header.Set("Authorization", "Bearer a-secret-token")
			resp, err := client.Do(req)
			if err != nil {
				return err.Error()
			}
			_ = resp.Body.Close()
			if resp.StatusCode >= http.StatusInternalServerError {
				return resp.Status
			}
			return ""
		})
	}
	send(frontend, http.MethodGet, "/") // until everything is ready
	send(orders, http.MethodGet, "/")
	file, said, text := s.record("catalog", func() {
		send(frontend, "PROPFIND", "/?token=a-secret-query")
		send(orders, http.MethodGet, "/orders")
	}, "/orders", "PROPFIND")
	info, err := os.Stat(file)
	if err != nil || info.Mode() != 0o600 || strings.Contains(text, "secret") || !strings.Contains(text, `"request_headers":{"x-team":"red"}`) ||
		!strings.Contains(said, strconv.Itoa(strings.Count(text, "\n"))+" requests") {
		t.Errorf("%v, mode %s, %s:\n%s", err, info.Mode(), said, text)
	}
	send(orders, http.MethodGet, "/later")
	if again, err := os.ReadFile(file); err != nil || string(again) != text {
		t.Errorf("requests are recorded after the end: %v\n%s", err, again)
	}
	proposed := filepath.Join(t.TempDir(), "proposed.yaml")
	if err := os.WriteFile(proposed, []byte(replayed), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := s.tool("policy", "replay", "--to", "catalog", "-f", proposed, "--envoy", envoyBinary(t), file)
	for _, want := range []string{
		strconv.Itoa(strings.Count(text, "\n")) + " requests to catalog-v", "such as  GET /orders, host catalog:8080",
		"Now denied: " + strconv.Itoa(strings.Count(text, "sa/orders")) + " request", "spiffe://cluster.local/ns/default/sa/orders", "Envoy decides the same about ",
	} {
		if err == nil || !strings.Contains(out, want) {
			t.Errorf("without %q (%v):\n%s", want, err, out)
		}
	}
}

// TestPolicyRecordTokens records requests with tokens, and finds those that proposed policies change in
// a replay. Envoy agrees.
func TestPolicyRecordTokens(t *testing.T) {
	s := newShop(t)
	key := newTokenKey(t, "1")
	s.setenv("outrigger-agent", "OUTRIGGER_RECORD_CLAIMS", "sub")
	s.write("tokens.yaml", fmt.Sprintf(`
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: users, namespace: default}
spec:
  selector: {matchLabels: {app: catalog}}
  jwtRules: [{issuer: users, jwks: %q}]
`, keySetOf(t, []tokenKey{key})))
	s.start()
	s.waitFor("Ctrl-C ends it", 2*time.Minute)
	client := throughProxy(t, frontend)
	send := func(path string, header http.Header, want int) {
		t.Helper()
		eventually(t, 2*time.Minute, func() string {
			code, body, _, err := get(t.Context(), client, "http://catalog:8080"+path, header)
			if err != nil || code != want {
				return fmt.Sprintf("got %d, %v: %.200s; want %d", code, err, body, want)
			}
			return ""
		})
	}
	all := func() {
		t.Helper()
		send("/", nil, http.StatusOK)
		send("/token", key.header, http.StatusNotFound)
		send("/invalid", http.Header{"Authorization": {"Bearer invalid"}}, http.StatusUnauthorized)
	}
	all() // until everything is ready
	out := s.replays("catalog", `
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: users, namespace: default}
spec:
  selector: {matchLabels: {app: catalog}}
  action: DENY
  rules: [{from: [{source: {requestPrincipals: [users/ann]}}]}]
`, all, `"path":"/token"`, `"path":"/invalid"`, `"request_claims":{"iss":"users","sub":"ann"}`, `"request_claims":null`, `"response_code_details":"jwt_authn_access_denied"`)
	wantAll(t, "replay", out, []string{"such as  GET /token, host catalog:8080", "Now denied: ", "not sent to Envoy", "Envoy decides the same about "})
	if strings.Contains(out, "not contain the claims") {
		t.Errorf("claims are missing:\n%s", out)
	}
}

// record records what a function sends until the records contain texts. It returns the file, what the
// tool printed, and the records.
func (s *shop) record(to string, send func(), complete ...string) (file, said, text string) {
	s.t.Helper()
	dir := s.t.TempDir()
	for length := 4 * time.Second; ; length *= 2 { // until it is long enough for this machine
		file = filepath.Join(dir, "requests-"+length.String())
		done := make(chan error, 1)
		go func() {
			var err error
			said, err = s.tool("policy", "record", "--to", to, "--for", length.String(), "--file", file)
			done <- err
		}()
		var err error
		for ended := false; !ended; {
			select {
			case err = <-done:
				ended = true
			default:
				send()
				time.Sleep(20 * time.Millisecond) // the programs need the machine, too
			}
		}
		raw, readErr := os.ReadFile(file)
		if err != nil || readErr != nil || length > time.Minute {
			s.t.Fatalf("%v, %v: %s\n%s", err, readErr, said, raw)
		}
		if !slices.ContainsFunc(complete, func(text string) bool { return !strings.Contains(string(raw), text) }) {
			return file, said, string(raw)
		}
	}
}

// replays records like record, and returns the output of a replay with proposed policies, which must
// change a decision.
func (s *shop) replays(to, policies string, send func(), complete ...string) string {
	s.t.Helper()
	proposed := filepath.Join(s.t.TempDir(), "proposed.yaml")
	if err := os.WriteFile(proposed, []byte(policies), 0o600); err != nil {
		s.t.Fatal(err)
	}
	file, _, _ := s.record(to, send, complete...)
	out, err := s.tool("policy", "replay", "--to", to, "-f", proposed, "--envoy", envoyBinary(s.t), file)
	if err == nil {
		s.t.Errorf("no decision changes:\n%s", out)
	}
	return out
}
