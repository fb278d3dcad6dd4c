// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/decision"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// longValue has one byte more than the longest value of a header that is compared exactly.
var longValue = strings.Repeat("v", 201)

// headerVerdicts returns policies on values of headers that cannot be compared exactly: they match
// nothing, and are not excluded from what is denied.
func headerVerdicts() []verdict {
	when := func(values string) string {
		return `{to: [{operation: {ports: ["PORT_HTTP"]}}], when: [{key: "request.headers[x-user]", ` + values + `}]}`
	}
	return []verdict{
		{"long values of headers that allow", policy("p", `{rules: [`+when(`values: [`+longValue+`, "é", "*`+longValue+`", ok]`)+`]}`), `
			200 GET / | X-User: ok
			403 GET / | X-User: ok | X-User: ` + longValue + `
			403 GET / | X-User: ` + longValue + `
			403 GET / | X-User: ` + longValue + ` | X-User: bad
			403 GET / | X-User: é
		`},
		{"the longest values of headers that allow", policy("p", `{rules: [`+when(`values: [`+longValue[1:]+`]`)+`]}`), `
			200 GET / | X-User: ` + longValue[1:] + `
			403 GET / | X-User: ` + longValue + `
			403 GET / | X-User: ` + longValue[2:] + `
			403 GET / | X-User: ` + longValue[1:] + ` | X-User: bad
			403 GET / | X-User: bad | X-User: ` + longValue[1:] + `
		`},
		{"long values of headers that are not denied", policy("p", `{action: DENY, rules: [`+when(`notValues: [`+longValue+`]`)+`]}`), `
			403 GET / | X-User: ok
			403 GET / | X-User: ` + longValue + `
		`},
	}
}

// TestHeaderValuesAreBounded checks that many values of headers in rules that allow result in a bounded
// configuration, that the first ones match, that others do not, and that problems say so.
func TestHeaderValuesAreBounded(t *testing.T) {
	t.Parallel()
	proxy := proxyAt("127.77.58.9")
	ports := map[string]string{"HTTP": "8080", "TCP": "9000", "APP": "8081"}
	value := func(i int) string { return fmt.Sprintf("%0100d", i) }
	build := func(values int) (*snapshot.Mesh, *xds.Set) {
		var list []string
		for i := range values {
			list = append(list, `"`+value(i)+`"`)
		}
		text := replacePorts(strings.TrimSpace(verdictObjects), ports) + "\n---\n" + policy("many", `{rules: [{to: [{operation: {ports: ["8080"]}}], when: [{key: "request.headers[x-user]", values: [`+strings.Join(list, ", ")+`]}]}]}`)
		mesh := snapshot.Build(nil, inputOf(decode(t, text), meshconfig.Default()), model.Change{All: true})
		return mesh, New(Config{}).Generate(mesh, proxy, xds.TypeListener)
	}
	size := func(set *xds.Set) (n int) {
		for _, r := range set.Resources {
			n += len(r.Any)
		}
		return n
	}
	_, none := build(1)
	mesh, many := build(2000)
	_, more := build(4000)
	if len(none.Problems) > 0 {
		t.Errorf("problems of one value: %v", none.Problems)
	}
	if len(many.Problems) != 1 || !strings.Contains(many.Problems[0].Reason, "spec.rules[0]: the values of headers in the policies of a workload need more than 512 KiB") || many.Problems[0].Object.Name != "many" {
		t.Errorf("problems of many values: %v", many.Problems)
	}
	if size(more) != size(many) || size(many) > 5<<20 {
		t.Errorf("2000 values take %d bytes, and 4000 take %d", size(many), size(more))
	}
	envoy := decider(t, mesh, proxy)
	for i, want := range map[int]bool{0: true, 1: true, 300: true, 1999: false, 2000: false} {
		v, err := envoy.Decide(decision.Request{
			Peer: netip.MustParseAddr("127.0.0.1"), Server: netip.MustParseAddr("127.77.58.9"), Port: 8080,
			Method: "GET", Host: "app", Path: "/", Header: map[string][]string{"x-user": {value(i)}},
		})
		if err != nil || v.Allowed != want {
			t.Errorf("value %d is allowed: %t (%v), want %t", i, v.Allowed, err, want)
		}
	}
}
