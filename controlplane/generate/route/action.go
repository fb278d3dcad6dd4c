// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package route

import (
	"math"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/parts"
)

// forward makes the route send requests to its destinations.
func (b *Builder) forward(route *routev3.Route, h *Host, in *networkingv1alpha3.HTTPRoute) {
	action := &routev3.RouteAction{RetryPolicy: retryPolicy(in.GetRetries(), b.Mesh.Config)}
	applyTimeout(action, in.GetTimeout(), h)
	var authority string
	if host := headerOperations(in.GetHeaders().GetRequest()).authority; host != "" {
		authority = host
	}
	if r := in.GetRewrite(); r != nil {
		rewritePath(action, r)
		if r.GetAuthority() != "" {
			authority = r.GetAuthority()
		}
	}
	dests := weighted(in.GetRoute())
	switch len(dests) {
	case 0:
		route.Action = Respond(503, "all destinations of the route have the weight 0\n")
		return
	case 1:
		action.ClusterSpecifier = &routev3.RouteAction_Cluster{Cluster: b.cluster(dests[0].GetDestination(), h)}
		b.applyHeaders(route, dests[0].GetHeaders())
		if host := headerOperations(dests[0].GetHeaders().GetRequest()).authority; host != "" {
			authority = host
		}
	default:
		action.ClusterSpecifier = &routev3.RouteAction_WeightedClusters{WeightedClusters: b.split(dests, h)}
	}
	if authority != "" {
		action.HostRewriteSpecifier = &routev3.RouteAction_HostRewriteLiteral{HostRewriteLiteral: authority}
	}
	action.RequestMirrorPolicies = b.mirrors(in, h)
	route.Action = &routev3.Route_Route{Route: action}
}

// weighted drops destinations of weight 0, unless there is only one.
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

// split divides requests between destinations by weight.
func (b *Builder) split(dests []*networkingv1alpha3.HTTPRouteDestination, h *Host) *routev3.WeightedCluster {
	out := &routev3.WeightedCluster{}
	for _, d := range dests {
		request, response := headerOperations(d.GetHeaders().GetRequest()), headerOperations(d.GetHeaders().GetResponse())
		c := &routev3.WeightedCluster_ClusterWeight{
			Name:                    b.cluster(d.GetDestination(), h),
			Weight:                  wrapperspb.UInt32(uint32(d.GetWeight())),
			RequestHeadersToAdd:     request.add,
			RequestHeadersToRemove:  request.remove,
			ResponseHeadersToAdd:    response.add,
			ResponseHeadersToRemove: response.remove,
		}
		if request.authority != "" {
			c.HostRewriteSpecifier = &routev3.WeightedCluster_ClusterWeight_HostRewriteLiteral{HostRewriteLiteral: request.authority}
		}
		out.Clusters = append(out.Clusters, c)
	}
	return out
}

// cluster names the cluster of a destination. Whether it exists shows when a
// request gets there: one that does not answers 503.
func (b *Builder) cluster(dest *networkingv1alpha3.Destination, h *Host) string {
	namespace := h.Rules.Config.Namespace
	host := b.Mesh.ResolveHost(dest.GetHost(), namespace)
	port := dest.GetPort().GetNumber()
	if port == 0 {
		port = h.Port
		if svc := b.Service(host); svc != nil && len(svc.Ports) == 1 {
			port = svc.Ports[0].Number
		}
	}
	return parts.OutboundName(port, dest.GetSubset(), host)
}

// mirrors sends copies of requests elsewhere.
func (b *Builder) mirrors(in *networkingv1alpha3.HTTPRoute, h *Host) []*routev3.RouteAction_RequestMirrorPolicy {
	mirrors := in.GetMirrors()
	if dest := in.GetMirror(); dest != nil && len(mirrors) == 0 {
		share := in.GetMirrorPercentage()
		//lint:ignore SA1019 people still write it
		if old := in.GetMirrorPercent(); share == nil && old != nil {
			share = &networkingv1alpha3.Percent{Value: float64(old.GetValue())}
		}
		mirrors = []*networkingv1alpha3.HTTPMirrorPolicy{{Destination: dest, Percentage: share}}
	}
	var out []*routev3.RouteAction_RequestMirrorPolicy
	for _, m := range mirrors {
		percent := 100.0
		if m.GetPercentage() != nil {
			percent = min(max(m.GetPercentage().GetValue(), 0), 100)
		}
		if percent == 0 {
			continue
		}
		out = append(out, &routev3.RouteAction_RequestMirrorPolicy{
			Cluster:      b.cluster(m.GetDestination(), h),
			TraceSampled: wrapperspb.Bool(false),
			RuntimeFraction: &corev3.RuntimeFractionalPercent{DefaultValue: &typev3.FractionalPercent{
				Numerator: uint32(math.Round(percent * 10_000)), Denominator: typev3.FractionalPercent_MILLION,
			}},
		})
	}
	return out
}

func rewritePath(action *routev3.RouteAction, in *networkingv1alpha3.HTTPRewrite) {
	if r := in.GetUriRegexRewrite(); r != nil {
		action.RegexRewrite = &matcherv3.RegexMatchAndSubstitute{
			Pattern: &matcherv3.RegexMatcher{Regex: r.GetMatch()}, Substitution: r.GetRewrite(),
		}
		return
	}
	action.PrefixRewrite = in.GetUri()
}

// redirect answers requests to a port with another URL. Ports that the scheme
// implies are not written.
func redirect(in *networkingv1alpha3.HTTPRedirect, requested uint32) *routev3.Route_Redirect {
	out := &routev3.RedirectAction{HostRedirect: in.GetAuthority()}
	switch {
	case in.GetPrefixRewrite() != "":
		out.PathRewriteSpecifier = &routev3.RedirectAction_PrefixRewrite{PrefixRewrite: in.GetPrefixRewrite()}
	case in.GetUri() != "":
		out.PathRewriteSpecifier = &routev3.RedirectAction_PathRedirect{PathRedirect: in.GetUri()}
	}
	if in.GetScheme() != "" {
		out.SchemeRewriteSpecifier = &routev3.RedirectAction_SchemeRedirect{SchemeRedirect: in.GetScheme()}
	}
	port := in.GetPort()
	if in.GetDerivePort() == networkingv1alpha3.HTTPRedirect_FROM_REQUEST_PORT {
		port = requested // Envoy's own default is the port of the scheme
	}
	if !(port == 80 && in.GetScheme() == "http") && !(port == 443 && in.GetScheme() == "https") {
		out.PortRedirect = port
	}
	codes := map[uint32]routev3.RedirectAction_RedirectResponseCode{
		302: routev3.RedirectAction_FOUND, 303: routev3.RedirectAction_SEE_OTHER,
		307: routev3.RedirectAction_TEMPORARY_REDIRECT, 308: routev3.RedirectAction_PERMANENT_REDIRECT,
	}
	out.ResponseCode = codes[in.GetRedirectCode()] // 301 is the zero value
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

// Respond answers without asking anybody.
func Respond(status uint32, body string) *routev3.Route_DirectResponse {
	out := &routev3.DirectResponseAction{Status: status}
	if body != "" {
		out.Body = &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: []byte(body)}}
	}
	return &routev3.Route_DirectResponse{DirectResponse: out}
}
