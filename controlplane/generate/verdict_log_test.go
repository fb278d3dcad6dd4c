// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// TestEnvoyLogsDenials checks that the access log names the rule that denied a request.
func TestEnvoyLogsDenials(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "access.log")
	v := verdict{"logs", documents(
		policy("deny", `{action: DENY, rules: [{to: [{operation: {paths: [/none], ports: ["PORT_HTTP"]}}]}, {to: [{operation: {paths: [/no], ports: ["PORT_HTTP"]}}]}]}`),
		policy("allow", `{rules: [{to: [{operation: {notPaths: [/nobody], ports: ["PORT_HTTP"]}}]}]}`),
	), `
		200 GET /yes
		403 GET /no
		403 GET /nobody
	`}
	c := newCourt(t, "127.77.58.3", func() *snapshot.Input {
		mesh := meshconfig.Default()
		mesh.AccessLogFile = path
		return &snapshot.Input{Mesh: mesh}
	}, []verdict{v})
	c.check(t, 0, v)
	for _, text := range []string{"rbac_access_denied_matched_policy[ns[default]-policy[deny]-rule[1]]", "rbac_access_denied_matched_policy[none]"} {
		eventually(t, text+" is logged", func() bool {
			log, err := os.ReadFile(path)
			return err == nil && strings.Contains(string(log), text)
		})
	}
}

// TestEnvoyDryRuns checks that Envoy's counters and its output say what policies in dry run would
// deny, and nothing else, with the statistics that the agent configures.
func TestEnvoyDryRuns(t *testing.T) {
	t.Parallel()
	dryRun := func(name, spec string) string {
		return strings.Replace(policy(name, spec), "namespace: default", `namespace: default, annotations: {istio.io/dry-run: "true"}`, 1)
	}
	verdicts := []verdict{
		{"both", documents(
			policy("deny", `{action: DENY, rules: [{to: [{operation: {paths: [/no], ports: ["PORT_HTTP"]}}]}]}`),
			policy("allow", `{rules: [{to: [{operation: {notPaths: [/nobody], ports: ["PORT_HTTP"]}}]}, {to: [{operation: {ports: ["PORT_TCP"]}}]}]}`),
			dryRun("deny-later", `{action: DENY, rules: [{to: [{operation: {paths: [/later], ports: ["PORT_HTTP"]}}]}, {to: [{operation: {ports: ["PORT_TCP"]}}]}]}`),
			dryRun("allow-later", `{rules: [{to: [{operation: {notPaths: [/other], ports: ["PORT_HTTP"]}}]}, {to: [{operation: {ports: ["PORT_TCP"]}}]}]}`),
		), `
			200 GET /yes
			403 GET /no
			403 GET /nobody
			200 GET /later | as default/caller
			200 GET /other
			200 GET / | port tcp
		`},
		{"many rules, and no connection allowed later", documents(
			policy("deny", `{action: DENY, rules: [`+manyRules+`]}`),
			dryRun("deny-later", `{action: DENY, rules: [`+manyRules+`, {to: [{operation: {paths: ["/la*"], ports: ["PORT_HTTP"]}}]}]}`),
			dryRun("allow-later", `{rules: [{to: [{operation: {paths: [/later], ports: ["PORT_HTTP"]}}]}]}`),
		), `
			200 GET /later
			200 GET /yes
			200 GET / | port tcp | as default/caller
		`},
	}
	dir, err := os.MkdirTemp("", "dryrun") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "admin")
	const address = "127.77.58.8"
	var proxies []guardedProxy
	for _, v := range verdicts {
		proxies = append(proxies, guardedProxy{
			verdict: v, settings: &snapshot.Input{Mesh: meshconfig.Default()}, objects: verdictObjects, proxy: proxyAt(address),
			edit: func(bootstrap []byte) []byte { return withStats(t, bootstrap, socket) },
		})
	}
	c := newCourtOf(t, address, proxies)
	for i, v := range verdicts {
		c.check(t, i, v)
	}

	const request, connection = "a policy in dry run would deny the request", "a policy in dry run would deny the connection"
	const caller = "spiffe://cluster.local/ns/default/sa/caller"
	want := []string{
		request + ": ns[default]-policy[deny-later]-rule[0], GET /later, " + caller,
		request + ": no rule matched: ns[default]-policy[allow-later], GET /other, ",
		connection + ": ns[default]-policy[deny-later]-rule[1],  , ",
		request + ": ns[default]-policy[deny-later]-rule[10], GET /later, ",
		request + ": no rule matched: ns[default]-policy[allow-later], GET /yes, ",
		connection + ": no rule matched: ns[default]-policy[allow-later],  , " + caller,
	}
	slices.Sort(want)
	var got []string
	eventually(t, "everything is logged", func() bool {
		got = dryRunLines(t, c.output)
		return len(got) >= len(want)
	})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Envoy's output (-want +got):\n%s", diff)
	}

	counters := map[string]int{
		"http_rbac deny denied": 2, "http_rbac deny allowed": 5, // all requests
		"http_rbac allow denied": 2, "http_rbac allow allowed": 4, // those that the enforced DENY let pass
		"tcp deny denied": 1, "tcp deny allowed": 1,
		"tcp allow denied": 1, "tcp allow allowed": 1,
	}
	counted := map[string]int{}
	eventually(t, "everything is counted", func() bool {
		counted = dryRunCounters(t, socket)
		return counted["tcp allow denied"] > 0
	})
	if diff := cmp.Diff(counters, counted); diff != "" {
		t.Errorf("the counters (-want +got):\n%s", diff)
	}
}

// withStats returns a bootstrap with an admin port at a socket, and the statistics of the agent's.
func withStats(t *testing.T, bootstrap []byte, socket string) []byte {
	t.Helper()
	var agents struct {
		Stats json.RawMessage `json:"stats_config"`
	}
	if err := json.Unmarshal(read(t, "../../bootstrap/testdata/minimal/want.json"), &agents); err != nil {
		t.Fatal(err)
	}
	var all map[string]any
	if err := json.Unmarshal(bootstrap, &all); err != nil {
		t.Fatal(err)
	}
	all["admin"] = map[string]any{"address": map[string]any{"pipe": map[string]any{"path": socket}}}
	all["stats_config"] = agents.Stats
	b, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// dryRunLines returns what an Envoy logged about policies in dry run, sorted.
func dryRunLines(t *testing.T, file string) []string {
	t.Helper()
	var out []string
	for line := range bytes.Lines(read(t, file)) {
		var e map[string]string
		if json.Unmarshal(line, &e) != nil || !strings.Contains(e["msg"], "dry run") {
			continue
		}
		if e["level"] != "info" || e["time"] == "" || e["source"] == "" || e["destination"] == "" {
			t.Errorf("Envoy logs %s", line)
		}
		out = append(out, fmt.Sprintf("%s: %s, %s %s, %s", e["msg"], e["policy"], e["method"], e["path"], e["peer"]))
	}
	slices.Sort(out)
	return out
}

// dryRunCounters returns the counters of policies in dry run that an Envoy has.
func dryRunCounters(t *testing.T, socket string) map[string]int {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://admin/stats/prometheus?filter=istio_dry_run", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil {
		t.Fatal(err)
	}
	counter := regexp.MustCompile(`^envoy_(http_rbac|tcp)\{authz_dry_run_action="([a-z]+)",authz_dry_run_result="([a-z]+)",.*\} (\d+)$`)
	out := map[string]int{}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		m := counter.FindStringSubmatch(line)
		if m == nil {
			t.Fatalf("Envoy counts %s", line)
		}
		n, err := strconv.Atoi(m[4])
		if err != nil {
			t.Fatal(err)
		}
		out[m[1]+" "+m[2]+" "+m[3]] += n
	}
	return out
}
