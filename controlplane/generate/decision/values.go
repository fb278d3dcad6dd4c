// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package decision

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
)

// lower returns a text with letters of ASCII in lower case, as Envoy compares.
func lower(s string) string {
	if !strings.ContainsFunc(s, func(r rune) bool { return 'A' <= r && r <= 'Z' }) {
		return s
	}
	out := []byte(s) // which need not be UTF-8
	for i, c := range out {
		if 'A' <= c && c <= 'Z' {
			out[i] = c + 'a' - 'A'
		}
	}
	return string(out)
}

func joined(values []string) string { return strings.Join(values, ",") }

func withoutQuery(path string) string {
	if i := strings.IndexAny(path, "?#"); i >= 0 {
		return path[:i]
	}
	return path
}

// string compiles the matcher of a text.
func (c *compiler) string(m *matcherv3.StringMatcher) (func(string) bool, error) {
	fold := func(s string) string { return s }
	if m.GetIgnoreCase() {
		fold = lower
	}
	switch of := m.GetMatchPattern().(type) {
	case *matcherv3.StringMatcher_Exact:
		want := fold(of.Exact)
		return func(s string) bool { return fold(s) == want }, nil
	case *matcherv3.StringMatcher_Prefix:
		want := fold(of.Prefix)
		return func(s string) bool { return strings.HasPrefix(fold(s), want) }, nil
	case *matcherv3.StringMatcher_Suffix:
		want := fold(of.Suffix)
		return func(s string) bool { return strings.HasSuffix(fold(s), want) }, nil
	case *matcherv3.StringMatcher_SafeRegex:
		p, err := c.pattern(of.SafeRegex.GetRegex())
		if err != nil {
			return nil, err
		}
		return p.matches, nil
	default:
		return nil, fmt.Errorf("the matcher %T of texts is not supported", of)
	}
}

// pattern compiles a regular expression, unless it is compiled already.
func (c *compiler) pattern(expr string) (*pattern, error) {
	if p := c.patterns[expr]; p != nil {
		return p, nil
	}
	p, err := newPattern(expr)
	if err != nil {
		return nil, err
	}
	c.patterns[expr] = p
	return p, nil
}

// metadata compiles the matcher of a value in the metadata of the request.
func (c *compiler) metadata(m *rbacv3.SourcedMetadata) (*matcher, error) {
	if m.GetMetadataSource() != rbacv3.MetadataSource_DYNAMIC {
		return nil, fmt.Errorf("metadata of %s is not supported", m.GetMetadataSource())
	}
	at, test, err := c.inMetadata(m.GetMetadataMatcher())
	if err != nil {
		return nil, err
	}
	keys := pathOf(m.GetMetadataMatcher())
	name := "experimental." + m.GetMetadataMatcher().GetFilter() + "[" + strings.Join(keys, "][") + "]"
	if m.GetMetadataMatcher().GetFilter() == envoyconf.TokenFilter && len(keys) > 1 && keys[0] == envoyconf.TokenPayload {
		name = "request.auth.claims[" + strings.Join(keys[1:], "][") + "]"
	}
	value := func(f *facts) string {
		switch v := at(f).(type) {
		case absent:
			return ""
		case string:
			return v
		default:
			b, err := json.Marshal(v)
			if err != nil {
				return ""
			}
			return string(b)
		}
	}
	return &matcher{leaf: leaf{name, value, test}}, nil
}

func pathOf(m *matcherv3.MetadataMatcher) []string {
	var out []string
	for _, segment := range m.GetPath() {
		out = append(out, segment.GetKey())
	}
	return out
}

// absent is the value of metadata that is not set.
type absent struct{}

// inMetadata returns functions that read a value, and test it.
func (c *compiler) inMetadata(m *matcherv3.MetadataMatcher) (at func(*facts) any, test func(*facts) bool, err error) {
	if m.GetInvert() {
		return nil, nil, fmt.Errorf("an inverted matcher of metadata is not supported")
	}
	keys := pathOf(m)
	if len(keys) == 0 {
		return nil, nil, fmt.Errorf("a matcher of metadata has no path")
	}
	if m.GetFilter() == envoyconf.TokenFilter {
		c.claims[keys[min(1, len(keys)-1)]] = true // the first one is that of all claims
	}
	at = func(f *facts) any {
		value, ok := f.metadata[m.GetFilter()][keys[0]]
		for _, key := range keys[1:] {
			var of map[string]any
			if of, ok = value.(map[string]any); !ok {
				break
			}
			value, ok = of[key]
		}
		if !ok {
			return absent{}
		}
		return value
	}
	is, err := c.value(m.GetValue())
	if err != nil {
		return nil, nil, err
	}
	return at, func(f *facts) bool { return is(at(f)) }, nil
}

// value compiles the matcher of a value of JSON.
func (c *compiler) value(m *matcherv3.ValueMatcher) (func(any) bool, error) {
	switch of := m.GetMatchPattern().(type) {
	case *matcherv3.ValueMatcher_StringMatch:
		test, err := c.string(of.StringMatch)
		return func(v any) bool { s, ok := v.(string); return ok && test(s) }, err
	case *matcherv3.ValueMatcher_BoolMatch:
		return func(v any) bool { return v == of.BoolMatch }, nil
	case *matcherv3.ValueMatcher_DoubleMatch:
		exact, ok := of.DoubleMatch.GetMatchPattern().(*matcherv3.DoubleMatcher_Exact)
		if !ok {
			return nil, fmt.Errorf("the matcher %T of numbers is not supported", of.DoubleMatch.GetMatchPattern())
		}
		return func(v any) bool { return v == exact.Exact }, nil
	case *matcherv3.ValueMatcher_PresentMatch:
		return func(v any) bool { return (v != absent{}) == of.PresentMatch }, nil
	case *matcherv3.ValueMatcher_ListMatch:
		test, err := c.value(of.ListMatch.GetOneOf())
		return func(v any) bool { list, ok := v.([]any); return ok && slices.ContainsFunc(list, test) }, err
	case *matcherv3.ValueMatcher_OrMatch:
		var tests []func(any) bool
		for _, one := range of.OrMatch.GetValueMatchers() {
			test, err := c.value(one)
			if err != nil {
				return nil, err
			}
			tests = append(tests, test)
		}
		return func(v any) bool {
			return slices.ContainsFunc(tests, func(test func(any) bool) bool { return test(v) })
		}, nil
	default:
		return nil, fmt.Errorf("the matcher %T of values is not supported", of)
	}
}
