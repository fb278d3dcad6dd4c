// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package route

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// routeMatch converts the conditions on the request; segments is the result of [bySegments]. A nil
// match matches everything.
func routeMatch(in *networkingv1alpha3.HTTPMatchRequest, segments bool) (*routev3.RouteMatch, error) {
	out := &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}}
	switch uri := in.GetUri().GetMatchType().(type) {
	case *networkingv1alpha3.StringMatch_Exact:
		out.PathSpecifier = &routev3.RouteMatch_Path{Path: uri.Exact}
	case *networkingv1alpha3.StringMatch_Prefix:
		out.PathSpecifier = &routev3.RouteMatch_Prefix{Prefix: uri.Prefix}
		if segments && uri.Prefix != "/" && uri.Prefix != "" {
			out.PathSpecifier = &routev3.RouteMatch_PathSeparatedPrefix{PathSeparatedPrefix: strings.TrimSuffix(uri.Prefix, "/")}
		}
	case *networkingv1alpha3.StringMatch_Regex:
		if err := checkRegex("uri", uri.Regex); err != nil {
			return nil, err
		}
		out.PathSpecifier = &routev3.RouteMatch_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: uri.Regex}}
	}
	if in.GetIgnoreUriCase() {
		out.CaseSensitive = wrapperspb.Bool(false)
	}
	if err := headerMatches(out, in); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(in.GetQueryParams())) {
		q := &routev3.QueryParameterMatcher{Name: name}
		m, err := stringMatch("queryParams."+name, in.GetQueryParams()[name])
		if err != nil {
			return nil, err
		}
		if m == nil {
			q.QueryParameterMatchSpecifier = &routev3.QueryParameterMatcher_PresentMatch{PresentMatch: true}
		} else {
			q.QueryParameterMatchSpecifier = &routev3.QueryParameterMatcher_StringMatch{StringMatch: m}
		}
		out.QueryParameters = append(out.QueryParameters, q)
	}
	return out, nil
}

// headerMatches adds the header matches: first those sorted by name, then the inverted ones, then
// the pseudo-headers.
func headerMatches(out *routev3.RouteMatch, in *networkingv1alpha3.HTTPMatchRequest) error {
	add := func(name string, match *networkingv1alpha3.StringMatch, invert bool) error {
		if claim := claimPath(name); claim != nil {
			m, err := claimMatch(claim, match, invert)
			out.DynamicMetadata = append(out.DynamicMetadata, m)
			return err
		}
		h := &routev3.HeaderMatcher{Name: name, InvertMatch: invert}
		m, err := stringMatch("headers."+name, match)
		if err != nil {
			return err
		}
		if m == nil {
			h.HeaderMatchSpecifier = &routev3.HeaderMatcher_PresentMatch{PresentMatch: true}
		} else {
			h.HeaderMatchSpecifier = &routev3.HeaderMatcher_StringMatch{StringMatch: m}
			// A request without the header does not have the value, either.
			h.TreatMissingHeaderAsEmpty = invert
		}
		out.Headers = append(out.Headers, h)
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(in.GetHeaders())) {
		if err := add(name, in.GetHeaders()[name], false); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(in.GetWithoutHeaders())) {
		if err := add(name, in.GetWithoutHeaders()[name], true); err != nil {
			return err
		}
	}
	pseudo := []struct {
		name  string
		match *networkingv1alpha3.StringMatch
	}{{":method", in.GetMethod()}, {":authority", in.GetAuthority()}, {":scheme", in.GetScheme()}}
	for _, p := range pseudo {
		if p.match == nil {
			continue
		}
		if err := add(p.name, p.match, false); err != nil {
			return err
		}
	}
	return nil
}

// stringMatch converts the match of a value. It returns nil if the value only has to be present.
func stringMatch(field string, in *networkingv1alpha3.StringMatch) (*matcherv3.StringMatcher, error) {
	switch m := in.GetMatchType().(type) {
	case *networkingv1alpha3.StringMatch_Exact:
		return envoyconf.Exactly(m.Exact), nil
	case *networkingv1alpha3.StringMatch_Prefix:
		if m.Prefix == "" {
			return nil, nil
		}
		return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: m.Prefix}}, nil
	case *networkingv1alpha3.StringMatch_Regex:
		if m.Regex == "*" || m.Regex == "" {
			return nil, nil
		}
		if err := checkRegex(field, m.Regex); err != nil {
			return nil, err
		}
		return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{
			SafeRegex: &matcherv3.RegexMatcher{Regex: m.Regex},
		}}, nil
	}
	return nil, nil
}

// checkRegex returns an error for an expression that Envoy would reject together with all other
// routes.
func checkRegex(field, expr string) error {
	if err := model.CheckRegex(expr); err != nil {
		return fmt.Errorf("regular expression of %s: %w", field, err)
	}
	return nil
}

// takesAll reports whether a match leaves no requests for later routes.
func takesAll(m *routev3.RouteMatch) bool {
	if len(m.GetHeaders())+len(m.GetQueryParameters())+len(m.GetDynamicMetadata()) > 0 {
		return false
	}
	if p, ok := m.GetPathSpecifier().(*routev3.RouteMatch_Prefix); ok {
		return p.Prefix == "/" || p.Prefix == ""
	}
	return m.GetSafeRegex().GetRegex() == ".*"
}
