// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package analyze

import (
	"fmt"
	"strings"
	"testing"
)

// world returns n services with a workload, a VirtualService, a DestinationRule and a policy each,
// and n Gateways of workloads of their own.
func world(n int) []File {
	var b strings.Builder
	for i := range n {
		ns := fmt.Sprintf("ns%d", i%10)
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Service\nmetadata: {name: s%[1]d, namespace: %[2]s}\nspec: {selector: {app: s%[1]d}, ports: [{name: http, port: 80}]}\n", i, ns)
		fmt.Fprintf(&b, "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: s%[1]d, namespace: %[2]s}\nspec: {template: {metadata: {labels: {app: s%[1]d, tier: all}}, spec: {containers: [{name: a, image: a}]}}}\n", i, ns)
		fmt.Fprintf(&b, "---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: s%[1]d, namespace: %[2]s}\nspec: {hosts: [s%[1]d], gateways: [mesh, g%[1]d], http: [{route: [{destination: {host: s%[1]d, subset: v}}]}]}\n", i, ns)
		fmt.Fprintf(&b, "---\napiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: s%[1]d, namespace: %[2]s}\nspec: {host: s%[1]d, subsets: [{name: v, labels: {app: s%[1]d}}]}\n", i, ns)
		fmt.Fprintf(&b, "---\napiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: g%[1]d, namespace: %[2]s}\nspec: {selector: {tier: all, app: s%[1]d}, servers: [{port: {number: 80, name: h, protocol: HTTP}, hosts: [\"*\"]}]}\n", i, ns)
		fmt.Fprintf(&b, "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: s%[1]d, namespace: %[2]s}\nspec: {selector: {matchLabels: {tier: all, app: s%[1]d}}}\n", i, ns)
	}
	return []File{{"world.yaml", []byte(b.String())}}
}

// TestNearLinear checks that four times the objects need about four times the steps, by counting.
func TestNearLinear(t *testing.T) {
	t.Parallel()
	steps := func(n int) int {
		read := Read(nil, world(n), "", false)
		if len(read.Problems) > 0 {
			t.Fatal(read.Problems[0])
		}
		in := Input{Objects: read.Objects, Manifests: read.Manifests}
		in.Build(nil)
		a := newAnalysis(in)
		a.run()
		if got := len(a.result(nil).Findings); got < n {
			t.Errorf("%d findings, want one for each of %d policies at least", got, n)
		}
		return a.steps
	}
	few, many := steps(50), steps(200)
	if few == 0 || many > 5*few {
		t.Errorf("%d steps with 50 services, %d with 200", few, many)
	}
}

// BenchmarkRun analyzes 10,000 objects.
func BenchmarkRun(b *testing.B) {
	files := world(10_000 / 6)
	for b.Loop() {
		read := Read(nil, files, "", false)
		in := Input{Objects: read.Objects, Manifests: read.Manifests}
		in.Build(nil)
		Run(in)
	}
}

// TestRefusalsBounded checks that many rules of one workload are not all compared with each other.
func TestRefusalsBounded(t *testing.T) {
	t.Parallel()
	var allow, deny strings.Builder
	for i := range 500 {
		fmt.Fprintf(&allow, "  - {to: [{operation: {paths: [/%d]}}]}\n", i)
		fmt.Fprintf(&deny, "  - {to: [{operation: {paths: [/%d], methods: [GET]}}]}\n", i%400)
	}
	deny.WriteString("  - {to: [{operation: {notMethods: [GET]}}]}\n")
	const head = "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: %s}\nspec:\n  action: %s\n  rules:\n%s"
	read := Read(nil, []File{{"a.yaml", fmt.Appendf(fmt.Appendf(nil, head, "a", "ALLOW", allow.String()), head, "b", "DENY", deny.String())}}, "", false)
	in := Input{Objects: read.Objects, Manifests: read.Manifests}
	in.Build(nil)
	a := newAnalysis(in)
	a.refusals()
	if len(a.found) > 0 || a.steps < maxSteps/2 || a.steps > 3*maxSteps {
		t.Errorf("%d findings after %d steps, want about %d", len(a.found), a.steps, maxSteps)
	}
}
