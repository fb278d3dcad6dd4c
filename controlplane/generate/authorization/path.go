// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package authorization

import (
	"regexp"
	"strings"

	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
)

// Parts of regular expressions for paths, without regard to case.
const (
	slash      = `([/\\]|%2f|%5c)`
	parameters = `((;|%3b)[^/]*)`
	// separator is what servers take for a slash: several, encoded, or after parameters.
	separator = `(` + parameters + `?` + slash + `)+`
	// ending is what servers ignore at the end of a path.
	ending = slash + `*((;|%3b|%23|%3f|%0|%20|[\x00-\x20]).*)?`
	// upward is a path with a dot segment that was not resolved, as part of it is encoded.
	upward = `.*` + slash + `(\.|%2e){1,2}` + parameters + `?(` + slash + `.*)?`
	// encoded is a path with an encoded letter or digit, which nobody has to encode.
	encoded = `.*%(3[0-9]|[46][1-9a-f]|[57][0-9a]).*`
	// raw is a path with a byte that a client has to encode.
	raw = `.*[^\x00-\x7f].*`
	// unplain is a path that a server could take for many others.
	unplain   = upward + "|" + encoded + "|" + raw
	ambiguous = "(?is)" + unplain
	// plain is a path that only the one with a slash at its end could be taken for.
	plain = `(/[a-z0-9_~!$&'()*+,=:@-][a-z0-9_~!$&'()*+,=:@.-]*)*/?`
	// encodedSlash is a path with a slash that is not one for Envoy.
	encodedSlash = `.*(\\|%2f|%5c).*`
)

// path returns the matcher of a path, or of a template with {*} for one segment and {**} for any
// number.
func path(value string, wide bool) (*rbacv3.Permission, bool) {
	kind, _ := parse(value)
	m := ofPath(text(value, false))
	switch {
	case value == "*":
		return m, true
	case wide:
		expr, open := servedAs(value, separator)
		if open {
			expr += ".*"
		} else {
			expr += ending
		}
		return permissions.any([]*rbacv3.Permission{
			ofPath(pattern("(?is)" + expr)), ofPath(pattern(ambiguous)),
			permissions.not(ofPath(pattern("(?s).*"))), // some Envoys match no pattern with bytes that are not UTF-8
		}), true
	case isTemplate(value):
		m = ofPath(pattern(templated(value, regexp.QuoteMeta, "[^/]+")))
		return permissions.all([]*rbacv3.Permission{m, permissions.not(ofPath(pattern("(?is)" + upward + "|" + encodedSlash + "|" + raw)))}), true
	case kind != exact:
		return permissions.all([]*rbacv3.Permission{m, permissions.not(ofPath(pattern("(?is)" + upward)))}), true
	}
	return m, true
}

func ofPath(m *matcherv3.StringMatcher) *rbacv3.Permission {
	return &rbacv3.Permission{Rule: &rbacv3.Permission_UrlPath{UrlPath: &matcherv3.PathMatcher{
		Rule: &matcherv3.PathMatcher_Path{Path: m},
	}}}
}

// servedAs returns a regular expression for the paths that a server may take for one that matches
// the value, if it takes what matches another expression for a slash. Anything follows if the
// expression is open, and [ending] otherwise.
func servedAs(value, slash string) (expr string, open bool) {
	quote := func(part string) string { return strings.ReplaceAll(regexp.QuoteMeta(part), "/", slash) }
	if isTemplate(value) {
		return templated(value, quote, "[^/]+"), false
	}
	switch kind, rest := parse(value); kind {
	case exact:
		return quote(rest), false
	case prefix:
		return quote(rest), true
	case suffix:
		return ".*" + quote(rest), false
	case present:
	}
	return "", true
}

// isTemplate reports whether a path contains {*} or {**}.
func isTemplate(path string) bool {
	return strings.Contains(path, "{*}") || strings.Contains(path, "{**}")
}

// templated returns a regular expression for a template.
func templated(value string, quote func(string) string, segment string) string {
	parts := strings.Split(value, "{**}")
	for i, part := range parts {
		inner := strings.Split(part, "{*}")
		for j := range inner {
			inner[j] = quote(inner[j])
		}
		parts[i] = strings.Join(inner, segment)
	}
	return strings.Join(parts, ".*")
}
