// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// incident is something that an operator sees, the mistake behind it, and the command that names it.
type incident struct {
	seen     string
	mistake  string // objects; they replace those of catalog.yaml if they have its name
	catalog  bool
	commands []string // without outrigger
	cause    []string // texts of the output of the last command
}

const (
	networkingObject = "apiVersion: networking.istio.io/v1\nkind: "
	securityObject   = "apiVersion: security.istio.io/v1\nkind: "
)

// incidents returns the incidents of the example shop.
func incidents() []incident {
	route := func(http string) string {
		return networkingObject + "VirtualService\nmetadata: {name: catalog}\nspec: {hosts: [catalog], http: [" + http + "]}\n"
	}
	asked := []string{"explain request --from frontend --to catalog"}
	return []incident{
		{"503, since a route was changed", route("{route: [{destination: {host: catlog}}]}"), true, asked, []string{"status 503", "no such cluster", "config/catalog.yaml:1", "It was allowed until ", "updated  vs/catalog.default, ", "host: catlog"}},
		{
			"503, since a version was added", route("{route: [{destination: {host: catalog, subset: v3}}]}") +
				"---\n" + networkingObject + "DestinationRule\nmetadata: {name: catalog}\nspec: {host: catalog, subsets: [{name: v3, labels: {version: v3}}]}\n",
			true,
			[]string{"analyze"},
			[]string{"IST0173 DestinationRule/default/catalog", "config/catalog.yaml:"},
		},
		{"404 for some paths", route("{match: [{uri: {prefix: /items}}], route: [{destination: {host: catalog}}]}"), true, asked, []string{"status 404", "no route of the virtual host matches", "config/catalog.yaml:1"}},
		{
			"500 for some requests", route("{fault: {abort: {httpStatus: 500, percentage: {value: 10}}}, route: [{destination: {host: catalog}}]}"), true, asked,
			[]string{"abort 10 % with status 500", "config/catalog.yaml:1"},
		},
		{
			"403 for one client", securityObject + "AuthorizationPolicy\nmetadata: {name: catalog}\nspec: {selector: {matchLabels: {app: catalog}}, rules: [{from: [{source: {principals: [cluster.local/ns/default/sa/frontend]}}]}]}\n", false,
			[]string{"explain request --from orders --to catalog"},
			[]string{"status 403", "default/catalog[0]", "config/incident.yaml:1", "principals: spiffe://", "created  ap/catalog.default, ", "Mutual TLS: ", "config/mtls.yaml:3", "sa/orders\n           issued by O=", " left, until "},
		},
		{
			"401 with a token", securityObject + "RequestAuthentication\nmetadata: {name: catalog}\nspec: {selector: {matchLabels: {app: catalog}}, jwtRules: [{issuer: \"https://issuer.example\", jwks: '{\"keys\":[]}'}]}\n", false,
			[]string{"explain request --from frontend --to catalog --jwt a.b.c"},
			[]string{"status 401", "config/incident.yaml:1"},
		},
		{"plaintext is reset", "", false, []string{"explain request --from none --to catalog"}, []string{"the port requires mutual TLS", "config/mtls.yaml:3"}},
		{
			"one client misses a service", networkingObject + "Sidecar\nmetadata: {name: orders}\nspec: {workloadSelector: {labels: {app: orders}}, egress: [{hosts: [./orders.default.svc.cluster.local]}], " +
				"ingress: [{port: {number: 8080, name: http, protocol: HTTP}, bind: 127.1.0.5, defaultEndpoint: \"127.0.0.1:18083\"}]}\n",
			false,
			[]string{"explain request --from orders --to catalog"},
			[]string{"does not import the service", "config/incident.yaml:1"},
		},
		{
			"a change has no effect", strings.Replace(route("{route: [{destination: {host: catalog}}]}"), "http:", "htpp:", 1), true,
			[]string{"describe vs catalog"},
			[]string{`unknown field "htpp"`, "config/catalog.yaml:"},
		},
		{
			"Envoy refuses a change", strings.Replace(networkingObject, "/v1\n", "/v1alpha3\n", 1) + "EnvoyFilter\nmetadata: {name: lua}\nspec: {configPatches: [{applyTo: HTTP_FILTER, match: {context: SIDECAR_INBOUND}, " +
				"patch: {operation: INSERT_FIRST, value: {name: lua, typed_config: {\"@type\": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua, inlineCode: \"function(\"}}}}]}\n",
			false,
			[]string{"status", "explain envoyfilter/lua"},
			[]string{"rejected it", "script load error", "config/incident.yaml:1"},
		},
		{seen: "a proxy is lost", commands: []string{"status"}, cause: []string{"orders.default", "GONE", "1 has lost the connection"}},
		{seen: "the control plane is dead", commands: []string{"status"}, cause: []string{"error: control plane 127.", "connection refused", "No control plane was reached"}},
	}
}

// killed returns the processes whose end is the incident, as programs and workloads.
func killed() map[string][2]string {
	return map[string][2]string{"a proxy is lost": {"outrigger-agent", "orders"}, "the control plane is dead": {"outrigger-control", ""}}
}

// TestStopwatch plants incidents in the example shop, and measures how long the commands take that name
// the cause. The table in the documents has them.
func TestStopwatch(t *testing.T) {
	s := startShop(t)
	catalog := s.read("catalog.yaml")
	_, _ = s.tool("history") // versions are recorded from the first question on, or 5 s after the start
	var rows strings.Builder
	rows.WriteString("| seen | typed | time |\n|---|---|---|\n")
	for _, i := range incidents() {
		file := "incident.yaml"
		if i.catalog {
			file = "catalog.yaml"
		}
		if i.mistake != "" {
			s.write(file, i.mistake)
		}
		ended, kills := killed()[i.seen]
		if kills {
			one := s.find(ended[0], ended[1])
			if err := s.cmd.Process.Signal(syscall.SIGSTOP); err != nil { // so that it does not start it again
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.cmd.Process.Signal(syscall.SIGCONT) }) // after a failure
			kill(t, one)
		}
		took := time.Duration(0)
		eventually(t, 2*time.Minute, func() string { // until the change has arrived
			began, out := time.Now(), ""
			for _, command := range i.commands {
				out, _ = s.tool(strings.Fields(command)...) // some exit with 1
			}
			took = time.Since(began)
			for _, want := range i.cause {
				if !strings.Contains(out, want) {
					time.Sleep(20 * time.Millisecond)
					return fmt.Sprintf("%s: no %q in\n%s", i.seen, want, out)
				}
			}
			return ""
		})
		fmt.Fprintf(&rows, "| %s | `outrigger %s` | %d ms |\n", i.seen, strings.Join(i.commands, "`, `outrigger "), took.Milliseconds())
		switch {
		case kills:
			if err := s.cmd.Process.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			eventually(t, 2*time.Minute, func() string { // it starts again
				out, err := s.tool("status")
				if err != nil {
					return out
				}
				return ""
			})
		case i.catalog:
			s.write(file, catalog)
		case i.mistake != "":
			if err := os.Remove(filepath.Join(s.dir, "config", file)); err != nil {
				t.Fatal(err)
			}
		}
	}
	page := filepath.Join(repository(t), "docs", "tasks", "find-out-why.md")
	const begin, end = "<!-- stopwatch: made by make bench -->\n\n", "\n<!-- end -->"
	text := document(t, filepath.Join("docs", "tasks", "find-out-why.md"))
	before, rest, found := strings.Cut(text, begin)
	table, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatalf("%s has no table between %q and %q", page, begin, end)
	}
	if *update {
		if err := os.WriteFile(page, []byte(before+begin+rows.String()+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	times := regexp.MustCompile(`\| [0-9]+ ms \|`)
	if want, has := times.ReplaceAllString(rows.String(), "|"), times.ReplaceAllString(table, "|"); want != has {
		t.Errorf("the table of incidents is\n%s\nwant\n%s", has, want)
	}
}
