// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package authorization

import (
	"regexp"
	"slices"
	"strings"

	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
)

// form is how a value matches.
type form int

const (
	exact   form = iota
	prefix       // "value*"
	suffix       // "*value"
	present      // "*"
)

// parse returns the form of a value and the value without its wildcard. A star inside a value has
// no special meaning.
func parse(value string) (form, string) {
	switch {
	case value == "*":
		return present, ""
	case strings.HasSuffix(value, "*"):
		return prefix, value[:len(value)-1]
	case strings.HasPrefix(value, "*"):
		return suffix, value[1:]
	}
	return exact, value
}

// text returns the matcher of a value.
func text(value string, ignoreCase bool) *matcherv3.StringMatcher {
	m := &matcherv3.StringMatcher{IgnoreCase: ignoreCase}
	switch kind, rest := parse(value); kind {
	case exact:
		m.MatchPattern = &matcherv3.StringMatcher_Exact{Exact: rest}
	case prefix:
		m.MatchPattern = &matcherv3.StringMatcher_Prefix{Prefix: rest}
	case suffix:
		m.MatchPattern = &matcherv3.StringMatcher_Suffix{Suffix: rest}
	case present:
		return pattern(".+")
	}
	return m
}

// pattern returns the matcher of a regular expression, which matches whole values.
func pattern(expr string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: expr}}}
}

// glob returns a regular expression for a value in which each star matches any part of a segment.
func glob(value string) string {
	parts := strings.Split(value, "*")
	for i, p := range parts {
		parts[i] = regexp.QuoteMeta(p)
	}
	return strings.Join(parts, "[^/]*")
}

// listed returns a regular expression that matches a list, separated by commas, if one of its
// elements matches the value. Envoy joins the values of a header that is sent several times.
func listed(value string) string {
	const before, after = `(?s)(.*,)?[ \t]*`, `([ \t]*,.*)?`
	switch kind, rest := parse(value); kind {
	case exact:
		return before + regexp.QuoteMeta(rest) + `[ \t]*` + after
	case prefix:
		return before + regexp.QuoteMeta(rest) + ".*"
	case suffix:
		return "(?s).*" + regexp.QuoteMeta(rest) + `[ \t]*` + after
	case present:
	}
	return "(?s).*"
}

// authority returns a regular expression for the hosts that a server may take for the given one: in
// any case, with dots at the end, with a port, after a user name, and in a list. Any encoded
// character matches.
func authority(host string) string {
	const before, after = `(?is)(.*[,@])?`, `[.]*([:,].*)?`
	switch kind, rest := parse(host); kind {
	case exact:
		return before + regexp.QuoteMeta(rest) + after + "|.*%.*"
	case prefix:
		return before + regexp.QuoteMeta(rest) + ".*|.*%.*"
	case suffix:
		return "(?is).*" + regexp.QuoteMeta(rest) + after + "|.*%.*"
	case present:
	}
	return ".+"
}

const scheme = "spiffe://"

// principals returns the matchers of an identity, written without its scheme. An identity of one of
// the mesh's trust domains matches in each of them; cluster.local is a name for all of them.
func principals(value string, domains []string) []*matcherv3.StringMatcher {
	value = strings.TrimPrefix(value, scheme)
	kind, rest := parse(value)
	switch kind {
	case present:
		return []*matcherv3.StringMatcher{envoyconf.Prefixed(scheme)}
	case suffix:
		return []*matcherv3.StringMatcher{pattern(scheme + ".*" + regexp.QuoteMeta(rest))}
	case exact, prefix:
	}
	names := []string{rest}
	if domain, path, ok := strings.Cut(rest, "/"); ok && (domain == "cluster.local" || slices.Contains(domains, domain)) {
		names = names[:0]
		for _, d := range domains {
			names = append(names, d+"/"+path)
		}
	}
	var out []*matcherv3.StringMatcher
	for _, name := range names {
		if kind == prefix {
			out = append(out, envoyconf.Prefixed(scheme+name))
		} else {
			out = append(out, envoyconf.Exactly(scheme+name))
		}
	}
	return out
}

// inNamespace returns a matcher of the identities of a namespace in the trust domains that an
// expression matches.
func inNamespace(namespace, domains string) *matcherv3.StringMatcher {
	if namespace == "*" {
		return pattern(scheme + domains + "/ns/[^/]+/.*")
	}
	return pattern(scheme + domains + "/ns/" + glob(namespace) + "/.*")
}

// ofAccount returns a matcher of the identities of a service account, written as namespace/name, or
// as the name of one in the namespace of the policy.
func ofAccount(account, namespace, domains string) *matcherv3.StringMatcher {
	if of, name, ok := strings.Cut(account, "/"); ok {
		namespace, account = of, name
	}
	return pattern(scheme + domains + "/ns/" + regexp.QuoteMeta(namespace) + "/sa/" + regexp.QuoteMeta(account))
}

// alternation returns a regular expression that matches each of the texts.
func alternation(texts []string) string {
	quoted := make([]string, 0, len(texts))
	for _, t := range texts {
		quoted = append(quoted, regexp.QuoteMeta(t))
	}
	if len(quoted) == 1 {
		return quoted[0]
	}
	return "(" + strings.Join(quoted, "|") + ")"
}

// inDomain returns a matcher of the identities of a trust domain.
func inDomain(domain string) *matcherv3.StringMatcher {
	if domain == "*" {
		return pattern(scheme + "[^/]+/.*")
	}
	return pattern(scheme + glob(domain) + "/.*")
}
