// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package route

import (
	"fmt"
	"slices"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/parts"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// Routes makes the routes of a virtual host from its VirtualService, up to the
// first one that takes every request.
func (b *Builder) Routes(h *Host) []*routev3.Route {
	var out []*routev3.Route
	for i, in := range h.Rules.Spec.GetHttp() {
		matches := in.GetMatch()
		if len(matches) == 0 {
			matches = []*networkingv1alpha3.HTTPMatchRequest{nil}
		}
		for _, m := range matches {
			if !b.applies(m, h.Port, h.Rules.Config.Namespace) {
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
				route = &routev3.Route{Name: "invalid", Match: match, Action: Respond(503, "the route of the VirtualService is not valid\n")}
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
func (b *Builder) spoilt(h *Host, rule int, err error) {
	p := parts.Left(h.Rules.Config.Key, fmt.Errorf("spec.http[%d]: %w", rule, err))
	p.Source = h.Rules.Config.Source
	if !slices.Contains(b.Problems, p) {
		b.Problems = append(b.Problems, p)
	}
}

// applies evaluates what a match says about the caller and the port.
func (b *Builder) applies(m *networkingv1alpha3.HTTPMatchRequest, port uint32, namespace string) bool {
	if gateways := m.GetGateways(); len(gateways) > 0 && !slices.ContainsFunc(gateways, func(name string) bool { return b.isGateway(name, namespace) }) {
		return false
	}
	if m.GetPort() != 0 && m.GetPort() != port {
		return false
	}
	proxy := b.Proxy
	if ns := m.GetSourceNamespace(); ns != "" && ns != proxy.Namespace {
		return false
	}
	return model.Selects(m.GetSourceLabels(), proxy.Labels)
}

// isGateway reports whether the routes are for what an object of the namespace
// calls name.
func (b *Builder) isGateway(name, namespace string) bool {
	return name == b.Gateway || name != Sidecars && snapshot.GatewayName(name, namespace) == b.Gateway
}

// route makes one route of a rule.
func (b *Builder) route(h *Host, in *networkingv1alpha3.HTTPRoute, m *networkingv1alpha3.HTTPMatchRequest, match *routev3.RouteMatch) *routev3.Route {
	route := &routev3.Route{Name: in.GetName(), Match: match, Decorator: &routev3.Decorator{Operation: parts.HostPort(h.Name, h.Port) + pathPattern(m)}}
	if name := m.GetName(); name != "" {
		route.Name += "." + name
	}
	b.applyHeaders(route, in.GetHeaders())
	switch {
	case in.GetRedirect() != nil:
		route.Action = redirect(in.GetRedirect(), h.Port)
	case in.GetDirectResponse() != nil:
		route.Action = directResponse(in.GetDirectResponse())
	case in.GetDelegate() != nil || len(in.GetRoute()) == 0:
		route.Action = Respond(503, "the route of the VirtualService has no destination\n")
	default:
		b.forward(route, h, in)
	}
	return route
}

// applyHeaders sets the header operations of a route.
func (b *Builder) applyHeaders(route *routev3.Route, headers *networkingv1alpha3.Headers) {
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
