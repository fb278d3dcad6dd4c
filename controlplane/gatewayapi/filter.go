// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package gatewayapi

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// filtered is the result of the filters of a rule.
type filtered struct {
	headers  headers
	mirrors  []*networkingv1alpha3.HTTPMirrorPolicy
	cors     *networkingv1alpha3.CorsPolicy
	redirect *gatewayv1.HTTPRequestRedirectFilter
	rewrite  *gatewayv1.HTTPURLRewriteFilter
	// invalid means that a filter is unknown: requests must not pass without it.
	invalid bool
}

type headers struct{ networkingv1alpha3.Headers }

func (h *headers) orNil() *networkingv1alpha3.Headers {
	if h.Request == nil && h.Response == nil {
		return nil
	}
	return &networkingv1alpha3.Headers{Request: h.Request, Response: h.Response}
}

// filters converts the filters of a rule of an HTTPRoute.
func (c *converter) filters(r *route, in []gatewayv1.HTTPRouteFilter, at string) *filtered {
	out := &filtered{}
	for i, f := range in {
		switch {
		case f.Type == gatewayv1.HTTPRouteFilterRequestHeaderModifier && f.RequestHeaderModifier != nil:
			out.headers.Request = headerOperations(f.RequestHeaderModifier)
		case f.Type == gatewayv1.HTTPRouteFilterResponseHeaderModifier && f.ResponseHeaderModifier != nil:
			out.headers.Response = headerOperations(f.ResponseHeaderModifier)
		case f.Type == gatewayv1.HTTPRouteFilterRequestRedirect && f.RequestRedirect != nil:
			out.redirect = f.RequestRedirect
		case f.Type == gatewayv1.HTTPRouteFilterURLRewrite && f.URLRewrite != nil:
			out.rewrite = f.URLRewrite
		case f.Type == gatewayv1.HTTPRouteFilterRequestMirror && f.RequestMirror != nil:
			if m := c.mirror(r, f.RequestMirror); m != nil {
				out.mirrors = append(out.mirrors, m)
			}
		case f.Type == gatewayv1.HTTPRouteFilterCORS && f.CORS != nil:
			out.cors = cors(f.CORS)
		default:
			out.invalid = true
			r.unresolve(gatewayv1.RouteReasonInvalidKind, "%s[%d]: the filter %s is not supported: requests of the rule receive 500", at, i, f.Type)
		}
	}
	return out
}

func headerOperations(in *gatewayv1.HTTPHeaderFilter) *networkingv1alpha3.Headers_HeaderOperations {
	out := &networkingv1alpha3.Headers_HeaderOperations{Remove: in.Remove}
	put := func(to *map[string]string, from []gatewayv1.HTTPHeader) {
		seen := map[string]bool{}
		for _, h := range from {
			lower := strings.ToLower(string(h.Name))
			if seen[lower] {
				continue // the first one wins
			}
			seen[lower] = true
			if *to == nil {
				*to = map[string]string{}
			}
			(*to)[string(h.Name)] = h.Value
		}
	}
	put(&out.Set, in.Set)
	put(&out.Add, in.Add)
	return out
}

func (c *converter) mirror(r *route, in *gatewayv1.HTTPRequestMirrorFilter) *networkingv1alpha3.HTTPMirrorPolicy {
	to, ok := c.destination(r, in.BackendRef, "the mirror")
	if !ok {
		return nil
	}
	out := &networkingv1alpha3.HTTPMirrorPolicy{Destination: to}
	switch {
	case in.Percent != nil:
		out.Percentage = &networkingv1alpha3.Percent{Value: float64(*in.Percent)}
	case in.Fraction != nil:
		out.Percentage = &networkingv1alpha3.Percent{Value: 100 * float64(in.Fraction.Numerator) / float64(orElse(in.Fraction.Denominator, 100))}
	}
	return out
}

func cors(in *gatewayv1.HTTPCORSFilter) *networkingv1alpha3.CorsPolicy {
	out := &networkingv1alpha3.CorsPolicy{
		AllowMethods: texts(in.AllowMethods), AllowHeaders: texts(in.AllowHeaders), ExposeHeaders: texts(in.ExposeHeaders),
		UnmatchedPreflights: networkingv1alpha3.CorsPolicy_IGNORE,
	}
	for _, origin := range texts(in.AllowOrigins) {
		if strings.Contains(origin, "*") {
			out.AllowOrigins = append(out.AllowOrigins, like(strings.ReplaceAll(regexp.QuoteMeta(origin), `\*`, ".*")))
			continue
		}
		out.AllowOrigins = append(out.AllowOrigins, exactly(origin))
	}
	if in.AllowCredentials != nil {
		out.AllowCredentials = wrapperspb.Bool(*in.AllowCredentials)
	}
	if in.MaxAge > 0 {
		out.MaxAge = durationpb.New(time.Duration(in.MaxAge) * time.Second)
	}
	return out
}

// redirect converts a redirect of requests to a listener port.
func redirect(in *gatewayv1.HTTPRequestRedirectFilter, m match, port uint32, scheme string) *networkingv1alpha3.HTTPRedirect {
	out := &networkingv1alpha3.HTTPRedirect{
		Scheme: deref(in.Scheme), Authority: string(deref(in.Hostname)), RedirectCode: uint32(orElse(in.StatusCode, 302)),
	}
	// The default port is that of the new scheme, or else that of the listener.
	switch {
	case in.Port != nil:
		out.RedirectPort = &networkingv1alpha3.HTTPRedirect_Port{Port: uint32(*in.Port)}
	case in.Scheme != nil:
		out.RedirectPort = &networkingv1alpha3.HTTPRedirect_DerivePort{DerivePort: networkingv1alpha3.HTTPRedirect_FROM_PROTOCOL_DEFAULT}
	case port != 0 && port != wellKnown(scheme):
		out.RedirectPort = &networkingv1alpha3.HTTPRedirect_Port{Port: port}
	}
	// The scheme implies its default port.
	if in.Port != nil && in.Scheme == nil && uint32(*in.Port) == wellKnown(scheme) {
		out.Scheme = scheme
	}
	if in.Path == nil {
		return out
	}
	switch {
	case in.Path.ReplaceFullPath != nil:
		out.Uri = *in.Path.ReplaceFullPath
	case in.Path.ReplacePrefixMatch != nil:
		out.PrefixRewrite = orSlash(strings.TrimRight(*in.Path.ReplacePrefixMatch, "/"))
	}
	return out
}

func orSlash(s string) string {
	if s == "" {
		return "/"
	}
	return s
}

func wellKnown(scheme string) uint32 {
	if scheme == "https" {
		return 443
	}
	return 80
}

// rewrite converts a rewrite of the requests of a match. Prefixes are whole path segments:
// replacing /foo by "/" turns /foo/bar into /bar, not //bar.
func rewrite(in *gatewayv1.HTTPURLRewriteFilter, m match) *networkingv1alpha3.HTTPRewrite {
	out := &networkingv1alpha3.HTTPRewrite{Authority: string(deref(in.Hostname))}
	if in.Path == nil {
		return out
	}
	switch {
	case in.Path.ReplaceFullPath != nil:
		out.UriRegexRewrite = &networkingv1alpha3.RegexRewrite{Match: "^.*$", Rewrite: literal(orSlash(*in.Path.ReplaceFullPath))}
	case in.Path.ReplacePrefixMatch != nil:
		to := strings.TrimRight(*in.Path.ReplacePrefixMatch, "/")
		switch {
		case m.path != pathPrefix && m.path != pathAll, m.prefix == "" && to == "":
		case to == "":
			out.UriRegexRewrite = &networkingv1alpha3.RegexRewrite{Match: "^" + regexp.QuoteMeta(m.prefix) + "/?", Rewrite: "/"}
		case m.prefix == "":
			out.UriRegexRewrite = &networkingv1alpha3.RegexRewrite{Match: "^/", Rewrite: literal(to) + "/"}
		default:
			out.Uri = to
		}
	}
	return out
}

// literal escapes characters that a substitution would interpret as a group reference.
func literal(s string) string { return strings.ReplaceAll(s, `\`, `\\`) }

// timeouts converts the timeouts and retries of a rule.
func timeouts(out *networkingv1alpha3.HTTPRoute, in *gatewayv1.HTTPRouteTimeouts, retry *gatewayv1.HTTPRouteRetry) {
	var each time.Duration
	if in != nil {
		if d, ok := span(in.Request); ok {
			out.Timeout = durationpb.New(d)
		}
		each, _ = span(in.BackendRequest)
	}
	if retry == nil && each == 0 {
		return
	}
	policy := &networkingv1alpha3.HTTPRetry{Attempts: 2} // as if it was not set
	if retry != nil {
		policy.Attempts = int32(min(orElse(retry.Attempts, 1), 1<<20))
		on := []string{"connect-failure", "refused-stream", "reset-before-request"}
		for _, code := range retry.Codes {
			on = append(on, fmt.Sprint(code))
		}
		if each > 0 {
			on = append(on, "reset")
		}
		policy.RetryOn = strings.Join(on, ",")
		policy.RetryIgnorePreviousHosts = wrapperspb.Bool(false)
		if d, ok := span(retry.Backoff); ok && d > 0 {
			policy.Backoff = durationpb.New(d)
		}
	}
	if each > 0 {
		policy.PerTryTimeout = durationpb.New(each)
	}
	out.Retries = policy
}

// span parses a duration of the Gateway API, whose syntax is a subset of Go's.
func span(d *gatewayv1.Duration) (time.Duration, bool) {
	if d == nil {
		return 0, false
	}
	v, err := time.ParseDuration(string(*d))
	return v, err == nil
}
