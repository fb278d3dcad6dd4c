// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"bufio"
	"net"
	"net/http"
	"testing"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// TestEnvoyDeniedBy checks that the responses to denied requests name the rule, if a proxy says so, and
// only then.
func TestEnvoyDeniedBy(t *testing.T) {
	t.Parallel()
	const address, header = "127.77.58.5", "X-Outrigger-Denied-By"
	policies := documents(
		policy("watch", `{action: AUDIT, rules: [{}]}`),
		policy("deny", `{action: DENY, rules: [{to: [{operation: {paths: [/none], ports: ["PORT_HTTP"]}}]}, {to: [{operation: {paths: [/no], ports: ["PORT_HTTP"]}}]}]}`),
		policy("allow", `{rules: [{to: [{operation: {paths: [/yes, /no]}}]}]}`),
		policy("other.one", `{rules: [{to: [{operation: {methods: [PUT]}}]}]}`),
		custom("missing", "/ask"),
	)
	v := verdict{name: "denied", policies: "# problem: no extension provider\n" + policies}
	var proxies []guardedProxy
	for _, role := range roles {
		for _, settings := range []*model.ProxySettings{nil, model.ProxySettings{DeniedBy: true}.Keyed()} {
			p := evasionProxy(address, role, "BASE", v)
			p.proxy.Settings = settings
			proxies = append(proxies, p)
		}
	}
	c := newCourtOf(t, address, proxies)
	for i, p := range proxies {
		for path, want := range map[string]string{
			"/yes": "", "/no": "default/deny[1]", "/other": "none of default/allow[0], default/other.one[0]", "/ask": "default/missing[0]",
		} {
			if p.proxy.Settings == nil {
				want = ""
			}
			conn, err := net.Dial("tcp", net.JoinHostPort(address, c.ports[i]["HTTP"]))
			if err != nil {
				t.Fatal(err)
			}
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://app"+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set(header, "forged")
			if err := req.Write(conn); err != nil {
				t.Fatal(err)
			}
			resp, err := http.ReadResponse(bufio.NewReader(conn), req)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			_ = conn.Close()
			if got := resp.Header.Get(header); got != want {
				t.Errorf("%s, %+v, %s: got status %d and %q, want %q", p.proxy.Role, p.proxy.Settings, path, resp.StatusCode, got, want)
			}
		}
	}
}
