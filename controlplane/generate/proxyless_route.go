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

// proxylessRoutes are one configuration for each host and port.
func (g *Generator) proxylessRoutes(s *target, prev *xds.Set) *xds.Set {
	b := g.newRouteBuilder(s, g.view(s))
	// The builder makes routes for an Envoy: forGRPC adapts them.
	p := &part{}
	for _, h := range proxylessHosts(b) {
		h.domains = []string{"*"} // a client subscribes to the routes of the host that it dials
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
		return nil // calls have no query, and are POST
	}
	bySegments(match)
	forAction(r.GetRoute())
	faultAlone(r)
	return withoutValues(r)
}

// takesPOST takes what a match says of the method out of it, and reports whether
// it lets POST through, which all calls are: gRPC shows matches no method.
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

// bySegments puts an expression in the place of a prefix of whole segments, for
// which gRPC would refuse all routes.
func bySegments(match *routev3.RouteMatch) {
	prefix := match.GetPathSeparatedPrefix()
	if prefix == "" {
		return
	}
	expr := regexp.QuoteMeta(prefix) + "(/.*)?"
	if match.GetCaseSensitive() != nil && !match.GetCaseSensitive().GetValue() {
		expr = "(?i)" + expr // gRPC counts the case for paths and prefixes only
	}
	match.PathSpecifier = &routev3.RouteMatch_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: expr}}
}

// forAction sets the timeout where gRPC looks for it (gRFC A31), whatever the
// port is said to speak, and hashes by the channel what is to be hashed by the
// address of the caller: it is the same thing for a client that is no proxy.
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

// faultAlone drops what a route says to filters, but for the one that a client
// may have: it would refuse all routes because of another. Who does not know this
// one goes without.
func faultAlone(r *routev3.Route) {
	fault := r.GetTypedPerFilterConfig()[envoyconf.FaultFilter]
	r.TypedPerFilterConfig = nil
	if fault != nil {
		r.TypedPerFilterConfig = map[string]*anypb.Any{
			envoyconf.FaultFilter: envoyconf.Pack(&routev3.FilterConfig{Config: fault, IsOptional: true}),
		}
	}
}

// maxWithout bounds the headers of a route that must not have a value.
const maxWithout = 6

// withoutValues makes a route of each way in which a call can lack the values
// that it must not have. To gRPC a header that is not there matches nothing, not
// even that it has another value, so each such header is one that is not there
// or has another value. A route with more of them than anybody writes takes only
// calls that have all headers.
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
