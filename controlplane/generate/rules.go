// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"fmt"
	"slices"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// rules makes the routes of a virtual host from its VirtualService, up to the
// first one that takes every request.
func (b *routeBuilder) rules(h *virtualHost) []*routev3.Route {
	var out []*routev3.Route
	for i, in := range h.rules.Spec.GetHttp() {
		matches := in.GetMatch()
		if len(matches) == 0 {
			matches = []*networkingv1alpha3.HTTPMatchRequest{nil}
		}
		for _, m := range matches {
			if !b.applies(m, h.port) {
				continue
			}
			match, err := routeMatch(m)
			if err == nil {
				err = check(match)
			}
			if err != nil {
				b.spoilt(h, i, err)
				continue
			}
			route := b.route(h, in, m, match)
			if err := checkRoute(route); err != nil {
				// Requests of this route must not fall through to another
				// one that was not meant for them.
				b.spoilt(h, i, err)
				route = &routev3.Route{Name: "invalid", Match: match, Action: respond(503, "the route of the VirtualService is not valid\n")}
			}
			out = append(out, route)
			if takesAll(match) {
				return out
			}
		}
	}
	return out
}

// check finds out whether Envoy, or the encoding, would refuse a message.
func check(msg interface {
	proto.Message
	Validate() error
},
) error {
	if err := msg.Validate(); err != nil {
		return err
	}
	_, err := proto.Marshal(msg)
	return err
}

func checkRoute(route *routev3.Route) error {
	if rewrite := route.GetRoute().GetRegexRewrite(); rewrite != nil {
		if err := checkRegex("rewrite.uriRegexRewrite.match", rewrite.GetPattern().GetRegex()); err != nil {
			return err
		}
	}
	return check(route)
}

// spoilt records that a rule cannot be served as it stands.
func (b *routeBuilder) spoilt(h *virtualHost, rule int, err error) {
	p := left(h.rules.Config.Key, fmt.Errorf("spec.http[%d]: %w", rule, err))
	p.Source = h.rules.Config.Source
	if !slices.Contains(b.problems, p) {
		b.problems = append(b.problems, p)
	}
}

// applies evaluates what a match says about the caller and the port.
func (b *routeBuilder) applies(m *networkingv1alpha3.HTTPMatchRequest, port uint32) bool {
	if gateways := m.GetGateways(); len(gateways) > 0 && !slices.Contains(gateways, "mesh") {
		return false
	}
	if m.GetPort() != 0 && m.GetPort() != port {
		return false
	}
	proxy := b.scope.proxy
	if ns := m.GetSourceNamespace(); ns != "" && ns != proxy.Namespace {
		return false
	}
	return model.Selects(m.GetSourceLabels(), proxy.Labels)
}

// route makes one route of a rule.
func (b *routeBuilder) route(h *virtualHost, in *networkingv1alpha3.HTTPRoute, m *networkingv1alpha3.HTTPMatchRequest, match *routev3.RouteMatch) *routev3.Route {
	route := &routev3.Route{Name: in.GetName(), Match: match, Decorator: &routev3.Decorator{Operation: hostPort(h.host, h.port) + pathPattern(m)}}
	if name := m.GetName(); name != "" {
		route.Name += "." + name
	}
	b.applyHeaders(route, in.GetHeaders())
	switch {
	case in.GetRedirect() != nil:
		route.Action = redirect(in.GetRedirect(), h.port)
	case in.GetDirectResponse() != nil:
		route.Action = directResponse(in.GetDirectResponse())
	case in.GetDelegate() != nil || len(in.GetRoute()) == 0:
		route.Action = respond(503, "the route of the VirtualService has no destination\n")
	default:
		b.forward(route, h, in)
	}
	return route
}

// applyHeaders sets the header operations of a route.
func (b *routeBuilder) applyHeaders(route *routev3.Route, headers *networkingv1alpha3.Headers) {
	request, response := headerOperations(headers.GetRequest()), headerOperations(headers.GetResponse())
	route.RequestHeadersToAdd = append(route.RequestHeadersToAdd, request.add...)
	route.RequestHeadersToRemove = append(route.RequestHeadersToRemove, request.remove...)
	route.ResponseHeadersToAdd = append(route.ResponseHeadersToAdd, response.add...)
	route.ResponseHeadersToRemove = append(route.ResponseHeadersToRemove, response.remove...)
}

// pathPattern is the path of a match for people.
func pathPattern(m *networkingv1alpha3.HTTPMatchRequest) string {
	switch uri := m.GetUri().GetMatchType().(type) {
	case *networkingv1alpha3.StringMatch_Exact:
		return uri.Exact
	case *networkingv1alpha3.StringMatch_Prefix:
		return uri.Prefix + "*"
	}
	return "/*"
}
