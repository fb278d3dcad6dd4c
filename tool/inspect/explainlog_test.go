// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

// TestExplainLog explains lines of access logs.
func TestExplainLog(t *testing.T) {
	t.Parallel()
	var asked url.Values
	control := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseForm(); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		asked = r.PostForm
		asked.Del("findings")
		_ = json.NewEncoder(w).Encode(report.Decision{Proxy: "catalog-1.shop", Port: 8080, By: "nothing", Allowed: true})
	}))
	defer control.Close()
	file := filepath.Join(t.TempDir(), "access.log")
	const local = `"downstream_local_address":"10.0.0.1:8080","downstream_remote_address":"10.0.0.7:4000"`
	for _, tc := range []struct {
		line, flags string
		want        url.Values
		says        string
	}{
		{
			`{"method":"PUT","path":"/a?b","authority":"catalog","downstream_peer_uri_san":"spiffe://mesh/ns/shop/sa/web","upstream_cluster":"inbound|8080||",` + local +
				`,"request_headers":{"x-team":"red","x-none":null},"x_forwarded_for":"10.0.0.9","user_agent":"-","request_claims":{"sub":"ann"},"response_code":403,"response_flags":"UAEX"}` + "\nmore",
			"--to catalog",
			url.Values{
				"from": {"spiffe://mesh/ns/shop/sa/web"}, "to": {"catalog"}, "method": {"PUT"}, "path": {"/a?b"}, "host": {"catalog"}, "address": {"10.0.0.7"}, "local": {"10.0.0.1:8080"}, "remote": {"10.0.0.7:4000"},
				"header": {"x-forwarded-for=10.0.0.9", "x-team=red"}, "claims": {`{"sub":"ann"}`},
			},
			"logged   status 403, flag UAEX: an authorizer refused it\n",
		},
		{
			`{"method":"GET","path":"/","authority":"catalog:80","upstream_cluster":"outbound|80|v1|catalog.shop.svc.cluster.local",` + local + `,"response_code":0,"response_flags":"UF"}`,
			"--from web.shop --path /other",
			url.Values{"from": {"web.shop"}, "to": {"catalog.shop.svc.cluster.local"}, "port": {"80"}, "method": {"GET"}, "path": {"/other"}, "host": {"catalog:80"}, "local": {"10.0.0.1:8080"}, "remote": {"10.0.0.7:4000"}},
			"logged   no response, flag UF: the connection to the workload failed;",
		},
		{
			`{"method":null,"path":null,"downstream_peer_uri_san":null,` + local + `,"response_code_details":"jwt_authn_access_denied{x}"}`, "--to catalog --port 80",
			url.Values{"from": {"none"}, "to": {"catalog"}, "port": {"80"}, "method": {"GET"}, "path": {"/"}, "address": {"10.0.0.7"}, "refused": {"true"}, "local": {"10.0.0.1:8080"}, "remote": {"10.0.0.7:4000"}},
			"logged   no response\n",
		},
		{`{"method":"GET"}`, "--to catalog", nil, "no downstream_local_address"},
		{`no JSON`, "--to catalog", nil, "it has no time in brackets"},
		{``, "--to catalog", nil, "it has no line"},
		{`{x`, "--to catalog", nil, "it is not JSON"},
		{`[t] "GET / HTTP/1.1" 503 UF`, "--to catalog", nil, "it has 4 parts, and the shortest format has 13"},
		{
			`{` + local + `}`, "--to catalog",
			url.Values{"to": {"catalog"}, "method": {"GET"}, "path": {"/"}, "address": {"10.0.0.7"}, "local": {"10.0.0.1:8080"}, "remote": {"10.0.0.7:4000"}},
			"logged   no response\n",
		},
		{`[t] "GET / HTTP/1.1" 503 UF 0 0 1 - "-" "a b" "-" "catalog:80" "-"`, "", nil, "--from CLIENT --to WORKLOAD"},
		{
			`[t] "GET /a b HTTP/1.0" 503 UF 0 0 1 - "-" "a b" "7f" "catalog:80" "10.0.0.1:80"`, "--from web",
			url.Values{"protocol": {"http/1.0"}, "from": {"web"}, "to": {"catalog"}, "port": {"80"}, "method": {"GET"}, "path": {"/a b"}, "host": {"catalog:80"}, "header": {"user-agent=a b", "x-request-id=7f"}},
			"logged   status 503, flag UF: the connection to the workload failed;",
		},
	} {
		if err := os.WriteFile(file, []byte(tc.line), 0o600); err != nil {
			t.Fatal(err)
		}
		asked = nil
		out, errs, code := run(t, append([]string{"explain", "request", "--log", file, "--control", control.URL}, strings.Fields(tc.flags)...)...)
		if asked.Encode() != tc.want.Encode() || !strings.Contains(out+errs, tc.says) || (code == 0) != (tc.want != nil) {
			t.Errorf("%s\ngot  %v\nwant %v\nexit code %d, want %q:\n%s%s", tc.line, asked, tc.want, code, tc.says, out, errs)
		}
	}
}

// TestTextFormat checks that a line in the text format of the access logs is read.
func TestTextFormat(t *testing.T) {
	t.Parallel()
	line := strings.NewReplacer(
		"%START_TIME%", "2026-01-02T03:04:05.006Z", "%REQ(:METHOD)%", "PUT", "%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%", "/a?b=c d", "%PROTOCOL%", "HTTP/2", "%RESPONSE_CODE%", "503",
		"%RESPONSE_FLAGS%", "UF,URX", "%RESPONSE_CODE_DETAILS%", "details", "%CONNECTION_TERMINATION_DETAILS%", "closed by a peer", "%REQ(X-FORWARDED-FOR)%", "10.0.0.9",
		"%REQ(USER-AGENT)%", "Mozilla/5.0 (X11)", "%REQ(X-REQUEST-ID)%", "7f", "%REQ(:AUTHORITY)%", "web:80", "%UPSTREAM_CLUSTER%", "outbound|80||web",
		"%DOWNSTREAM_LOCAL_ADDRESS%", "[fd00::1]:80", "%DOWNSTREAM_REMOTE_ADDRESS%", "10.0.0.7:4000", "%REQUESTED_SERVER_NAME%", "web.example", "%UPSTREAM_HOST%", "[fd00::2]:8080",
	).Replace(envoyconf.TextFormat)
	got, err := parseLogged([]byte("2026-01-02T03:04:05Z " + line))
	if err != nil {
		t.Fatal(err)
	}
	code := 503.0
	want := &logged{Code: &code, Flags: "UF,URX", Protocol: "HTTP/2", recorded: recorded{
		Method: "PUT", Path: "/a?b=c d", Host: "web:80", Remote: "10.0.0.7:4000", Local: "[fd00::1]:80", SNI: "web.example", For: "10.0.0.9", Agent: "Mozilla/5.0 (X11)", ID: "7f",
		Details: "details", Upstream: "outbound|80||web",
	}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestMistakenLogs explains lines of logs that planted mistakes cause, and finds their causes.
func TestMistakenLogs(t *testing.T) {
	t.Parallel()
	planted := map[string]string{}
	for _, name := range []string{"mistakes.txt", "mistaken-requests.txt"} {
		for _, section := range sectionsOf(t, name) {
			name, rest, _ := strings.Cut(section, " --\n")
			lines := strings.SplitN(rest, "\n", 3)
			if objects := lines[len(lines)-1]; strings.HasPrefix(lines[0], "-") && len(lines) == 3 && objects != "" {
				planted[name] = objects
			} else if !strings.HasPrefix(lines[0], "-") {
				_, planted[name], _ = strings.Cut(rest, "\n")
			}
		}
	}
	const (
		begin  = `[2026-01-02T03:04:05.006Z] "GET `
		second = `{"method":"GET","path":"/","authority":"other","request_id":"0-1"}` + "\n"
	)
	for _, tc := range []struct{ name, line, flags, want string }{
		{ // Istio's text format, by the proxy of the client
			"network: a subset that no DestinationRule has",
			begin + `/ HTTP/1.1" 503 NC cluster_not_found - "-" 0 0 0 - "-" "curl/8" "0-1" "web.shop.svc.cluster.local" "-" - - 240.240.0.1:80 127.77.51.25:41000 - -`, "",
			"responds with status 503~vs/web.shop, a.yaml:1~flag NC: the proxy does not have the cluster",
		},
		{
			"network: plaintext to a service with STRICT",
			begin + `/ HTTP/1.1" 503 UC upstream_reset_before_response_started{connection_termination} - "-" 0 95 1 - "-" "curl/8" "0-1" "web.shop" "127.77.51.22:8080" outbound|80||web.shop.svc.cluster.local 127.77.51.25:41002 240.240.0.1:80 127.77.51.25:41000 - default`, "",
			"Denied~dr/web.shop, a.yaml:6~pa/default.shop, a.yaml:1~flag UC: ",
		},
		{ // by a gateway
			"network: a host that the Gateway does not have",
			begin + `/ HTTP/1.1" 404 NR route_not_found - "-" 0 0 0 - "203.0.113.9" "curl/8" "0-1" "www.shop.example" "-" - - 127.77.51.23:80 203.0.113.9:5000 - -`, "",
			"the gateway responds with status 404~vs/web.shop, a.yaml:6~flag NR",
		},
		{
			"security: a policy of the gateway",
			`{"method":"GET","path":"/admin","authority":"shop.example","upstream_cluster":"outbound|80||web.shop.svc.cluster.local","downstream_local_address":"127.77.51.23:80","downstream_remote_address":"203.0.113.9:5000","requested_server_name":null,"response_code":403,"response_flags":"-"}`, "",
			"Denied with status 403~ingress-1.edge, port 80~edge/admin[0]",
		},
		{ // by the proxy of the workload, which does not log the identity of the client
			"security: the port of a Service in a rule, where that of the workload belongs",
			begin + `/ HTTP/1.1" 403 - rbac_access_denied_matched_policy[none] - "-" 0 19 0 - "-" "curl/8" "0-1" "web.shop" "-" inbound|8080|| - 127.77.51.22:8080 127.77.51.25:41000 outbound_.80_._.web.shop.svc.cluster.local default`, "",
			"Denied with status 403~from spiffe://cluster.local/ns/shop/sa/orders~shop/web[0] (a.yaml:1)~ports: 8080, not 80",
		},
		{
			"security: plaintext to a port with STRICT",
			`{"method":null,"path":null,"downstream_peer_uri_san":null,"downstream_local_address":"127.77.51.22:8080","downstream_remote_address":"10.9.8.7:4000","response_code":0,"response_flags":"NR"}`, "",
			"Denied: the connection is closed~pa/default.shop, a.yaml:1~flag NR",
		},
		{ // Envoy's text format
			"network: a slash at the end of a path",
			begin + `/items/ HTTP/1.1" 404 NR 0 0 0 - "-" "curl/8" "0-1" "web.shop" "-"`, "--from orders-1.shop",
			"responds with status 404~path /items/, not exactly /items",
		},
		{ // outrigger tap -o json
			"network: a fault that was left behind",
			second + `{"request_id":"7f-2","proxy":"orders-1.shop","direction":"outbound","destination":"web.shop.svc.cluster.local:80","method":"GET","authority":"web.shop","path":"/","status":503,"flags":"FI"}`, "--id 7f",
			"abort 100 % with status 503~vs/web.shop, a.yaml:1~flag FI: a fault aborted",
		},
		{
			"security: a policy that denies",
			second + `{"request_id":"7f-2","proxy":"web-1.shop","direction":"inbound","source":"spiffe://cluster.local/ns/shop/sa/orders","method":"GET","authority":"web.shop","path":"/","status":403,"flags":"-","downstream_local_address":"127.77.51.22:8080"}`, "--id 7f-2",
			"Denied with status 403~shop/deny[0]",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := mistakenMesh(t, sectionsOf(t, "mistaken-requests.txt")[0], planted[tc.name])
			out, errs, code := runWith(t, tc.line, append([]string{"explain", "request", "--control", c.http, "--certificates=false", "--log", "-"}, strings.Fields(tc.flags)...)...)
			flat := strings.Join(strings.Fields(out), " ")
			for want := range strings.SplitSeq(tc.want, "~") {
				if !strings.Contains(flat, want) || code != exitFailed {
					t.Errorf("exit code %d, lacks %q:\n%s%s", code, want, out, errs)
				}
			}
		})
	}
}

func FuzzLogged(f *testing.F) {
	f.Add(`[t] "GET /a b HTTP/1.1" 503 UF 0 0 1 - "-" "a b" "7f" "catalog:80" "10.0.0.1:80"`)
	f.Add(envoyconf.TextFormat)
	f.Add(`{"direction":"inbound","downstream_local_address":"x"}`)
	f.Fuzz(func(t *testing.T, line string) {
		l, err := parseLogged([]byte(line))
		if err != nil {
			return
		}
		l.complete(&requestFlags{}, func(string) bool { return false })
		if l.result() == "" {
			t.Error("no result")
		}
	})
}
