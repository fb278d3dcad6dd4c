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

// grpcRoutes converts each GRPCRoute to routes of the paths /service/method.
func (c *converter) grpcRoutes() {
	for _, o := range specs[gatewayv1.GRPCRouteSpec](c, model.GRPCRoute) {
		r := &route{Config: o.Config, hostnames: texts(o.spec.Hostnames), byHost: true}
		status := c.requests(r, o.spec.ParentRefs, len(o.spec.Rules), func(r *route, i int) *rule { return c.grpcRule(r, &o.spec.Rules[i], i) })
		c.result.Status[o.Key] = &gatewayv1.GRPCRouteStatus{RouteStatus: status}
	}
}

func (c *converter) grpcRule(r *route, in *gatewayv1.GRPCRouteRule, position int) *rule {
	base := &networkingv1alpha3.HTTPRoute{Name: fmt.Sprintf("%s.%s.%d", r.Namespace, r.Name, position)}
	if in.Name != nil {
		base.Name = fmt.Sprintf("%s.%s.%s", r.Namespace, r.Name, *in.Name)
	}
	f := c.filters(r, grpcFilters(in.Filters), fmt.Sprintf("spec.rules[%d].filters", position))
	base.Headers, base.Mirrors = f.headers.orNil(), f.mirrors
	refs := make([]backendRef, len(in.BackendRefs))
	for i, b := range in.BackendRefs {
		refs[i] = backendRef{b.BackendRef, grpcFilters(b.Filters)}
	}
	if !f.invalid {
		base.Route = c.destinations(r, refs, fmt.Sprintf("spec.rules[%d].backendRefs", position))
	}
	if base.Route == nil {
		// The specification requires UNAVAILABLE, which gRPC clients derive from HTTP status 503.
		base.DirectResponse = &networkingv1alpha3.HTTPDirectResponse{Status: 503}
	}
	out := &rule{make: func(match, uint32, string) *networkingv1alpha3.HTTPRoute {
		made, _ := proto.Clone(base).(*networkingv1alpha3.HTTPRoute)
		return made
	}}
	matches := in.Matches
	if len(matches) == 0 {
		matches = []gatewayv1.GRPCRouteMatch{{}}
	}
	for _, m := range matches {
		out.matches = append(out.matches, grpcMatch(m))
	}
	return out
}

// grpcFilters converts the filters of a GRPCRoute to those of an HTTPRoute, which have the same
// names.
func grpcFilters(in []gatewayv1.GRPCRouteFilter) []gatewayv1.HTTPRouteFilter {
	var out []gatewayv1.HTTPRouteFilter
	for _, f := range in {
		out = append(out, gatewayv1.HTTPRouteFilter{
			Type: gatewayv1.HTTPRouteFilterType(f.Type), RequestHeaderModifier: f.RequestHeaderModifier,
			ResponseHeaderModifier: f.ResponseHeaderModifier, RequestMirror: f.RequestMirror, ExtensionRef: f.ExtensionRef,
		})
	}
	return out
}

func grpcMatch(in gatewayv1.GRPCRouteMatch) match {
	m := match{in: &networkingv1alpha3.HTTPMatchRequest{}}
	m.setPrefix("/")
	if in.Method != nil {
		service, method := deref(in.Method.Service), deref(in.Method.Method)
		regex := orElse(in.Method.Type, gatewayv1.GRPCMethodMatchExact) == gatewayv1.GRPCMethodMatchRegularExpression
		const any = "[^/]+"
		length := len(service) + len(method)
		switch {
		case service == "" && method == "":
		case regex, service == "":
			m.in.Uri = like("/" + orText(service, any) + "/" + orText(method, any))
			m.path, m.length = pathRegex, length
		case method == "":
			m.setPrefix("/" + service)
		default:
			m.in.Uri, m.path, m.length = exactly("/"+service+"/"+method), pathExact, length+2
		}
	}
	for _, h := range in.Headers {
		if lower := strings.ToLower(string(h.Name)); m.in.Headers[lower] == nil {
			m.addHeader(lower, h.Value, orElse(h.Type, gatewayv1.GRPCHeaderMatchExact) == gatewayv1.GRPCHeaderMatchRegularExpression)
		}
	}
	m.headers = len(m.in.Headers)
	return m
}

func orText(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
