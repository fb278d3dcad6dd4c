// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// TestDenialsAreLogged checks that the access log names the rule that denied a request, and that
// Envoy's output names the policy in dry run that would deny a request or connection.
func TestDenialsAreLogged(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "access.log")
	dryRun := func(name, spec string) string {
		return strings.Replace(policy(name, spec), "namespace: default", `namespace: default, annotations: {istio.io/dry-run: "true"}`, 1)
	}
	v := verdict{"logs", documents(
		policy("deny", `{action: DENY, rules: [{to: [{operation: {paths: [/none], ports: ["PORT_HTTP"]}}]}, {to: [{operation: {paths: [/no], ports: ["PORT_HTTP"]}}]}]}`),
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
	`}
	c := newCourt(t, "127.77.58.3", func() *snapshot.Input {
		mesh := meshconfig.Default()
		mesh.AccessLogFile = path
		return &snapshot.Input{Mesh: mesh}
	}, []verdict{v})
	c.check(t, 0, v)
	for file, want := range map[string][]string{
		path: {"rbac_access_denied_matched_policy[ns[default]-policy[deny]-rule[1]]", "rbac_access_denied_matched_policy[none]"},
		c.output: {
			`"policy":"ns[default]-policy[deny-later]-rule[0]"`, `"path":"/later"`, `"peer":"spiffe://cluster.local/ns/default/sa/caller"`,
			`"policy":"no rule matched: ns[default]-policy[allow-later]"`, `"path":"/other"`,
			`"policy":"ns[default]-policy[deny-later]-rule[1]"`, `"msg":"a policy in dry run would deny the connection"`,
		},
	} {
		for _, text := range want {
			eventually(t, text+" is logged", func() bool {
				log, err := os.ReadFile(file)
				return err == nil && strings.Contains(string(log), text)
			})
		}
	}
	log, err := os.ReadFile(c.output)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{`"path":"/yes"`, `"path":"/no"`} {
		if strings.Contains(string(log), text) {
			t.Errorf("%s is logged as denied by a policy in dry run:\n%s", text, log)
		}
	}
}
