// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package gatewayapi

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// The kinds of path matches by precedence. The specification leaves the precedence of regular
// expressions open; here they precede matches of all paths.
const (
	pathAll = iota
	pathRegex
	pathPrefix
	pathExact
)

func texts[T ~string](list []T) []string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = string(s)
	}
	return out
}

func (c *converter) httpRoutes() {
	for _, o := range specs[gatewayv1.HTTPRouteSpec](c, model.HTTPRoute) {
		r := &route{Config: o.Config, hostnames: texts(o.spec.Hostnames), byHost: true}
		status := c.requests(r, o.spec.ParentRefs, len(o.spec.Rules), func(r *route, i int) *rule { return c.httpRule(r, &o.spec.Rules[i], i) })
		c.result.Status[o.Key] = &gatewayv1.HTTPRouteStatus{RouteStatus: status}
	}
}

// requests converts the rules of an HTTP or gRPC route for all its parents, and returns its
// status.
func (c *converter) requests(r *route, parents []gatewayv1.ParentReference, count int, convert func(r *route, i int) *rule) gatewayv1.RouteStatus {
	return c.convert(r, parents, func(r *route, places []attachment) {
		var rules []*rule
		for i := range count {
			rules = append(rules, convert(r, i))
		}
		for _, at := range places {
			c.join(r, at, layerHTTP, entriesOf(rules, at))
		}
	})
}

// rule is a rule of an HTTPRoute or GRPCRoute with its matches.
type rule struct {
	matches []match
	// make returns the route of a match at a port.
	make func(m match, port uint32, scheme string) *networkingv1alpha3.HTTPRoute
}

// match is one match of a rule.
type match struct {
	weight
	in *networkingv1alpha3.HTTPMatchRequest
	// prefix is the path prefix without a trailing slash, for prefix matches.
	prefix string
}

// entriesOf returns the rules as entries for one attachment.
func entriesOf(rules []*rule, at attachment) []entry {
	port, scheme := at.port, "http"
	if l := at.listener; l != nil {
		port = uint32(l.Port)
		if l.Protocol == gatewayv1.HTTPSProtocolType {
			scheme = "https"
		}
	}
	var out []entry
	position := 0
	for _, r := range rules {
		for _, m := range r.matches {
			made := r.make(m, port, scheme)
			in, _ := proto.Clone(m.in).(*networkingv1alpha3.HTTPMatchRequest)
			if at.service != nil {
				in.Port = at.port
			}
			made.Match = []*networkingv1alpha3.HTTPMatchRequest{in}
			w := m.weight
			w.position = position
			position++
			out = append(out, entry{weight: w, route: made})
		}
	}
	return out
}

// httpRule converts one rule.
func (c *converter) httpRule(r *route, in *gatewayv1.HTTPRouteRule, position int) *rule {
	base := &networkingv1alpha3.HTTPRoute{Name: fmt.Sprintf("%s.%s.%d", r.Namespace, r.Name, position)}
	if in.Name != nil {
		base.Name = fmt.Sprintf("%s.%s.%s", r.Namespace, r.Name, *in.Name)
	}
	f := c.filters(r, in.Filters, fmt.Sprintf("spec.rules[%d].filters", position))
	base.Headers, base.Mirrors, base.CorsPolicy = f.headers.orNil(), f.mirrors, f.cors
	switch {
	case f.invalid:
		base.DirectResponse = unserved()
	case f.redirect == nil:
		refs := make([]backendRef, len(in.BackendRefs))
		for i, b := range in.BackendRefs {
			refs[i] = backendRef{b.BackendRef, b.Filters}
		}
		base.Route = c.destinations(r, refs, fmt.Sprintf("spec.rules[%d].backendRefs", position))
		if base.Route == nil {
			base.DirectResponse = unserved()
		}
	}
	if len(base.Route) > 0 {
		timeouts(base, in.Timeouts, in.Retry)
	}
	if in.SessionPersistence != nil {
		c.problem(r.Config, fmt.Sprintf("spec.rules[%d].sessionPersistence has no effect in this version: use consistentHash.httpCookie of a DestinationRule", position))
	}
	out := &rule{make: func(m match, port uint32, scheme string) *networkingv1alpha3.HTTPRoute {
		made, _ := proto.Clone(base).(*networkingv1alpha3.HTTPRoute)
		switch {
		case base.DirectResponse != nil:
		case f.redirect != nil:
			made.Redirect = redirect(f.redirect, m, port, scheme)
		case f.rewrite != nil:
			made.Rewrite = rewrite(f.rewrite, m)
		}
		return made
	}}
	matches := in.Matches
	if len(matches) == 0 {
		matches = []gatewayv1.HTTPRouteMatch{{}}
	}
	for _, m := range matches {
		out.matches = append(out.matches, httpMatch(m))
	}
	return out
}

// unserved returns the response of a rule that cannot be applied.
func unserved() *networkingv1alpha3.HTTPDirectResponse {
	return &networkingv1alpha3.HTTPDirectResponse{Status: 500}
}

func exactly(s string) *networkingv1alpha3.StringMatch {
	return &networkingv1alpha3.StringMatch{MatchType: &networkingv1alpha3.StringMatch_Exact{Exact: s}}
}

func like(expr string) *networkingv1alpha3.StringMatch {
	return &networkingv1alpha3.StringMatch{MatchType: &networkingv1alpha3.StringMatch_Regex{Regex: expr}}
}

func startingWith(s string) *networkingv1alpha3.StringMatch {
	return &networkingv1alpha3.StringMatch{MatchType: &networkingv1alpha3.StringMatch_Prefix{Prefix: s}}
}

// httpMatch converts a match.
func httpMatch(in gatewayv1.HTTPRouteMatch) match {
	m := match{in: &networkingv1alpha3.HTTPMatchRequest{}}
	kind, value := gatewayv1.PathMatchPathPrefix, "/"
	if in.Path != nil {
		kind, value = orElse(in.Path.Type, kind), orElse(in.Path.Value, value)
	}
	switch kind {
	case gatewayv1.PathMatchExact:
		m.in.Uri, m.path, m.length = exactly(value), pathExact, len(value)
	case gatewayv1.PathMatchRegularExpression:
		m.in.Uri, m.path, m.length = like(value), pathRegex, len(value)
	default:
		m.setPrefix(value)
	}
	for _, h := range in.Headers {
		// The first of several matches for the same header wins.
		if lower := strings.ToLower(string(h.Name)); m.in.Headers[lower] == nil {
			m.addHeader(lower, h.Value, orElse(h.Type, gatewayv1.HeaderMatchExact) == gatewayv1.HeaderMatchRegularExpression)
		}
	}
	for _, q := range in.QueryParams {
		if m.in.QueryParams[string(q.Name)] != nil {
			continue
		}
		if m.in.QueryParams == nil {
			m.in.QueryParams = map[string]*networkingv1alpha3.StringMatch{}
		}
		m.in.QueryParams[string(q.Name)] = exactly(q.Value)
		if orElse(q.Type, gatewayv1.QueryParamMatchExact) == gatewayv1.QueryParamMatchRegularExpression {
			m.in.QueryParams[string(q.Name)] = like(q.Value)
		}
	}
	if in.Method != nil {
		m.in.Method, m.method = exactly(string(*in.Method)), true
	}
	m.headers, m.queries = len(m.in.Headers), len(m.in.QueryParams)
	return m
}

func (m *match) setPrefix(value string) {
	m.prefix = strings.TrimRight(value, "/")
	m.in.Uri, m.path, m.length = startingWith("/"), pathAll, 0
	if m.prefix != "" {
		m.in.Uri, m.path, m.length = startingWith(m.prefix), pathPrefix, len(m.prefix)
	}
}

func (m *match) addHeader(name, value string, regex bool) {
	if m.in.Headers == nil {
		m.in.Headers = map[string]*networkingv1alpha3.StringMatch{}
	}
	m.in.Headers[name] = exactly(value)
	if regex {
		m.in.Headers[name] = like(value)
	}
}
