// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package gatewayapi

import (
	"slices"
	"testing"
	"time"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// TestHostnames checks the table in the specification of hostname, and its edge cases.
func TestHostnames(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		listener string
		route    []string
		want     []string
	}{
		{"", nil, []string{"*"}},
		{"", []string{"a.example.com", "*.example.com"}, []string{"a.example.com", "*.example.com"}},
		{"a.example.com", nil, []string{"a.example.com"}},
		{"A.Example.com", []string{"a.example.com"}, []string{"a.example.com"}},
		{"*.example.com", []string{"a.example.com", "a.b.example.com", "example.com", "a.example.org"}, []string{"a.example.com", "a.b.example.com"}},
		{"a.example.com", []string{"*.example.com", "a.example.com"}, []string{"a.example.com"}},
		{"*.example.com", []string{"*.b.example.com"}, []string{"*.b.example.com"}},
		{"*.b.example.com", []string{"*.example.com"}, []string{"*.b.example.com"}},
		{"*.example.com", []string{"*.example.org"}, nil},
		{"example.com", []string{"*.example.com"}, nil},
	} {
		if got := hostnames(c.listener, c.route); !slices.Equal(got, c.want) {
			t.Errorf("hostnames(%q, %q) = %q, want %q", c.listener, c.route, got, c.want)
		}
	}
}

// TestPrecedence checks the order of matches: exact path, longest prefix, method, headers, query,
// then the oldest route, then its name, then the first rule.
func TestPrecedence(t *testing.T) {
	t.Parallel()
	of := func(name string, age int) *model.Config {
		return &model.Config{Key: model.Key{Namespace: "n", Name: name}, Created: time.Unix(int64(age), 0)}
	}
	old, young, sibling := of("z", 1), of("a", 2), of("b", 2)
	ordered := []weight{
		{path: pathExact, length: 2, of: young},
		{path: pathPrefix, length: 9, of: young},
		{path: pathPrefix, length: 3, method: true, of: young},
		{path: pathPrefix, length: 3, headers: 2, of: young},
		{path: pathPrefix, length: 3, headers: 1, queries: 1, of: young},
		{path: pathPrefix, length: 3, headers: 1, of: old, position: 7},
		{path: pathPrefix, length: 3, headers: 1, of: young, position: 1},
		{path: pathPrefix, length: 3, headers: 1, of: young, position: 2},
		{path: pathPrefix, length: 3, headers: 1, of: sibling},
		{path: pathRegex, length: 90, of: old},
		{path: pathAll, method: true, of: young},
		{path: pathAll, of: old},
	}
	got := slices.Clone(ordered)
	slices.Reverse(got)
	slices.SortStableFunc(got, precedence)
	if !slices.Equal(got, ordered) {
		t.Errorf("got order %+v, want %+v", got, ordered)
	}
}

// TestRewriteOfPrefix checks every row of the table at HTTPPathModifier in the specification.
func TestRewriteOfPrefix(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ prefix, replace, uri, match, rewrite string }{
		{"/foo", "/xyz", "/xyz", "", ""},
		{"/foo", "/xyz/", "/xyz", "", ""},
		{"/foo/", "/xyz", "/xyz", "", ""},
		{"/foo/", "/xyz/", "/xyz", "", ""},
		{"/foo", "", "", "^/foo/?", "/"},
		{"/foo", "/", "", "^/foo/?", "/"},
		{"/fo.o", "/", "", "^/fo\\.o/?", "/"},
		{"/", "/xyz", "", "^/", "/xyz/"},
		{"/", "/", "", "", ""},
	} {
		m := httpMatch(gatewayv1.HTTPRouteMatch{Path: &gatewayv1.HTTPPathMatch{Value: &c.prefix}})
		got := rewrite(&gatewayv1.HTTPURLRewriteFilter{Path: &gatewayv1.HTTPPathModifier{ReplacePrefixMatch: &c.replace}}, m)
		if got.GetUri() != c.uri || got.GetUriRegexRewrite().GetMatch() != c.match || got.GetUriRegexRewrite().GetRewrite() != c.rewrite {
			t.Errorf("rewriting prefix %q to %q: got %v", c.prefix, c.replace, got)
		}
	}
}

func TestGrants(t *testing.T) {
	t.Parallel()
	c := &converter{grants: []grant{
		{from: gatewayv1.ReferenceGrantFrom{Group: groupGateway, Kind: "HTTPRoute", Namespace: "shop"}, namespace: "money", to: gatewayv1.ReferenceGrantTo{Kind: "Service", Name: pointer(gatewayv1.ObjectName("pay"))}},
		{from: gatewayv1.ReferenceGrantFrom{Group: groupGateway, Kind: "Gateway", Namespace: "shop"}, namespace: "money", to: gatewayv1.ReferenceGrantTo{Kind: "Secret"}},
	}}
	for _, r := range []struct {
		reference
		want bool
	}{
		{reference{model.HTTPRoute, "shop", "", "Service", name{"money", "pay"}}, true},
		{reference{model.HTTPRoute, "shop", "", "Service", name{"shop", "any"}}, true},
		{reference{model.HTTPRoute, "shop", "", "Service", name{"money", "other"}}, false},
		{reference{model.HTTPRoute, "web", "", "Service", name{"money", "pay"}}, false},
		{reference{model.GRPCRoute, "shop", "", "Service", name{"money", "pay"}}, false},
		{reference{model.HTTPRoute, "shop", "", "Secret", name{"money", "pay"}}, false},
		{reference{model.HTTPRoute, "shop", "example.com", "Service", name{"money", "pay"}}, false},
		{reference{model.KubernetesGateway, "shop", "", "Secret", name{"money", "any"}}, true},
		{reference{model.Gateway, "shop", "", "Secret", name{"money", "any"}}, false},
	} {
		if got := c.allowed(r.reference); got != r.want {
			t.Errorf("allowed(%+v) = %t", r.reference, got)
		}
	}
}

func pointer[T any](v T) *T { return &v }

// TestGatewayAddress checks that the address of a Gateway is that of its load balancer, once it has
// one, but never the cluster IP.
func TestGatewayAddress(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		service model.Service
		want    []string
	}{
		"inside only": {model.Service{Addresses: []string{"10.96.0.1"}}, []string{"10.96.0.1"}},
		"to come":     {model.Service{Addresses: []string{"10.96.0.1"}, AwaitsAddress: true}, nil},
		"balanced":    {model.Service{Addresses: []string{"10.96.0.1"}, ExternalAddresses: map[string][]string{"c": {"192.0.2.1"}}}, []string{"192.0.2.1"}},
		"of another cluster": {
			model.Service{Addresses: []string{"10.96.0.1"}, AwaitsAddress: true, ExternalAddresses: map[string][]string{"d": {"192.0.2.1"}}},
			[]string{"192.0.2.1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := external(&c.service); !slices.Equal(got, c.want) {
				t.Errorf("external() = %q, want %q", got, c.want)
			}
		})
	}
}
