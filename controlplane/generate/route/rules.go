// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package route

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// Routes builds the routes of a virtual host from its VirtualService, up to the first one that
// matches every request.
func (b *Builder) Routes(h *Host) []*routev3.Route {
	var out []*routev3.Route
	segments := bySegments(h.Rules.Config)
	for i, in := range h.Rules.Spec.GetHttp() {
		matches := in.GetMatch()
		if len(matches) == 0 {
			matches = []*networkingv1alpha3.HTTPMatchRequest{nil}
		}
		for _, m := range matches {
			if !b.applies(m, h.Port, h.Rules.Config.Namespace) {
				continue
			}
			match, err := routeMatch(m, segments)
			if err == nil {
				err = b.checkMatch(match)
			}
			if err != nil {
				b.invalidRule(h, i, err)
				continue
			}
			b.tooNew = nil
			route, err := b.route(h, in, m, match)
			for _, reason := range b.tooNew {
				b.warnRule(h, i, reason)
			}
			if err == nil {
				err = checkRoute(route) // includes the match
			}
			if err != nil {
				if err := check(match); err != nil {
					b.invalidRule(h, i, err)
					continue
				}
				// Requests for this route must not fall through to another route that was not
				// intended for them.
				b.invalidRule(h, i, err)
				route = &routev3.Route{Name: "invalid", Match: match, Action: Respond(503, "the route of the VirtualService is not valid\n")}
			}
			route.Metadata = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"istio": {Fields: map[string]*structpb.Value{
				"config": envoyconf.MadeFrom("virtual-service", h.Rules.Origin(i).Config.Key),
			}}}}
			out = append(out, route)
			b.sources.AddConfigs(h.Rules.Config, h.Rules.Origin(i).Config)
			if takesAll(match) {
				return out
			}
		}
	}
	return out
}

// checkMatch returns an error for conditions that sidecars do not support.
func (b *Builder) checkMatch(match *routev3.RouteMatch) error {
	if b.Gateway == Sidecars && len(match.GetDynamicMetadata()) > 0 {
		return errors.New("claims of tokens are available at gateways only")
	}
	return nil
}

// CheckHost returns an error if a virtual host is invalid. It does not check the routes, which
// [Builder.Routes] has checked.
func CheckHost(host *routev3.VirtualHost) error {
	routes := host.Routes
	host.Routes = nil
	err := check(host)
	host.Routes = routes
	return err
}

// check returns an error if Envoy or the encoder would reject a message.
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
	total := uint64(0)
	for _, c := range route.GetRoute().GetWeightedClusters().GetClusters() {
		total += uint64(c.GetWeight().GetValue())
	}
	if total > math.MaxUint32 {
		return fmt.Errorf("the weights of the route sum up to %d: at most %d is allowed", total, uint32(math.MaxUint32))
	}
	return check(route)
}

// invalidRule records the problem of a rule that cannot be served as written.
func (b *Builder) invalidRule(h *Host, route int, err error) {
	from := h.Rules.Origin(route)
	p := envoyconf.Left(from.Config.Key, fmt.Errorf("spec.http[%d]: %w", from.Rule, err))
	p.Source = from.Config.Source
	b.report(p)
}

// warnRule records the problem of a rule that is served without a part of it.
func (b *Builder) warnRule(h *Host, route int, reason string) {
	from := h.Rules.Origin(route)
	b.report(model.Problem{Object: from.Config.Key, Source: from.Config.Source, Warning: true, Reason: fmt.Sprintf("spec.http[%d].%s", from.Rule, reason)})
}

// report records a problem once.
func (b *Builder) report(p model.Problem) {
	if b.reported == nil {
		b.reported = make(map[model.Problem]bool)
	}
	if !b.reported[p] {
		b.reported[p] = true
		b.Problems = append(b.Problems, p)
	}
}

// applies evaluates the conditions of a match on the caller and the port. Conditions on the caller
// apply to sidecars only; on gateways the name of the Gateway is evaluated.
func (b *Builder) applies(m *networkingv1alpha3.HTTPMatchRequest, port uint32, namespace string) bool {
	if m.GetPort() != 0 && m.GetPort() != port {
		return false
	}
	if gateways := m.GetGateways(); len(gateways) > 0 {
		if !slices.ContainsFunc(gateways, func(name string) bool { return b.isGateway(name, namespace) }) {
			return false
		}
		if b.Gateway != Sidecars {
			return true
		}
	}
	if ns := m.GetSourceNamespace(); ns != "" && ns != b.Proxy.Namespace {
		return false
	}
	return model.Selects(m.GetSourceLabels(), b.Proxy.Labels)
}

// isGateway reports whether the routes are for the gateway that an object in the namespace refers
// to by name.
func (b *Builder) isGateway(name, namespace string) bool {
	return name == b.Gateway || name != Sidecars && snapshot.GatewayName(name, namespace) == b.Gateway
}

// route builds one route of a rule.
func (b *Builder) route(h *Host, in *networkingv1alpha3.HTTPRoute, m *networkingv1alpha3.HTTPMatchRequest, match *routev3.RouteMatch) (*routev3.Route, error) {
	route := &routev3.Route{Name: in.GetName(), Match: match, StatPrefix: m.GetStatPrefix()}
	if name := m.GetName(); name != "" {
		route.Name += "." + name
	}
	b.applyHeaders(route, in.GetHeaders())
	switch {
	case in.GetRedirect() != nil:
		route.Action = b.redirect(in.GetRedirect(), h, match)
	case in.GetDirectResponse() != nil:
		route.Action = directResponse(in.GetDirectResponse())
	case in.GetDelegate() != nil || len(in.GetRoute()) == 0:
		route.Action = Respond(503, "the route of the VirtualService has no destination\n")
	default:
		b.forward(route, h, in)
	}
	route.Decorator = &routev3.Decorator{Operation: operation(route, h)}
	return route, applyFilters(route, in)
}

// applyHeaders sets the header operations of a route.
func (b *Builder) applyHeaders(route *routev3.Route, headers *networkingv1alpha3.Headers) {
	request, response := b.headerOperations(headers.GetRequest()), b.headerOperations(headers.GetResponse())
	route.RequestHeadersToAdd = append(route.RequestHeadersToAdd, request.add...)
	route.RequestHeadersToRemove = append(route.RequestHeadersToRemove, request.remove...)
	route.ResponseHeadersToAdd = append(route.ResponseHeadersToAdd, response.add...)
	route.ResponseHeadersToRemove = append(route.ResponseHeadersToRemove, response.remove...)
}

// operation returns the name of the spans of a route: its destination, or its object if there are
// several destinations, and the path.
func operation(route *routev3.Route, h *Host) string {
	path := "/*"
	switch p := route.GetMatch().GetPathSpecifier().(type) {
	case *routev3.RouteMatch_Prefix:
		path = p.Prefix + "*"
	case *routev3.RouteMatch_PathSeparatedPrefix:
		path = p.PathSeparatedPrefix + "/*"
	case *routev3.RouteMatch_Path:
		path = p.Path
	case *routev3.RouteMatch_SafeRegex:
		path = p.SafeRegex.GetRegex()
	}
	// outbound|80|v1|host
	if name := strings.SplitN(route.GetRoute().GetCluster(), "|", 4); len(name) == 4 {
		return name[3] + ":" + name[1] + path
	}
	return h.Rules.Config.Name + ":" + envoyconf.Number(h.Port) + path
}
