// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package config

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
)

// mostShadowed bounds the comparison of matches, which looks at pairs.
const mostShadowed = 1000

// shadow is a match of an earlier route.
type shadow[M proto.Message] struct {
	path  string
	match M
}

// shadowedRoutes warns of routes and matches that no request reaches, because
// earlier ones take all of theirs.
func (c *checker) shadowedRoutes(vs *networkingv1alpha3.VirtualService) {
	http := make([][]*networkingv1alpha3.HTTPMatchRequest, len(vs.GetHttp()))
	for i, r := range vs.GetHttp() {
		http[i] = bare(r.GetMatch())
	}
	shadowed(c, "spec.http", http, httpCovers)
	tls := make([][]*networkingv1alpha3.TLSMatchAttributes, len(vs.GetTls()))
	for i, r := range vs.GetTls() {
		tls[i] = r.GetMatch()
	}
	shadowed(c, "spec.tls", tls, func(a, b *networkingv1alpha3.TLSMatchAttributes) bool { return proto.Equal(a, b) })
	tcp := make([][]*networkingv1alpha3.L4MatchAttributes, len(vs.GetTcp()))
	for i, r := range vs.GetTcp() {
		tcp[i] = r.GetMatch()
	}
	shadowed(c, "spec.tcp", tcp, func(a, b *networkingv1alpha3.L4MatchAttributes) bool {
		return proto.Equal(a, b) || !hasAny(a)
	})
}

// bare gives matches without what decides nothing.
func bare(matches []*networkingv1alpha3.HTTPMatchRequest) []*networkingv1alpha3.HTTPMatchRequest {
	out := make([]*networkingv1alpha3.HTTPMatchRequest, 0, len(matches))
	for _, m := range matches {
		m, _ = proto.Clone(m).(*networkingv1alpha3.HTTPMatchRequest)
		if m == nil {
			m = &networkingv1alpha3.HTTPMatchRequest{}
		}
		m.Name, m.StatPrefix = "", ""
		out = append(out, m)
	}
	return out
}

// httpCovers reports whether each request of match b is one of match a.
func httpCovers(a, b *networkingv1alpha3.HTTPMatchRequest) bool {
	if proto.Equal(a, b) {
		return true
	}
	if a.GetUri() != nil {
		prefix, ok := a.GetUri().GetMatchType().(*networkingv1alpha3.StringMatch_Prefix)
		if !ok || prefix.Prefix == "" {
			return false
		}
		path := b.GetUri().GetPrefix()
		if path == "" {
			path = b.GetUri().GetExact()
		}
		switch {
		case prefix.Prefix == "/":
		case path == "" || !strings.HasPrefix(path, prefix.Prefix) || b.GetIgnoreUriCase() && !a.GetIgnoreUriCase():
			return false
		}
	}
	rest, _ := proto.Clone(a).(*networkingv1alpha3.HTTPMatchRequest)
	other, _ := proto.Clone(b).(*networkingv1alpha3.HTTPMatchRequest)
	rest.Uri, other.Uri, rest.IgnoreUriCase, other.IgnoreUriCase = nil, nil, false, false
	return !hasAny(rest) || proto.Equal(rest, other)
}

// shadowed warns of the routes of a list, given by their matches; a route
// without any takes everything.
func shadowed[M proto.Message](c *checker, path string, routes [][]M, covers func(a, b M) bool) {
	var before []shadow[M]
	compared := 0
	for i, matches := range routes {
		at := index(path, i)
		if len(matches) == 0 {
			if i+1 < len(routes) {
				c.warnf(index(path, i+1), "is never reached: %s has no match and takes everything; write it last", at)
			}
			return
		}
		taken := 0
		for j, m := range matches {
			here := index(at+".match", j)
			if compared += len(before); compared > mostShadowed*mostShadowed {
				return
			}
			if by := coveredBy(before, m, covers); by != "" {
				c.warnf(here, "is never reached: %s comes first and takes all that it matches; write it before that, or remove it", by)
				taken++
			}
			before = append(before, shadow[M]{path: here, match: m})
		}
		if taken == len(matches) {
			c.warnf(at, "is never reached: earlier routes take all that it matches (%s)", plural(taken, "match"))
		}
	}
}

func coveredBy[M proto.Message](before []shadow[M], m M, covers func(a, b M) bool) string {
	for _, s := range before {
		if covers(s.match, m) {
			return s.path
		}
	}
	return ""
}

func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ses", n, word)
}
