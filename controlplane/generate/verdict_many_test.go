// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/bootstrap/node"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/e2e/child"
)

// manyRules are rules for requests that no test sends. Envoy evaluates a policy with many rules in
// another way than one with few.
var manyRules = strings.Repeat("{from: [{source: {principals: [cluster.local/ns/none/sa/none]}}], to: [{operation: {methods: [NONE], paths: [/none], ports: [\"PORT_HTTP\"]}}]}, ", 5) +
	strings.Repeat("{to: [{operation: {methods: [NONE], paths: [/none, /nobody*], ports: [\"PORT_HTTP\"]}}]}, ", 4) + "{to: [{operation: {methods: [NONE], paths: ['*/none/{*}'], ports: [\"PORT_HTTP\"]}}]}"

// manyVerdicts returns policies with many rules.
func manyVerdicts() []verdict {
	return []verdict{
		{"many rules that allow", policy("many", `{rules: [
			`+manyRules+`,
			{from: [{source: {principals: [cluster.local/ns/shop/sa/all]}}]},
			{from: [{source: {principals: [cluster.local/ns/shop/sa/web, cluster.local/ns/shop/sa/app]}}], to: [{operation: {methods: [GET, HEAD], paths: [/one, /t.o]}}, {operation: {methods: [PUT]}}]},
			{from: [{source: {principals: [cluster.local/ns/shop/sa/port]}}], to: [{operation: {ports: ["PORT_HTTP"]}}]},
			{from: [{source: {principals: [cluster.local/ns/shop/sa/other]}}], to: [{operation: {ports: ["PORT_TCP"]}}]},
			{from: [{source: {principals: [cluster.local/ns/shop/sa/both]}}], to: [{operation: {ports: ["PORT_TCP"]}}], when: [{key: destination.port, values: ["PORT_HTTP"]}]},
			{from: [{source: {principals: ["cluster.local/ns/shop/sa/prefix-*"]}}], to: [{operation: {paths: ["/one*"], notPaths: [/one/not]}}]},
			{to: [{operation: {methods: [GET], paths: [/open]}}, {operation: {paths: ["/wide/*"]}}]},
			{to: [{operation: {paths: ["/odd?x"]}}]}]}`), `
			200 DELETE /any | as shop/all
			200 GET /one | as shop/web
			200 GET /one?x=y | as shop/web
			200 HEAD /t.o | as shop/app
			200 PUT /else | as shop/app
			403 POST /one | as shop/web
			403 GET /ones | as shop/web
			403 GET /one/ | as shop/web
			403 GET /ONE | as shop/web
			403 GET /two | as shop/web
			403 GET /else | as shop/web
			403 GET /one | as shop/we
			403 GET /one
			403 GET /one | X-Forwarded-Client-Cert: URI=spiffe://cluster.local/ns/shop/sa/web
			200 GET /x | as shop/port
			403 GET /x | as shop/other
			403 GET /x | as shop/both
			200 GET /one/more | as shop/prefix-1
			403 GET /one/not | as shop/prefix-1
			200 GET /open
			200 GET /open?x=1 | as shop/we
			403 PUT /open
			403 GET /open/
			200 PUT /wide/x
			403 GET /odd?x
			403 GET /odd?x | as shop/we
			0 GET / | port tcp | as shop/web
			200 GET / | port tcp | as shop/all
			200 GET / | port tcp | as shop/other
		`},
		{"many rules that deny", policy("many", `{action: DENY, rules: [
			`+manyRules+`,
			{to: [{operation: {paths: [/one, "/two*", "*.key"], ports: ["PORT_HTTP"]}}]},
			{to: [{operation: {paths: ["/users/{*}/posts"], methods: [POST]}}]},
			{from: [{source: {namespaces: [bad]}}], to: [{operation: {paths: ["*"]}}]},
			{from: [{source: {namespaces: [worse]}}], to: [{operation: {ports: ["PORT_HTTP"]}}]}]}`), `
			200 GET /
			200 GET /ones?path=/one
			403 GET /one
			403 GET /one?x
			403 GET /One/
			403 GET /one;x=1?y
			403 GET //one
			403 GET /%6fne
			403 GET /x/..%2fone
			403 GET /two/three
			403 GET /TWO
			200 GET /tw
			403 GET /a/b.KEY
			200 GET /a/b.keys
			403 POST /users/1/posts
			200 GET /users/1/posts
			200 POST /users/1/2/posts
			403 POST /users/1//posts
			403 GET / | as bad/a
			403 GET / | as worse/a
		`},
	}
}

// benchRules is the number of rules of a workload in BenchmarkEnvoyPolicies.
const benchRules = 1000

// BenchmarkEnvoyPolicies measures the CPU time that Envoy needs for a request to a workload with
// many rules, of which none denies the request, or the last one allows it. The reference has the
// same rules in one RBAC filter with exact comparisons. Recordable has no rules, and the log for the
// agent, which is off.
func BenchmarkEnvoyPolicies(b *testing.B) {
	const address, none = "127.77.61.1", "{selector: {matchLabels: {app: another}}}"
	each := func(separator, format string) string {
		var out []string
		for i := range benchRules {
			out = append(out, strings.ReplaceAll(format, "NUMBER", fmt.Sprintf("%04d", i)))
		}
		return strings.Join(out, separator)
	}
	path, caller := "/api/v1/resource-NUMBER/items", "cluster.local/ns/default/sa/caller-NUMBER"
	paths := "rules: [" + each(", ", "{to: [{operation: {paths: ["+path+"]}}]}") + "]}"
	exactPath, exactCaller := `{"url_path":{"path":{"exact":"`+path+`"}}}`, `{"authenticated":{"principal_name":{"exact":"spiffe://`+caller+`"}}}`
	reference := func(action, permission, principal string) func([]byte) []byte {
		filter := `{"name":"envoy.filters.http.rbac","typed_config":{"@type":"type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC","rules":{"action":"` + action + `","policies":{` +
			each(",", `"rule-NUMBER":{"permissions":[`+permission+`],"principals":[`+principal+`]}`) + `}}}},`
		return func(bootstrap []byte) []byte {
			router := []byte(`{"name":"envoy.filters.http.router"`)
			return bytes.ReplaceAll(bootstrap, router, append([]byte(filter), router...))
		}
	}
	variants := []struct {
		name, policy, target string
		edit                 func([]byte) []byte
	}{
		{"none", none, path, nil},
		{"none-recordable", none, path, func(bootstrap []byte) []byte {
			if !bytes.Contains(bootstrap, []byte(node.RecordLog)) {
				b.Fatal("no log for the agent is configured")
			}
			return bytes.Replace(bootstrap, []byte(`"clusters":[`), []byte(`"clusters":[{"name":"`+node.XDSCluster+`","type":"STATIC"},`), 1)
		}},
		{"deny-paths", "{action: DENY, " + paths, path + "-of-mine", nil},
		{"deny-paths-reference", none, path + "-of-mine", reference("DENY", exactPath, `{"any":true}`)},
		{"allow-paths", "{" + paths, path, nil},
		{"allow-paths-reference", none, path, reference("ALLOW", exactPath, `{"any":true}`)},
		{"allow-callers", "{rules: [" + each(", ", "{from: [{source: {principals: ["+caller+"]}}]}") + "]}", path, nil},
		{"allow-callers-reference", none, path, reference("ALLOW", `{"any":true}`, exactCaller)},
	}
	var proxies []guardedProxy
	for _, v := range variants {
		proxy := proxyAt(address)
		if v.name == "none-recordable" {
			proxy.Settings = &model.ProxySettings{Configured: true, Records: []string{":method", "x-user"}}
		}
		proxies = append(proxies, guardedProxy{
			verdict: verdict{v.name, policy("p", v.policy), ""}, settings: &snapshot.Input{Mesh: meshconfig.Default()},
			objects: verdictObjects, proxy: proxy, edit: v.edit,
		})
	}
	c := newCourtOf(b, address, proxies)
	last := strings.NewReplacer("NUMBER", fmt.Sprintf("%04d", benchRules-1))
	var clients []*benchClient
	for i, v := range variants {
		clients = append(clients, newBenchClient(b, c, i, last.Replace("default/caller-NUMBER"), last.Replace(v.target)))
	}
	var names []string
	for _, v := range variants {
		names = append(names, v.name)
	}
	measure(b, c, clients, names)
}

// measure sends requests of each client in turn, and reports the median of Envoy's CPU time for a
// request under the client's name.
func measure(b *testing.B, c *court, clients []*benchClient, names []string) {
	b.Helper()
	const requests = 200
	cpu := make([][]float64, len(clients))
	for b.Loop() {
		for i, client := range clients {
			before := cpuOf(b, c.pid)
			for range requests {
				client.ask(b)
			}
			cpu[i] = append(cpu[i], float64((cpuOf(b, c.pid)-before).Nanoseconds())/1e3/requests)
		}
	}
	for i, name := range names {
		slices.Sort(cpu[i])
		b.ReportMetric(cpu[i][len(cpu[i])/2], name+"-us")
	}
}

func cpuOf(b *testing.B, pid int) time.Duration {
	b.Helper()
	usage, err := child.UsageOf(pid)
	if err != nil {
		b.Fatal(err)
	}
	return usage.CPU
}

// benchClient sends the same request over one connection.
type benchClient struct {
	net.Conn
	reader  *bufio.Reader
	request string
}

func newBenchClient(b *testing.B, c *court, proxy int, as, target string) *benchClient {
	b.Helper()
	conn, err := tls.Dial("tcp", c.address+":"+c.ports[proxy]["HTTP"], &tls.Config{
		Certificates: []tls.Certificate{*c.pair(b, as)}, InsecureSkipVerify: true, NextProtos: []string{"istio"}, //nolint:gosec // the server is not what is examined
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close() })
	return &benchClient{conn, bufio.NewReader(conn), "GET " + target + " HTTP/1.1\r\nHost: app\r\n\r\n"}
}

func (c *benchClient) ask(b *testing.B) {
	b.Helper()
	if _, err := io.WriteString(c, c.request); err != nil {
		b.Fatal(err)
	}
	resp, err := http.ReadResponse(c.reader, nil)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		b.Fatalf("%s: %s, %v", c.request, resp.Status, err)
	}
}
