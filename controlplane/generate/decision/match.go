// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package decision

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
)

// maxTried is how many routes that do not match a Routed contains.
const maxTried = 10

// Tried is a route that does not match a request, and the first part of its match that differs.
type Tried struct {
	Route, Differs string
}

// application returns the attributes of the connection of an application to its proxy.
func (r Request) application() connection {
	c := connection{server: r.Server, port: r.Port, tls: r.TLS, alpn: r.plainALPN()}
	if r.Method == "" {
		c.alpn, c.tls = nil, r.SNI != ""
	}
	if c.tls {
		c.sni = r.SNI
	}
	return c
}

// route returns the first part of a match that a request does not have, nil if it matches.
func (c *compiler) route(m *routev3.RouteMatch, f *facts) (differs proto.Message, err error) {
	if m.GetRuntimeFraction() != nil || m.GetGrpc() != nil || m.GetTlsContext() != nil || len(m.GetFilterState()) > 0 {
		return m, fmt.Errorf("a match by something else than path, headers, parameters and metadata is not supported")
	}
	if is, err := c.path(m, f); err != nil || !is {
		return m, err
	}
	for _, h := range m.GetHeaders() {
		if is, err := c.routeHeader(h, f); err != nil || !is {
			return h, err
		}
	}
	for _, q := range m.GetQueryParameters() {
		if is, err := c.parameter(q, f); err != nil || !is {
			return q, err
		}
	}
	for _, d := range m.GetDynamicMetadata() {
		_, test, err := c.inMetadata(&matcherv3.MetadataMatcher{Filter: d.GetFilter(), Path: d.GetPath(), Value: d.GetValue()})
		if err != nil || test(f) == d.GetInvert() {
			return d, err
		}
	}
	return nil, nil
}

// differs says how a request differs from a part of a match.
func (f *facts) differs(part proto.Message) string {
	switch m := part.(type) {
	case *routev3.RouteMatch:
		return "path " + withoutQuery(f.path) + ", " + pathText(m)
	case *routev3.HeaderMatcher:
		return headerText(m, f)
	case *routev3.QueryParameterMatcher:
		value, present := f.parameter(m.GetName())
		return parameterText(m, value, present)
	}
	return "the claims of the token, of which there may be none"
}

// path reports whether the path of a request matches.
func (c *compiler) path(m *routev3.RouteMatch, f *facts) (bool, error) {
	fold := func(s string) string { return s }
	if m.GetCaseSensitive() != nil && !m.GetCaseSensitive().GetValue() {
		fold = lower
	}
	path := withoutQuery(f.path)
	switch of := m.GetPathSpecifier().(type) {
	case *routev3.RouteMatch_Prefix:
		return f.request.Method != "CONNECT" && strings.HasPrefix(fold(path), fold(of.Prefix)), nil
	case *routev3.RouteMatch_Path:
		return fold(path) == fold(of.Path), nil
	case *routev3.RouteMatch_PathSeparatedPrefix:
		rest, ok := strings.CutPrefix(fold(path), fold(of.PathSeparatedPrefix))
		return ok && (rest == "" || rest[0] == '/'), nil
	case *routev3.RouteMatch_SafeRegex:
		p, err := c.pattern(of.SafeRegex.GetRegex())
		return err == nil && p.matches(path), err
	case *routev3.RouteMatch_ConnectMatcher_:
		return f.request.Method == "CONNECT", nil
	default:
		return false, fmt.Errorf("the path matcher %T is not supported", of)
	}
}

// pathText says what the path of a request is not.
func pathText(m *routev3.RouteMatch) string {
	switch of := m.GetPathSpecifier().(type) {
	case *routev3.RouteMatch_Prefix:
		return "no prefix " + of.Prefix
	case *routev3.RouteMatch_Path:
		return "not exactly " + of.Path
	case *routev3.RouteMatch_PathSeparatedPrefix:
		return "neither " + of.PathSeparatedPrefix + " nor below it"
	case *routev3.RouteMatch_SafeRegex:
		return "which is not all of a match of the pattern " + of.SafeRegex.GetRegex()
	}
	return "and the method is not CONNECT"
}

// routeHeader reports whether a header of a request matches. Unlike the headers of policies, it may be
// inverted.
func (c *compiler) routeHeader(m *routev3.HeaderMatcher, f *facts) (bool, error) {
	values := f.header[lower(m.GetName())]
	switch of := m.GetHeaderMatchSpecifier().(type) {
	case *routev3.HeaderMatcher_PresentMatch:
		return ((len(values) > 0) == of.PresentMatch) != m.GetInvertMatch(), nil
	case *routev3.HeaderMatcher_StringMatch:
		test, err := c.string(of.StringMatch)
		switch {
		case err != nil:
			return false, err
		case len(values) == 0 && !m.GetTreatMissingHeaderAsEmpty():
			return false, nil
		case len(values) == 0:
			values = []string{""}
		case !f.individually:
			values = []string{joined(values)}
		}
		return slices.ContainsFunc(values, test) != m.GetInvertMatch(), nil
	default:
		return false, fmt.Errorf("the matcher %T of the header %s is not supported", of, m.GetName())
	}
}

// rewrite changes path and host as the action of a route does.
func (out *Routed) rewrite(r *routev3.Route) {
	most := uint32(0)
	for _, c := range out.Action.GetWeightedClusters().GetClusters() { // that of the largest share
		if c.GetHostRewriteLiteral() != "" && c.GetWeight().GetValue() > most {
			most, out.Host = c.GetWeight().GetValue(), c.GetHostRewriteLiteral()
		}
	}
	if literal := out.Action.GetHostRewriteLiteral(); literal != "" {
		out.Host = literal
	}
	path, query, asked := strings.Cut(out.Path, "?")
	switch prefix, pattern := out.Action.GetPrefixRewrite(), out.Action.GetRegexRewrite(); {
	case prefix != "":
		m := r.GetMatch()
		matched := cmp.Or(m.GetPrefix(), m.GetPathSeparatedPrefix())
		if m.GetPath() != "" || m.GetSafeRegex() != nil || len(matched) > len(path) {
			matched = path
		}
		path = prefix + path[len(matched):]
	case pattern != nil:
		re, err := regexp.Compile(pattern.GetPattern().GetRegex())
		if err != nil {
			return // Envoy has the same patterns
		}
		path = re.ReplaceAllString(path, backReference.ReplaceAllString(strings.ReplaceAll(pattern.GetSubstitution(), "$", "$$"), "$${$1}"))
	}
	if asked {
		path += "?" + query
	}
	out.Path = path
}

// backReference is how Envoy writes a group of a pattern.
var backReference = regexp.MustCompile(`\\([0-9])`)

// stringText says what a matcher of strings wants.
func stringText(m *matcherv3.StringMatcher) string {
	switch of := m.GetMatchPattern().(type) {
	case *matcherv3.StringMatcher_Exact:
		return "exactly " + of.Exact
	case *matcherv3.StringMatcher_Prefix:
		return "prefix " + of.Prefix
	case *matcherv3.StringMatcher_Suffix:
		return "end " + of.Suffix
	case *matcherv3.StringMatcher_Contains:
		return "with " + of.Contains
	case *matcherv3.StringMatcher_SafeRegex:
		return "all of a match of the pattern " + of.SafeRegex.GetRegex()
	}
	return "what the matcher wants"
}

// headerText says how a header differs.
func headerText(m *routev3.HeaderMatcher, f *facts) string {
	name := map[string]string{":method": "method", ":authority": "host"}[m.GetName()]
	if name == "" {
		name = "header " + m.GetName()
	}
	values := f.header[lower(m.GetName())]
	out, not := name+" "+joined(values), "not "
	if len(values) == 0 {
		out = name + ": there is none"
	}
	if m.GetInvertMatch() {
		not = "excluded: "
	}
	if of := m.GetStringMatch(); of != nil {
		return out + ", " + not + stringText(of)
	}
	if len(values) > 0 {
		return out + " is excluded"
	}
	return out
}

// parameterText says how a parameter of the query differs.
func parameterText(m *routev3.QueryParameterMatcher, value string, present bool) string {
	out := "query parameter " + m.GetName()
	switch {
	case !present:
		return out + ": there is none"
	case m.GetStringMatch() != nil:
		return out + "=" + value + ", not " + stringText(m.GetStringMatch())
	}
	return out + " is excluded"
}

// parameter returns a parameter of the query of a request. The first value counts.
func (f *facts) parameter(name string) (value string, present bool) {
	_, query, _ := strings.Cut(f.path, "?")
	query, _, _ = strings.Cut(query, "#")
	for pair := range strings.SplitSeq(query, "&") {
		key, text, _ := strings.Cut(pair, "=")
		if key == name && pair != "" { // Envoy decodes neither names nor values
			return text, true
		}
	}
	return "", false
}

// parameter reports whether a parameter of the query of a request matches.
func (c *compiler) parameter(m *routev3.QueryParameterMatcher, f *facts) (bool, error) {
	value, present := f.parameter(m.GetName())
	switch of := m.GetQueryParameterMatchSpecifier().(type) {
	case *routev3.QueryParameterMatcher_PresentMatch:
		return present == of.PresentMatch, nil
	case *routev3.QueryParameterMatcher_StringMatch:
		test, err := c.string(of.StringMatch)
		return err == nil && present && test(value), err
	default:
		return present, nil
	}
}
