// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package route

import (
	"strings"

	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
)

// claimPath returns the path of the claim that a header name denotes, "@request.auth.claims.a.b"
// or "@request.auth.claims[a][b]". It returns nil for other header names.
func claimPath(name string) []string {
	const prefix = "@request.auth.claims"
	if len(name) <= len(prefix)+1 || !strings.EqualFold(name[:len(prefix)], prefix) {
		return nil
	}
	rest := name[len(prefix):]
	switch {
	case rest[0] == '.':
		return strings.Split(rest[1:], ".")
	case rest[0] == '[' && strings.HasSuffix(rest, "]"):
		return strings.Split(rest[1:len(rest)-1], "][")
	}
	return nil
}

// claimMatch returns a matcher for a claim that is a string, or a list that contains one.
func claimMatch(claim []string, in *networkingv1alpha3.StringMatch, invert bool) (*matcherv3.MetadataMatcher, error) {
	m, err := stringMatch("headers.@request.auth.claims."+strings.Join(claim, "."), in)
	out := &matcherv3.MetadataMatcher{Filter: envoyconf.TokenFilter, Invert: invert}
	for _, key := range append([]string{envoyconf.TokenPayload}, claim...) {
		out.Path = append(out.Path, &matcherv3.MetadataMatcher_PathSegment{Segment: &matcherv3.MetadataMatcher_PathSegment_Key{Key: key}})
	}
	if m == nil {
		out.Value = &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_PresentMatch{PresentMatch: true}}
		return out, err
	}
	value := &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_StringMatch{StringMatch: m}}
	list := &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_ListMatch{
		ListMatch: &matcherv3.ListMatcher{MatchPattern: &matcherv3.ListMatcher_OneOf{OneOf: value}},
	}}
	out.Value = &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_OrMatch{
		OrMatch: &matcherv3.OrMatcher{ValueMatchers: []*matcherv3.ValueMatcher{value, list}},
	}}
	return out, err
}
