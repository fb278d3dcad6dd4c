// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package validate

import (
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	"github.com/outrigger-mesh/outrigger/controlplane/expression"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// maxMatches bounds the matches of all rules of one route.
const maxMatches = 128

func (c *checker) httpRouteRules(rules []gatewayv1.HTTPRouteRule, path string) {
	matches, names := 0, make([]*gatewayv1.SectionName, len(rules))
	for i, r := range rules {
		matches += len(r.Matches)
		names[i] = r.Name
	}
	c.routeRules(matches, names, path)
}

func (c *checker) grpcRouteRules(rules []gatewayv1.GRPCRouteRule, path string) {
	matches, names := 0, make([]*gatewayv1.SectionName, len(rules))
	for i, r := range rules {
		matches += len(r.Matches)
		names[i] = r.Name
	}
	c.routeRules(matches, names, path)
}

func (c *checker) routeRules(matches int, names []*gatewayv1.SectionName, path string) {
	if matches > maxMatches {
		c.errorf(path, "has %d matches in total: at most %d are allowed", matches, maxMatches)
	}
	seen := map[gatewayv1.SectionName]int{}
	for i, name := range names {
		if name == nil {
			continue
		}
		if first, ok := seen[*name]; ok {
			// Only the experimental channel refuses it.
			c.warnf(field.Index(path, i)+".name", "is %s, as in %s: write another", field.Quote(string(*name)), field.Index(path, first))
			continue
		}
		seen[*name] = i
	}
}

func (c *checker) httpRouteRule(r gatewayv1.HTTPRouteRule, path string) {
	redirects := func(f gatewayv1.HTTPRouteFilter) bool {
		return f.RequestRedirect != nil && replacesPrefix(f.RequestRedirect.Path)
	}
	rewrites := func(f gatewayv1.HTTPRouteFilter) bool {
		return f.URLRewrite != nil && replacesPrefix(f.URLRewrite.Path)
	}
	if len(r.BackendRefs) > 0 && count(r.Filters, func(f gatewayv1.HTTPRouteFilter) bool { return f.RequestRedirect != nil }) > 0 {
		c.errorf(path+".backendRefs", "is set beside a RequestRedirect filter, which responds itself: remove one of them")
	}
	if len(r.Matches) == 1 && r.Matches[0].Path != nil && deref(r.Matches[0].Path.Type) == gatewayv1.PathMatchPathPrefix {
		return
	}
	for _, replaces := range []func(gatewayv1.HTTPRouteFilter) bool{redirects, rewrites} {
		// Exactly one, as the definitions count: a second one is refused as a
		// repeated filter, and two backends that do so pass.
		inBackend := func(b gatewayv1.HTTPBackendRef) bool { return count(b.Filters, replaces) == 1 }
		if count(r.Filters, replaces) == 1 || count(r.BackendRefs, inBackend) == 1 {
			c.errorf(path+".matches", "has %d matches: a filter with path.replacePrefixMatch needs exactly one match, of a path of the type PathPrefix", len(r.Matches))
			return
		}
	}
}

func replacesPrefix(p *gatewayv1.HTTPPathModifier) bool {
	return p != nil && p.Type == gatewayv1.PrefixMatchHTTPPathModifier && p.ReplacePrefixMatch != nil
}

// count returns the number of items that are so.
func count[T any](list []T, is func(T) bool) (n int) {
	for _, v := range list {
		if is(v) {
			n++
		}
	}
	return n
}

func (c *checker) httpRouteFilters(filters []gatewayv1.HTTPRouteFilter, path string) {
	types := make([]string, len(filters))
	for i, f := range filters {
		types[i] = string(f.Type)
	}
	c.onceEach(types, path, "CORS", "RequestHeaderModifier", "ResponseHeaderModifier", "RequestRedirect", "URLRewrite")
	if slices.Contains(types, "RequestRedirect") && slices.Contains(types, "URLRewrite") {
		c.errorf(path, "has RequestRedirect and URLRewrite: remove one of them")
	}
}

func (c *checker) grpcRouteFilters(filters []gatewayv1.GRPCRouteFilter, path string) {
	types := make([]string, len(filters))
	for i, f := range filters {
		types[i] = string(f.Type)
	}
	c.onceEach(types, path, "RequestHeaderModifier", "ResponseHeaderModifier")
}

// onceEach refuses a second filter of some types.
func (c *checker) onceEach(types []string, path string, once ...string) {
	seen := firsts[string]{}
	for i, t := range types {
		if first, ok := seen.earliest(t); ok && slices.Contains(once, t) {
			c.errorf(field.Index(path, i)+".type", "is %s, as in %s: write all of it into one filter", t, field.Index(path, first))
		}
		seen.add(i, t)
	}
}

func (c *checker) httpRouteFilter(f gatewayv1.HTTPRouteFilter, path string) {
	c.literalPercent(f.RequestHeaderModifier, path+".requestHeaderModifier")
	c.literalPercent(f.ResponseHeaderModifier, path+".responseHeaderModifier")
	c.union(path, string(f.Type), []member{
		{"RequestHeaderModifier", "requestHeaderModifier", f.RequestHeaderModifier != nil},
		{"ResponseHeaderModifier", "responseHeaderModifier", f.ResponseHeaderModifier != nil},
		{"RequestMirror", "requestMirror", f.RequestMirror != nil},
		{"RequestRedirect", "requestRedirect", f.RequestRedirect != nil},
		{"URLRewrite", "urlRewrite", f.URLRewrite != nil},
		{"CORS", "cors", f.CORS != nil},
		{"ExternalAuth", "externalAuth", f.ExternalAuth != nil},
		{"ExtensionRef", "extensionRef", f.ExtensionRef != nil},
	})
}

func (c *checker) grpcRouteFilter(f gatewayv1.GRPCRouteFilter, path string) {
	c.literalPercent(f.RequestHeaderModifier, path+".requestHeaderModifier")
	c.literalPercent(f.ResponseHeaderModifier, path+".responseHeaderModifier")
	c.union(path, string(f.Type), []member{
		{"RequestHeaderModifier", "requestHeaderModifier", f.RequestHeaderModifier != nil},
		{"ResponseHeaderModifier", "responseHeaderModifier", f.ResponseHeaderModifier != nil},
		{"RequestMirror", "requestMirror", f.RequestMirror != nil},
		{"ExtensionRef", "extensionRef", f.ExtensionRef != nil},
	})
}

// literalPercent warns of values of headers that are no format of Envoy and reach applications as they are.
func (c *checker) literalPercent(f *gatewayv1.HTTPHeaderFilter, path string) {
	if f == nil {
		return
	}
	for name, list := range field.Sorted(map[string][]gatewayv1.HTTPHeader{"set": f.Set, "add": f.Add}) {
		for i, h := range list {
			if _, _, err := expression.Header(h.Value); err != nil {
				c.warnf(field.Index(path+"."+name, i)+".value", "is %s and sent without any replacement: %s", field.Quote(h.Value), err)
			}
		}
	}
}

func (c *checker) httpPathMatch(m gatewayv1.HTTPPathMatch, path string) {
	value := deref(m.Value)
	if deref(m.Type) == gatewayv1.PathMatchRegularExpression {
		c.warnRegex(value, path+".value")
		return
	}
	c.absolutePath(value, path+".value")
	if strings.HasPrefix(value, "/") && !strings.Contains(value, "#") && !pathPattern.MatchString(value) {
		c.errorf(path+".value", "is %s: write only characters of a path; others as %%XX", field.Quote(value))
	}
}

// absolutePath checks a path that Envoy compares in its normal form: what that
// form never has would match nothing.
func (c *checker) absolutePath(value, path string) {
	if !strings.HasPrefix(value, "/") {
		c.errorf(path, "is %s: it must begin with \"/\"", field.Quote(value))
		return
	}
	for _, part := range []string{"//", "/./", "/../", "%2f", "%2F", "#"} {
		if strings.Contains(value, part) {
			c.errorf(path, "is %s: %q is not allowed in it; write the path without", field.Quote(value), part)
		}
	}
	for _, end := range []string{"/..", "/."} {
		if strings.HasSuffix(value, end) {
			c.errorf(path, "is %s: it must not end with %q; write the path without", field.Quote(value), end)
		}
	}
}

// warnRegex warns of a regular expression that the definitions accept and
// Envoy will not.
func (c *checker) warnRegex(s, path string) {
	probe := &checker{}
	probe.regex(s, path)
	for _, e := range probe.errs {
		c.warnf(e.Path, "%s", e.Text)
	}
}

func (c *checker) httpPathModifier(m gatewayv1.HTTPPathModifier, path string) {
	c.union(path, string(m.Type), []member{
		{"ReplaceFullPath", "replaceFullPath", m.ReplaceFullPath != nil},
		{"ReplacePrefixMatch", "replacePrefixMatch", m.ReplacePrefixMatch != nil},
	})
}

func (c *checker) httpCORS(f gatewayv1.HTTPCORSFilter, path string) {
	alone(c, f.AllowOrigins, path+".allowOrigins")
	alone(c, f.AllowMethods, path+".allowMethods")
	alone(c, f.AllowHeaders, path+".allowHeaders")
}

// alone refuses other values beside "*".
func alone[T ~string](c *checker, list []T, path string) {
	if len(list) > 1 && slices.Contains(list, "*") {
		c.errorf(path, "has \"*\", which means all, and others: remove it or the others")
	}
}

func (c *checker) httpExternalAuth(f gatewayv1.HTTPExternalAuthFilter, path string) {
	for _, m := range []member{{"GRPC", "grpc", f.GRPCAuthConfig != nil}, {"HTTP", "http", f.HTTPAuthConfig != nil}} {
		switch {
		case m.set && m.value != string(f.ExternalAuthProtocol):
			c.errorf(path+"."+m.field, "is set, and %s.protocol is %s: remove it, or write protocol: %s", path, field.Quote(string(f.ExternalAuthProtocol)), m.value)
		case !m.set && m.value == string(f.ExternalAuthProtocol):
			c.errorf(path+"."+m.field, "is missing: protocol: %s needs it", m.value)
		}
	}
}

func (c *checker) httpMirror(f gatewayv1.HTTPRequestMirrorFilter, path string) {
	if f.Percent != nil && f.Fraction != nil {
		c.errorf(path, "has percent and fraction: remove one of them")
	}
}

func (c *checker) fraction(f gatewayv1.Fraction, path string) {
	if f.Numerator > deref(f.Denominator) {
		c.errorf(path+".numerator", "is %d: at most the denominator, %d, is allowed", f.Numerator, deref(f.Denominator))
	}
}

func (c *checker) httpTimeouts(t gatewayv1.HTTPRouteTimeouts, path string) {
	request, err1 := time.ParseDuration(string(deref(t.Request)))
	backend, err2 := time.ParseDuration(string(deref(t.BackendRequest)))
	if err1 == nil && err2 == nil && request != 0 && backend > request {
		c.errorf(path+".backendRequest", "is %s: it must not be longer than request, %s", backend, request)
	}
}

func (c *checker) sessionPersistence(s gatewayv1.SessionPersistence, path string) {
	if s.CookieConfig == nil {
		return
	}
	if deref(s.CookieConfig.LifetimeType) == gatewayv1.PermanentCookieLifetimeType && s.AbsoluteTimeout == nil {
		c.errorf(path+".absoluteTimeout", "is missing: cookieConfig.lifetimeType: Permanent needs it")
	}
	if t := deref(s.Type); t != gatewayv1.CookieBasedSessionPersistence {
		c.errorf(path+".cookieConfig", "is set, and %s.type is %s: remove it, or write type: Cookie", path, t)
	}
}

var (
	grpcService = regexp.MustCompile(`^(?i)\.?[a-z_][a-z_0-9]*(\.[a-z_][a-z_0-9]*)*$`)
	grpcMethod  = regexp.MustCompile(`^[A-Za-z_][A-Za-z_0-9]*$`)
)

func (c *checker) grpcMethodMatch(m gatewayv1.GRPCMethodMatch, path string) {
	if m.Service == nil && m.Method == nil {
		c.errorf(path, "has neither service nor method: write one of them")
	}
	if deref(m.Type) != gatewayv1.GRPCMethodMatchExact {
		c.warnPattern(m.Service, path+".service")
		c.warnPattern(m.Method, path+".method")
		return
	}
	if m.Service != nil && !grpcService.MatchString(*m.Service) {
		c.errorf(path+".service", "is %s: write the name of a service, such as shop.Catalog", field.Quote(*m.Service))
	}
	if m.Method != nil && !grpcMethod.MatchString(*m.Method) {
		c.errorf(path+".method", "is %s: write the name of a method, such as GetItem", field.Quote(*m.Method))
	}
}

func (c *checker) warnPattern(s *string, path string) {
	if s != nil {
		c.warnRegex(*s, path)
	}
}
