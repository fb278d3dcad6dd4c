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
	"strings"
	"testing"

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
				"from": {"spiffe://mesh/ns/shop/sa/web"}, "to": {"catalog"}, "method": {"PUT"}, "path": {"/a?b"}, "host": {"catalog"}, "address": {"10.0.0.7"},
				"header": {"x-forwarded-for=10.0.0.9", "x-team=red"}, "claims": {`{"sub":"ann"}`},
			},
			"logged   status 403, flags UAEX\n",
		},
		{
			`{"method":"GET","path":"/","authority":"catalog:80","upstream_cluster":"outbound|80|v1|catalog.shop.svc.cluster.local",` + local + `,"response_code":0,"response_flags":"UF"}`,
			"--from web.shop --path /other",
			url.Values{"from": {"web.shop"}, "to": {"catalog.shop.svc.cluster.local"}, "port": {"80"}, "method": {"GET"}, "path": {"/other"}, "host": {"catalog:80"}},
			"logged   no response, flags UF\n",
		},
		{
			`{"method":null,"path":null,"downstream_peer_uri_san":null,` + local + `,"response_code_details":"jwt_authn_access_denied{x}"}`, "--to catalog --port 80",
			url.Values{"from": {"none"}, "to": {"catalog"}, "port": {"80"}, "method": {"GET"}, "path": {"/"}, "address": {"10.0.0.7"}, "refused": {"true"}},
			"logged   no response\n",
		},
		{`{"method":"GET"}`, "--to catalog", nil, "no downstream_local_address"},
		{`no JSON`, "--to catalog", nil, "the first line is not JSON"},
		{``, "--to catalog", nil, "no downstream_local_address"},
		{`{` + local + `}`, "--to catalog", nil, "--from CLIENT --to WORKLOAD"},
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
