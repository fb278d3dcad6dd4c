// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package debug

import (
	"regexp"
	"strings"
	"testing"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// TestExample checks that examples match their expressions.
func TestExample(t *testing.T) {
	t.Parallel()
	for expr, want := range map[string]string{
		"/api": "/api", "/v[0-9]+/.*": "/v0/", "(a|b)c?d{2}": "add", "^x$": "x", "[^/]+": "0", "(?i)abc": "ABC", `\.[a-z]\d`: ".a0", "[А-Я]": "А",
		"[": "", "(a{1000}){1000}": "", strings.Repeat("a", maxExample+1): "",
	} {
		got := example(expr)
		if got != want {
			t.Errorf("example(%.50q) = %.50q, want %q", expr, got, want)
		}
		if re, err := regexp.Compile("^(?:" + expr + ")$"); err == nil && got != "" && !re.MatchString(got) {
			t.Errorf("example(%q) = %q, which does not match", expr, got)
		}
	}
}

// TestSenders checks which senders and addresses the values of rules mean.
func TestSenders(t *testing.T) {
	t.Parallel()
	s := &probes{of: &flips{
		comparison: &comparison{debugger: debugger{mesh: &snapshot.Mesh{Config: &meshv1alpha1.MeshConfig{TrustDomain: "mesh.example"}}}},
		inside:     map[string]string{"shop": "spiffe://mesh.example/ns/shop/sa/web"},
	}}
	for _, c := range []struct {
		set         func(*probe, string)
		value, want string
	}{
		{s.setPrincipal, "cluster.local/ns/a/sa/b", "spiffe://mesh.example/ns/a/sa/b"},
		{s.setPrincipal, "spiffe://other.example/ns/a/sa/b", "spiffe://other.example/ns/a/sa/b"},
		{s.setPrincipal, "*", "spiffe://mesh.example/ns/default/sa/default"},
		{s.setPrincipal, "mesh.example/ns/a/*", "spiffe://mesh.example/ns/a/sa/default"},
		{s.setPrincipal, "mesh.example/ns/a/sa/b*", "spiffe://mesh.example/ns/a/sa/b"},
		{s.setPrincipal, "other*", "spiffe://other/ns/default/sa/default"},
		{s.setPrincipal, "*/ns/a/sa/b", "spiffe://mesh.example/ns/a/sa/b"},
		{s.setPrincipal, "*/sa/b", "spiffe://mesh.example/ns/default/sa/b"},
		{s.setPrincipal, "*b", "spiffe://mesh.example/ns/default/sa/b"},
		{s.setNamespace, "shop", "spiffe://mesh.example/ns/shop/sa/web"},
		{s.setNamespace, "te*", "spiffe://mesh.example/ns/te/sa/default"},
		{s.setAccount("own"), "a", "spiffe://mesh.example/ns/own/sa/a"},
		{s.setAccount("own"), "b/a", "spiffe://mesh.example/ns/b/sa/a"},
		{setTrustDomain, "a.example", "spiffe://a.example/ns/default/sa/default"},
	} {
		q := &probe{}
		if c.set(q, c.value); q.as == nil || *q.as != c.want {
			t.Errorf("%s: got %v, want %s", c.value, q.as, c.want)
		}
	}
	for value, want := range map[string]string{
		"10.0.0.0/8": "10.0.0.1", "10.1.2.3": "10.1.2.3", "10.1.2.4/31": "10.1.2.4", "2001:db8::/32": "2001:db8::1", "0.0.0.0/0": "0.0.0.1", "no": "invalid IP",
	} {
		if got := addressIn(value).String(); got != want {
			t.Errorf("addressIn(%q) = %s, want %s", value, got, want)
		}
	}
}
