// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package authorization

import (
	"fmt"
	"strings"

	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

const (
	// maxHeaderValue is the maximum length of a value of a header that is compared exactly. Envoy
	// limits the depth of expressions.
	maxHeaderValue = 200
	// maxHeaderSize is the maximum length of all expressions for exact values of headers in the rules
	// of a workload. An expression is about ten times as long as its value.
	maxHeaderSize = 512 << 10
)

// headerBudget is the length of expressions for values of headers that the rules of a workload may
// still add. A value whose expression it does not return matches nothing, or is not excluded.
type headerBudget struct {
	left     int
	lost     string // why a value of the rule that is being converted has no expression
	problems []model.Problem
}

// different returns the expression for the texts that do not match a value.
func (b *headerBudget) different(value string) (string, bool) {
	expr, ok := different(value)
	reason := ""
	switch {
	case !ok:
		reason = fmt.Sprintf("the value %.80q of a header is not printable ASCII of at most %d bytes: it never matches; write its beginning and \"*\"", value, maxHeaderValue)
	case len(expr) > b.left:
		reason = fmt.Sprintf("the values of headers in the policies of a workload need more than %d KiB of expressions: from the value %.80q on, they never match; write fewer or shorter values", maxHeaderSize>>10, value)
		b.left = 0
	default:
		b.left -= len(expr)
	}
	if b.lost == "" {
		b.lost = reason
	}
	return expr, reason == ""
}

// ruleEnds reports the values of the rule that was converted.
func (b *headerBudget) ruleEnds(policy *snapshot.AuthorizationPolicy, i int) {
	if b.lost != "" {
		b.problems = append(b.problems, model.Problem{Object: policy.Config.Key, Source: policy.Config.Source, Reason: fmt.Sprintf("spec.rules[%d]: %s", i, b.lost)})
	}
	b.lost = ""
}

// header returns the conversion of the values of a header.
func (c *converter) header(name string) func(value string, wide bool) (*rbacv3.Principal, bool) {
	named := name != "" && !strings.ContainsAny(name, "\x00\r\n")
	if c.reads == ofLibrary {
		name = strings.ToLower(name) // some gRPC libraries compare it exactly
	}
	of := func(m *routev3.HeaderMatcher) *rbacv3.Principal {
		return &rbacv3.Principal{Identifier: &rbacv3.Principal_Header{Header: m}}
	}
	return func(value string, wide bool) (*rbacv3.Principal, bool) {
		switch {
		case value == "*":
			return of(&routev3.HeaderMatcher{Name: name, HeaderMatchSpecifier: &routev3.HeaderMatcher_PresentMatch{PresentMatch: true}}), named
		case wide:
			return of(valued(name, pattern(c.bytes(listed(value))))), named
		}
		m := of(valued(name, text(value, false)))
		if c.reads != ofRequests {
			return m, named
		}
		// One value of a header that is sent several times is enough for Envoy. The other values must
		// match, too.
		other, ok := c.headers.different(value)
		if ok {
			m = callers.all([]*rbacv3.Principal{m, callers.not(of(valued(name, pattern(other))))})
		}
		return m, ok && named
	}
}

// bytes returns an expression in which a dot matches any byte, also one that is not UTF-8. Envoy
// needs that; gRPC libraries do not, and do not know the syntax.
func (c *converter) bytes(expr string) string {
	if c.reads == ofLibrary {
		return expr
	}
	return strings.ReplaceAll(expr, ".*", `\C*`)
}

// different returns a regular expression for the texts that do not match a value. Texts of another
// length need not be UTF-8. It returns false if the value is not printable ASCII, or too long.
func different(value string) (string, bool) {
	kind, rest := parse(value)
	if len(rest) == 0 || len(rest) > maxHeaderValue || strings.ContainsFunc(rest, func(r rune) bool { return r < ' ' || r > '~' }) {
		return "", false
	}
	lengths := fmt.Sprintf(`\C{0,%d}`, len(rest)-1)
	var out strings.Builder
	last := len(rest) - 1
	switch kind {
	case exact, prefix:
		for i := range last {
			out.WriteString("(" + class(rest[i], true) + ".*|" + class(rest[i], false))
		}
		out.WriteString("(" + class(rest[last], true) + ".*")
		if kind == exact {
			out.WriteString("|" + class(rest[last], false) + ".+")
			lengths += fmt.Sprintf(`|\C{%d,}`, len(rest)+1)
		}
		out.WriteString(strings.Repeat(")?", len(rest)))
	case suffix:
		for i := last; i > 0; i-- {
			out.WriteString("(.*" + class(rest[i], true) + "|")
		}
		out.WriteString("(.*" + class(rest[0], true) + ")?")
		for i := 1; i <= last; i++ {
			out.WriteString(class(rest[i], false) + ")?")
		}
	case present:
		return "", false
	}
	return "(?s)" + lengths + "|" + out.String(), true
}

// class returns a regular expression for a character, or for all others.
func class(char byte, others bool) string {
	text := string(char)
	if !('a' <= char && char <= 'z' || 'A' <= char && char <= 'Z' || '0' <= char && char <= '9') {
		text = fmt.Sprintf(`\x%02x`, char)
	}
	if others {
		return "[^" + text + "]"
	}
	return text
}
