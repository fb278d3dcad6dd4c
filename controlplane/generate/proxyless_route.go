// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"regexp"
	"slices"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// proxylessRoutes returns one route configuration for each host and port.
func (g *Generator) proxylessRoutes(s *target, prev *xds.Set) *xds.Set {
	b := g.newRouteBuilder(s, g.view(s))
	// The builder builds routes for Envoy; forGRPC converts them.
	p := &part{}
	for _, h := range proxylessHosts(b) {
		h.domains = []string{"*"} // a client requests the routes of the host that it dials
		vh := b.build(h)
		if vh.VirtualHost == nil {
			continue
		}
		var routes []*routev3.Route
		for _, r := range vh.GetRoutes() {
			routes = append(routes, forGRPC(r)...)
		}
		vh.Routes = routes
		name := envoyconf.OutboundName(h.Port, "", h.Name)
		r, err := g.table.Put(xds.TypeRoute, name, &routev3.RouteConfiguration{Name: name, VirtualHosts: []*routev3.VirtualHost{vh.VirtualHost}}, vh.from)
		p.take(h, r, err)
	}
	return xds.NewSet(prev, p.resources, slices.Concat(b.Problems, p.problems))
}

// forGRPC converts a route to gRPC's rules (gRFC A28). It returns no route if no call can
// match it, and several if they are needed for the same effect.
func forGRPC(r *routev3.Route) []*routev3.Route {
	match := r.GetMatch()
	if len(match.GetQueryParameters()) > 0 || !takesPOST(match) {
		return nil // calls have no query and always use POST
	}
	bySegments(match)
	forAction(r.GetRoute())
	faultAlone(r)
	return withoutValues(r)
}

// takesPOST removes the method condition from a match and reports whether the condition allows
// POST, the method of all calls. gRPC does not match methods.
func takesPOST(match *routev3.RouteMatch) bool {
	takes := true
	match.Headers = slices.DeleteFunc(match.GetHeaders(), func(h *routev3.HeaderMatcher) bool {
		if h.GetName() != ":method" {
			return false
		}
		takes = takes && (h.GetStringMatch() == nil || matches(h.GetStringMatch(), "POST")) != h.GetInvertMatch()
		return true
	})
	return takes
}

func matches(m *matcherv3.StringMatcher, value string) bool {
	switch p := m.GetMatchPattern().(type) {
	case *matcherv3.StringMatcher_Exact:
		return p.Exact == value
	case *matcherv3.StringMatcher_Prefix:
		return len(p.Prefix) <= len(value) && value[:len(p.Prefix)] == p.Prefix
	case *matcherv3.StringMatcher_SafeRegex:
		whole, err := regexp.Compile("^(?:" + p.SafeRegex.GetRegex() + ")$")
		return err == nil && whole.MatchString(value)
	}
	return false
}

// bySegments replaces a prefix of whole path segments with a regular expression. gRPC rejects all
// routes if one has such a prefix.
func bySegments(match *routev3.RouteMatch) {
	prefix := match.GetPathSeparatedPrefix()
	if prefix == "" {
		return
	}
	expr := regexp.QuoteMeta(prefix) + "(/.*)?"
	if match.GetCaseSensitive() != nil && !match.GetCaseSensitive().GetValue() {
		expr = "(?i)" + expr // gRPC applies the case option to paths and prefixes only
	}
	match.PathSpecifier = &routev3.RouteMatch_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: expr}}
}

// forAction sets the timeout where gRPC reads it (gRFC A31), regardless of the port's protocol. It
// replaces hashing by the caller's address with hashing by channel, which is equivalent for a
// client that is not a proxy.
func forAction(action *routev3.RouteAction) {
	if action == nil {
		return
	}
	action.MaxStreamDuration = &routev3.RouteAction_MaxStreamDuration{GrpcTimeoutHeaderMax: action.GetTimeout()}
	for _, h := range action.GetHashPolicy() {
		if h.GetConnectionProperties().GetSourceIp() {
			h.PolicySpecifier = &routev3.RouteAction_HashPolicy_FilterState_{
				FilterState: &routev3.RouteAction_HashPolicy_FilterState{Key: "io.grpc.channel_id"},
			}
		}
	}
}

// faultAlone removes all filter settings of a route except the fault filter, which is the only one
// that a client may support. Any other would make it reject all routes. Clients that do not
// support the fault filter ignore it.
func faultAlone(r *routev3.Route) {
	fault := r.GetTypedPerFilterConfig()[envoyconf.FaultFilter]
	r.TypedPerFilterConfig = nil
	if fault != nil {
		r.TypedPerFilterConfig = map[string]*anypb.Any{
			envoyconf.FaultFilter: envoyconf.Pack(&routev3.FilterConfig{Config: fault, IsOptional: true}),
		}
	}
}

// maxWithout limits the number of headers of a route that must not have a given value.
const maxWithout = 6

// withoutValues returns one route for each way in which a call can satisfy the inverted header
// matches of a route. In gRPC, a missing header matches nothing, not even an inverted match. Each
// such header therefore becomes two alternatives: the header is missing, or it has another value.
// A route with more than maxWithout such headers matches only calls that have all of them.
func withoutValues(r *routev3.Route) []*routev3.Route {
	out := []*routev3.Route{r}
	done := 0
	for i, h := range r.GetMatch().GetHeaders() {
		if !h.GetTreatMissingHeaderAsEmpty() {
			continue
		}
		if done++; done > maxWithout {
			break
		}
		for _, with := range out {
			absent := proto.Clone(with).(*routev3.Route)
			absent.Match.Headers[i] = &routev3.HeaderMatcher{
				Name: h.GetName(), InvertMatch: true,
				HeaderMatchSpecifier: &routev3.HeaderMatcher_PresentMatch{PresentMatch: true},
			}
			out = append(out, absent)
		}
	}
	return out
}
