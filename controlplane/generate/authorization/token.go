// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package authorization

import (
	"slices"
	"strconv"
	"strings"

	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
)

// tokenAttribute returns the conversion of the values of an attribute of the valid token of a
// request, or nil if the key is not one of a token.
func (c *converter) tokenAttribute(key string) func(value string, wide bool) (*rbacv3.Principal, bool) {
	switch key {
	case "request.auth.principal":
		return c.requestPrincipal
	case "request.auth.audiences":
		return claim("aud")
	case "request.auth.presenter":
		return claim("azp")
	}
	if path, ok := strings.CutPrefix(key, "request.auth.claims["); ok && strings.HasSuffix(path, "]") {
		return claim(strings.Split(strings.TrimSuffix(path, "]"), "][")...)
	}
	return nil
}

// claim returns the conversion of the values of a claim, which is a string or a list of strings. A
// wide matcher also matches a boolean or a number that is written like the value.
func claim(path ...string) func(value string, wide bool) (*rbacv3.Principal, bool) {
	return func(value string, wide bool) (*rbacv3.Principal, bool) {
		scalar := &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_StringMatch{StringMatch: text(value, false)}}
		if wide {
			scalar = anyValue(scalar, otherTypes(value)...)
		}
		m := anyValue(scalar, &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_ListMatch{ListMatch: &matcherv3.ListMatcher{
			MatchPattern: &matcherv3.ListMatcher_OneOf{OneOf: scalar},
		}}})
		return inPayload(path, m), !slices.Contains(path, "")
	}
}

// otherTypes returns matchers of the values that are no strings and are written like the given one.
func otherTypes(value string) []*matcherv3.ValueMatcher {
	if value == "*" {
		return []*matcherv3.ValueMatcher{{MatchPattern: &matcherv3.ValueMatcher_PresentMatch{PresentMatch: true}}}
	}
	if is, err := strconv.ParseBool(value); err == nil && value == strconv.FormatBool(is) {
		return []*matcherv3.ValueMatcher{{MatchPattern: &matcherv3.ValueMatcher_BoolMatch{BoolMatch: is}}}
	}
	if n, err := strconv.ParseFloat(value, 64); err == nil {
		return []*matcherv3.ValueMatcher{{MatchPattern: &matcherv3.ValueMatcher_DoubleMatch{
			DoubleMatch: &matcherv3.DoubleMatcher{MatchPattern: &matcherv3.DoubleMatcher_Exact{Exact: n}},
		}}}
	}
	return nil
}

func anyValue(first *matcherv3.ValueMatcher, others ...*matcherv3.ValueMatcher) *matcherv3.ValueMatcher {
	if len(others) == 0 {
		return first
	}
	return &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_OrMatch{
		OrMatch: &matcherv3.OrMatcher{ValueMatchers: append([]*matcherv3.ValueMatcher{first}, others...)},
	}}
}

// inPayload matches a value at a path in the payload of the valid token. Nothing matches without
// one.
func inPayload(path []string, m *matcherv3.ValueMatcher) *rbacv3.Principal {
	at := &matcherv3.MetadataMatcher{Filter: envoyconf.TokenFilter, Value: m}
	for _, key := range append([]string{envoyconf.TokenPayload}, path...) {
		at.Path = append(at.Path, &matcherv3.MetadataMatcher_PathSegment{Segment: &matcherv3.MetadataMatcher_PathSegment_Key{Key: key}})
	}
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_SourcedMetadata{SourcedMetadata: &rbacv3.SourcedMetadata{MetadataMatcher: at}}}
}

// requestPrincipal converts "issuer/subject". An issuer may contain slashes, as may a subject. The
// issuers are known, so that the two are never confused.
func (c *converter) requestPrincipal(value string, wide bool) (*rbacv3.Principal, bool) {
	var list []*rbacv3.Principal
	for _, issuer := range c.issuers {
		for _, subject := range subjects(value, issuer, c.issuers, wide) {
			list = append(list, tokenOf(issuer, subject))
		}
	}
	switch len(list) {
	case 0:
		return callers.not(callers.anything()), true
	case 1:
		return list[0], true
	}
	return callers.any(list), true
}

// tokenOf matches tokens of an issuer with a matching subject. A nil subject matches tokens without
// a subject, too.
func tokenOf(issuer string, subject *matcherv3.StringMatcher) *rbacv3.Principal {
	of := inPayload([]string{"iss"}, stringValue(envoyconf.Exactly(issuer)))
	if subject == nil {
		return of
	}
	return callers.all([]*rbacv3.Principal{of, inPayload([]string{"sub"}, stringValue(subject))})
}

func stringValue(m *matcherv3.StringMatcher) *matcherv3.ValueMatcher {
	return &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_StringMatch{StringMatch: m}}
}

// subjects returns the matchers of the subjects which, together with one of the issuers, are the
// given principal. If wide is false, a part of the value that is another issuer with a slash at the
// end is no part of the subject.
func subjects(value, issuer string, issuers []string, wide bool) []*matcherv3.StringMatcher {
	kind, rest := parse(value)
	switch kind {
	case present:
		return []*matcherv3.StringMatcher{anySubject(wide)}
	case suffix:
		return subjectsBySuffix(rest, issuer, issuers, wide)
	case exact, prefix:
	}
	named := longest(issuers, func(i string) bool { return strings.HasPrefix(rest, i+"/") })
	subject, ok := strings.CutPrefix(rest, issuer+"/")
	ok = ok && (wide || issuer == named)
	switch {
	case ok && subject != "" && kind == exact:
		return []*matcherv3.StringMatcher{envoyconf.Exactly(subject)}
	case ok && subject != "":
		return []*matcherv3.StringMatcher{envoyconf.Prefixed(subject)}
	case kind == prefix && (ok || (wide || named == "") && strings.HasPrefix(issuer+"/", rest)):
		return []*matcherv3.StringMatcher{anySubject(wide)}
	}
	return nil
}

// anySubject matches every subject. If it is wide, it is nil.
func anySubject(wide bool) *matcherv3.StringMatcher {
	if wide {
		return nil
	}
	return pattern("(?s).+")
}

// subjectsBySuffix is subjects for values of the form "*suffix". A suffix that contains a slash
// consists of the end of an issuer and a subject.
func subjectsBySuffix(end, issuer string, issuers []string, wide bool) []*matcherv3.StringMatcher {
	var out []*matcherv3.StringMatcher
	ends := splits(end, issuer)
	if wide || len(ends) == 0 && !slices.ContainsFunc(issuers, func(i string) bool { return len(splits(end, i)) > 0 }) {
		out = append(out, &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Suffix{Suffix: end}})
	} else if len(ends) > 1 {
		ends = ends[:1]
	}
	for _, subject := range ends {
		out = append(out, envoyconf.Exactly(subject))
	}
	return out
}

// splits returns the subjects for which a text, up to the slash before the subject, is the end of
// the issuer. The one with the longest end of the issuer comes first.
func splits(text, issuer string) []string {
	var out []string
	for i := len(text) - 2; i >= 0; i-- {
		if text[i] == '/' && strings.HasSuffix(issuer, text[:i]) {
			out = append(out, text[i+1:])
		}
	}
	return out
}

// longest returns the longest string that satisfies a condition, or "".
func longest(list []string, ok func(string) bool) (out string) {
	for _, s := range list {
		if len(s) > len(out) && ok(s) {
			out = s
		}
	}
	return out
}
