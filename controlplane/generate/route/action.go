// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package route

import (
	"cmp"
	"math"
	"regexp"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// forward makes the route send requests to its destinations.
func (b *Builder) forward(route *routev3.Route, h *Host, in *networkingv1alpha3.HTTPRoute) {
	action := &routev3.RouteAction{RetryPolicy: retryPolicy(in.GetRetries(), b.Mesh.Config)}
	host := authority(in.GetHeaders().GetRequest())
	if r := in.GetRewrite(); r != nil {
		rewritePath(action, r, route.GetMatch())
		host = cmp.Or(r.GetAuthority(), host)
	}
	dests := weighted(in.GetRoute())
	targets := make([]target, 0, len(dests))
	for _, d := range dests {
		targets = append(targets, b.target(d.GetDestination(), h))
	}
	switch len(dests) {
	case 0:
		route.Action = Respond(503, "all destinations of the route have the weight 0\n")
		return
	case 1:
		action.ClusterSpecifier = &routev3.RouteAction_Cluster{Cluster: targets[0].cluster()}
		b.applyHeaders(route, dests[0].GetHeaders())
		route.TypedPerFilterConfig = b.session(targets[0].service, h.Service)
		host = cmp.Or(authority(dests[0].GetHeaders().GetRequest()), host)
	default:
		action.ClusterSpecifier = &routev3.RouteAction_WeightedClusters{WeightedClusters: b.split(dests, targets, h)}
	}
	b.applyTimeout(action, in.GetTimeout(), b.servesHTTP2(h.Service, h.Port) || slices.ContainsFunc(targets, func(t target) bool { return b.servesHTTP2(t.service, t.port) }))
	if host != "" {
		action.HostRewriteSpecifier = &routev3.RouteAction_HostRewriteLiteral{HostRewriteLiteral: host}
	}
	if h.Rules.Config.Annotations[semanticsAnnotation] == "gateway" {
		// The Gateway API requires this status for destinations that do not exist.
		action.ClusterNotFoundResponseCode = routev3.RouteAction_INTERNAL_SERVER_ERROR
	}
	action.RequestMirrorPolicies = b.mirrors(in, h)
	action.HashPolicy = b.hashPolicies(targets...)
	route.Action = &routev3.Route_Route{Route: action}
}

// weighted removes destinations of weight 0, unless there is only one destination.
func weighted(dests []*networkingv1alpha3.HTTPRouteDestination) []*networkingv1alpha3.HTTPRouteDestination {
	if len(dests) == 1 {
		return dests
	}
	var out []*networkingv1alpha3.HTTPRouteDestination
	for _, d := range dests {
		if d.GetWeight() > 0 {
			out = append(out, d)
		}
	}
	return out
}

// split divides requests among destinations by weight.
func (b *Builder) split(dests []*networkingv1alpha3.HTTPRouteDestination, targets []target, h *Host) *routev3.WeightedCluster {
	out := &routev3.WeightedCluster{}
	for i, d := range dests {
		request, response := b.headerOperations(d.GetHeaders().GetRequest()), b.headerOperations(d.GetHeaders().GetResponse())
		c := &routev3.WeightedCluster_ClusterWeight{
			Name:                    targets[i].cluster(),
			Weight:                  wrapperspb.UInt32(uint32(d.GetWeight())),
			TypedPerFilterConfig:    b.session(targets[i].service, h.Service),
			RequestHeadersToAdd:     request.add,
			RequestHeadersToRemove:  request.remove,
			ResponseHeadersToAdd:    response.add,
			ResponseHeadersToRemove: response.remove,
		}
		if host := authority(d.GetHeaders().GetRequest()); host != "" {
			c.HostRewriteSpecifier = &routev3.WeightedCluster_ClusterWeight_HostRewriteLiteral{HostRewriteLiteral: host}
		}
		out.Clusters = append(out.Clusters, c)
	}
	return out
}

// target is a resolved destination.
type target struct {
	host    string
	subset  string
	port    uint32
	service *model.Service // nil if the proxy sees none
}

// cluster returns the name of the target's cluster. It need not exist: requests to a missing
// cluster receive 503.
func (t target) cluster() string { return envoyconf.OutboundName(t.port, t.subset, t.host) }

func (b *Builder) target(dest *networkingv1alpha3.Destination, h *Host) target {
	t := target{
		host:   b.Mesh.ResolveHost(dest.GetHost(), h.Rules.Config.Namespace),
		subset: dest.GetSubset(), port: dest.GetPort().GetNumber(),
	}
	t.service = b.Service(t.host)
	if t.port == 0 {
		t.port = h.Port
		if t.service != nil && len(t.service.Ports) == 1 {
			t.port = t.service.Ports[0].Number
			b.sources.Add(t.service.Source)
		}
	}
	return t
}

// mirrors returns the policies that mirror requests to other destinations.
func (b *Builder) mirrors(in *networkingv1alpha3.HTTPRoute, h *Host) []*routev3.RouteAction_RequestMirrorPolicy {
	mirrors := in.GetMirrors()
	if dest := in.GetMirror(); dest != nil && len(mirrors) == 0 {
		share := in.GetMirrorPercentage()
		//lint:ignore SA1019 users still write it
		if old := in.GetMirrorPercent(); share == nil && old != nil {
			share = &networkingv1alpha3.Percent{Value: float64(old.GetValue())}
		}
		mirrors = []*networkingv1alpha3.HTTPMirrorPolicy{{Destination: dest, Percentage: share}}
	}
	var out []*routev3.RouteAction_RequestMirrorPolicy
	for _, m := range mirrors {
		percent := 100.0
		if m.GetPercentage() != nil {
			percent = m.GetPercentage().GetValue()
		}
		share := fraction(percent)
		if share.GetNumerator() == 0 {
			continue
		}
		out = append(out, &routev3.RouteAction_RequestMirrorPolicy{
			Cluster:         b.target(m.GetDestination(), h).cluster(),
			TraceSampled:    wrapperspb.Bool(false),
			RuntimeFraction: &corev3.RuntimeFractionalPercent{DefaultValue: share},
		})
	}
	return out
}

// fraction converts a percentage to parts per million. Values out of range are limited to the
// nearest valid one.
func fraction(percent float64) *typev3.FractionalPercent {
	out := &typev3.FractionalPercent{Denominator: typev3.FractionalPercent_MILLION}
	if percent > 0 { // false for NaN
		out.Numerator = uint32(math.Round(min(percent, 100) * 10_000))
	}
	return out
}

func rewritePath(action *routev3.RouteAction, in *networkingv1alpha3.HTTPRewrite, match *routev3.RouteMatch) {
	switch r := in.GetUriRegexRewrite(); {
	case r != nil:
		action.RegexRewrite = &matcherv3.RegexMatchAndSubstitute{
			Pattern: &matcherv3.RegexMatcher{Regex: r.GetMatch()}, Substitution: r.GetRewrite(),
		}
	case in.GetUri() == "/" && match.GetPathSeparatedPrefix() != "":
		action.RegexRewrite = cutPrefix(match.GetPathSeparatedPrefix())
	default:
		action.PrefixRewrite = in.GetUri()
	}
}

// cutPrefix removes whole segments from the path. Replacing them with "/" would leave two slashes.
func cutPrefix(prefix string) *matcherv3.RegexMatchAndSubstitute {
	return &matcherv3.RegexMatchAndSubstitute{
		Pattern: &matcherv3.RegexMatcher{Regex: "^" + regexp.QuoteMeta(prefix) + "/?"}, Substitution: "/",
	}
}

// redirect makes the route redirect requests to another URL. Default ports of the scheme are
// omitted.
func (b *Builder) redirect(in *networkingv1alpha3.HTTPRedirect, h *Host, match *routev3.RouteMatch) *routev3.Route_Redirect {
	out := &routev3.RedirectAction{HostRedirect: in.GetAuthority()}
	switch segments := match.GetPathSeparatedPrefix(); {
	case in.GetPrefixRewrite() == "/" && segments != "":
		out.PathRewriteSpecifier = &routev3.RedirectAction_RegexRewrite{RegexRewrite: cutPrefix(segments)}
	case in.GetPrefixRewrite() != "" && match.GetPrefix() == "/" && bySegments(h.Rules.Config):
		// The prefix includes the slash before the first segment.
		out.PathRewriteSpecifier = &routev3.RedirectAction_PrefixRewrite{PrefixRewrite: strings.TrimRight(in.GetPrefixRewrite(), "/") + "/"}
	case in.GetPrefixRewrite() != "":
		out.PathRewriteSpecifier = &routev3.RedirectAction_PrefixRewrite{PrefixRewrite: in.GetPrefixRewrite()}
	case in.GetUri() != "":
		out.PathRewriteSpecifier = &routev3.RedirectAction_PathRedirect{PathRedirect: in.GetUri()}
	}
	scheme := in.GetScheme()
	if scheme != "" {
		out.SchemeRewriteSpecifier = &routev3.RedirectAction_SchemeRedirect{SchemeRedirect: scheme}
	} else if scheme = "http"; b.TLS {
		scheme = "https"
	}
	port := in.GetPort()
	if in.GetDerivePort() == networkingv1alpha3.HTTPRedirect_FROM_REQUEST_PORT {
		port = h.Port // Envoy's default is the port of the scheme
	}
	if !(port == 80 && scheme == "http") && !(port == 443 && scheme == "https") {
		out.PortRedirect = port
	}
	codes := map[uint32]routev3.RedirectAction_RedirectResponseCode{
		302: routev3.RedirectAction_FOUND, 303: routev3.RedirectAction_SEE_OTHER,
		307: routev3.RedirectAction_TEMPORARY_REDIRECT, 308: routev3.RedirectAction_PERMANENT_REDIRECT,
	}
	out.ResponseCode = codes[in.GetRedirectCode()] // the zero value is 301
	return &routev3.Route_Redirect{Redirect: out}
}

func directResponse(in *networkingv1alpha3.HTTPDirectResponse) *routev3.Route_DirectResponse {
	body := in.GetBody().GetString_()
	if b := in.GetBody().GetBytes(); b != nil {
		body = string(b)
	}
	if len(body) > MaxBody {
		return Respond(503, "the body of the direct response is longer than 1 MiB\n")
	}
	return Respond(in.GetStatus(), body)
}

// Respond returns a direct response, for which no request is forwarded.
func Respond(status uint32, body string) *routev3.Route_DirectResponse {
	out := &routev3.DirectResponseAction{Status: status}
	if body != "" {
		out.Body = &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: []byte(body)}}
	}
	return &routev3.Route_DirectResponse{DirectResponse: out}
}
