// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package validate

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"google.golang.org/protobuf/proto"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
)

// TestHostOverlaps compares the search for overlaps with a comparison of all pairs.
func TestHostOverlaps(t *testing.T) {
	t.Parallel()
	covers := func(host, other string) bool {
		host, other = strings.ToLower(host), strings.ToLower(other)
		if suffix, ok := strings.CutPrefix(host, "*"); ok {
			return strings.HasSuffix(strings.TrimPrefix(other, "*"), suffix)
		}
		return host == other
	}
	r := rand.New(rand.NewPCG(1, 2))
	parts := []string{"a", "B", "b", ".", "aa", "*", ""}
	for range 20_000 {
		hosts := make([]string, r.IntN(7))
		for i := range hosts {
			if r.IntN(2) == 0 {
				hosts[i] = "*"
			}
			for range r.IntN(4) {
				hosts[i] += parts[r.IntN(len(parts))]
			}
		}
		for i, first := range newHostSet(hosts).overlaps(hosts) {
			pair := slices.ContainsFunc(hosts[:i], func(h string) bool { return covers(h, hosts[i]) || covers(hosts[i], h) })
			if pair != (first >= 0) || pair && !covers(hosts[first], hosts[i]) && !covers(hosts[i], hosts[first]) {
				t.Fatalf("%q: host %d is reported to overlap with %d", hosts, i, first)
			}
		}
		set := newHostSet(hosts)
		for _, h := range hosts {
			if !set.includes(h) {
				t.Fatalf("the set of %q does not include %q", hosts, h)
			}
		}
	}
}

// TestShadows compares the search for shadowed matches with a comparison of all pairs.
func TestShadows(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 4))
	paths := []string{"/", "/a", "/a/b", "/A", "/b", ""}
	methods := []*networkingv1alpha3.StringMatch{nil, nil, {MatchType: &networkingv1alpha3.StringMatch_Exact{Exact: "GET"}}}
	for range 20_000 {
		all := make([]*networkingv1alpha3.HTTPMatchRequest, 1+r.IntN(6))
		for i := range all {
			m := &networkingv1alpha3.HTTPMatchRequest{Name: fmt.Sprint(i), Method: methods[r.IntN(3)], IgnoreUriCase: r.IntN(4) == 0}
			switch path := paths[r.IntN(len(paths))]; r.IntN(5) {
			case 0:
			case 1:
				m.Uri = &networkingv1alpha3.StringMatch{MatchType: &networkingv1alpha3.StringMatch_Exact{Exact: path}}
			case 2:
				m.Uri = &networkingv1alpha3.StringMatch{MatchType: &networkingv1alpha3.StringMatch_Regex{Regex: path}}
			default:
				m.Uri = &networkingv1alpha3.StringMatch{MatchType: &networkingv1alpha3.StringMatch_Prefix{Prefix: path}}
			}
			all[i] = m
		}
		c := &checker{}
		c.shadowedRoutes(&networkingv1alpha3.VirtualService{Http: []*networkingv1alpha3.HTTPRoute{{Match: all}}})
		for i, m := range all {
			want := slices.IndexFunc(all[:i], func(a *networkingv1alpha3.HTTPMatchRequest) bool { return coversAll(a, m) })
			at := field.Index("spec.http[0].match", i)
			k := slices.IndexFunc(c.warnings, func(w field.Error) bool { return w.Path == at })
			if (want >= 0) != (k >= 0) || want >= 0 && !strings.Contains(c.warnings[k].Text, field.Index("spec.http[0].match", want)+" comes first") {
				t.Fatalf("match %d of %v: covered by %d; %v", i, all, want, c.warnings)
			}
		}
	}
}

// coversAll reports whether every request that match b accepts is accepted by match a.
func coversAll(a, b *networkingv1alpha3.HTTPMatchRequest) bool {
	a, _ = proto.Clone(a).(*networkingv1alpha3.HTTPMatchRequest)
	b, _ = proto.Clone(b).(*networkingv1alpha3.HTTPMatchRequest)
	a.Name, b.Name = "", ""
	if proto.Equal(a, b) {
		return true
	}
	if a.GetUri() != nil {
		prefix, ok := a.GetUri().GetMatchType().(*networkingv1alpha3.StringMatch_Prefix)
		path := b.GetUri().GetPrefix() + b.GetUri().GetExact()
		if !ok || prefix.Prefix == "" {
			return false
		}
		if prefix.Prefix != "/" && (path == "" || !strings.HasPrefix(path, prefix.Prefix) || b.GetIgnoreUriCase() && !a.GetIgnoreUriCase()) {
			return false
		}
	}
	a.Uri, b.Uri, a.IgnoreUriCase, b.IgnoreUriCase = nil, nil, false, false
	return !hasAny(a) || proto.Equal(a, b)
}

// TestReferences compares the rules for lists of references with a comparison of all pairs.
func TestReferences(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(5, 6))
	sections := []gatewayv1.SectionName{"", "x", "y"}
	for range 20_000 {
		refs := make([]gatewayv1.ParentReference, r.IntN(6))
		targets := make([]gatewayv1.LocalPolicyTargetReferenceWithSectionName, len(refs))
		localities := make([]string, len(refs))
		for i := range refs {
			section, port := sections[r.IntN(3)], gatewayv1.PortNumber(r.IntN(3))
			name := gatewayv1.ObjectName(fmt.Sprint(r.IntN(2)))
			refs[i] = gatewayv1.ParentReference{Name: name, SectionName: &section, Port: &port}
			targets[i] = gatewayv1.LocalPolicyTargetReferenceWithSectionName{
				LocalPolicyTargetReference: gatewayv1.LocalPolicyTargetReference{Name: name}, SectionName: &section,
			}
			localities[i] = []string{"a", "b", "*", "a/*", "a/x", "a/x/1", "b/x/*", "aa"}[r.IntN(8)]
		}
		parents, policies, places := &checker{}, &checker{}, &checker{}
		parents.parentReferences(refs, "p")
		policies.policyTargets(gatewayv1.BackendTLSPolicySpec{TargetRefs: targets}, "p")
		places.localities(localities, func(i int) string { return field.Index("p", i) })
		for i := range refs {
			parent, policy, place := false, false, false
			for j := range i {
				a, b := refs[i], refs[j]
				s1, s2, p1, p2 := *a.SectionName, *b.SectionName, *a.Port, *b.Port
				same := a.Name == b.Name
				parent = parent || same && ((s1 == "") != (s2 == "") || (p1 == 0) != (p2 == 0) || s1 == s2 && p1 == p2)
				policy = policy || same && (s1 == "" || s2 == "" || s1 == s2)
				x, y := strings.TrimSuffix(localities[i], "*"), strings.TrimSuffix(localities[j], "*")
				within := func(a, b string) bool {
					return b == "" || a == b || strings.HasPrefix(a, strings.TrimSuffix(b, "/")+"/")
				}
				place = place || within(x, y) || within(y, x)
			}
			for _, c := range []struct {
				errs []field.Error
				want bool
				path string
			}{{parents.errs, parent, field.Index("p", i)}, {policies.errs, policy, field.Index("p.targetRefs", i) + ".sectionName"}, {places.errs, place, field.Index("p", i)}} {
				if got := slices.ContainsFunc(c.errs, func(e field.Error) bool { return e.Path == c.path }); got != c.want {
					t.Fatalf("%v %v %q: error at %s: %v, want %v; all errors: %v", refs, targets, localities, c.path, got, c.want, c.errs)
				}
			}
		}
	}
}

// TestListedWarnings checks that Validate counts the warnings that it does not list.
func TestListedWarnings(t *testing.T) {
	t.Parallel()
	hosts := slices.Repeat([]string{"catalog.example.com"}, 100)
	errs, warnings := Object(&model.Config{
		Key:  model.Key{Kind: model.ServiceEntry, Namespace: "a", Name: "b"},
		Spec: &networkingv1alpha3.ServiceEntry{Hosts: hosts, Resolution: networkingv1alpha3.ServiceEntry_DNS},
	})
	const want = "80 more warnings are not listed: correct the others first"
	if len(errs) > 0 || len(warnings) != field.MaxListed+1 || warnings[field.MaxListed].Error() != want {
		t.Errorf("errors %v, warnings %v", errs, warnings)
	}
}
