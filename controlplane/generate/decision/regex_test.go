// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package decision

import (
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestPattern compares with what RE2 matches.
func TestPattern(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		expr, text string
		want       bool
	}{
		{"a", "a", true},
		{"a", "ab", false},
		{"a|ab", "ab", true},
		{"(?i)a|b", "B", true},
		{".*", "a\xff", false},
		{`\C*`, "a\xff", true},
		{`\C{2}`, "\xc3\xa9", true},
		{`\C{1}`, "\xc3\xa9", false},
		{`.{1}`, "\xc3\xa9", true},
		{`.`, "\n", false},
		{`(?s).`, "\n", true},
		{`[^a]`, "\xff", false},
		{`[^a]`, "\xc3\xa9", true},
		{`[^a]\C*`, "b\xff", true},
		{`\\C`, `\C`, true},
		{`\\C`, `\x`, false},
		{`a\C*,b`, "a\xff\xfe,b", true},
		{`a\C*,b`, "a\xff\xfe,c", false},
		{`(?i)k`, "\u212a", true},
		{`k`, "\u212a", false},
		{`é+`, "éé", true},
		{`[à-ü]x`, "éx", true},
		{`[à-ü]x`, "\u0100x", false},
		{`(é|b)?c{2,3}`, "écc", true},
		{`[\x{800}-\x{ffff}]`, "\u07ff", false},
		{`[\x{800}-\x{ffff}]`, "\u0800", true},
		{`[\x{7ff}-\x{10000}]`, "\U00010000", true},
		{`[\x{7ff}-\x{10000}]`, "\U00010001", false},
	} {
		p, err := newPattern(c.expr)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.matches(c.text); got != c.want {
			t.Errorf("%s, %q: got %t", c.expr, c.text, got)
		}
	}
	for _, expr := range []string{"(", ")|("} {
		if _, err := newPattern(expr); err == nil {
			t.Errorf("the broken expression %s is accepted", expr)
		}
	}
}

// FuzzPattern compares with package regexp for texts that are UTF-8.
func FuzzPattern(f *testing.F) {
	f.Add("(?is)a[^é].*|ü{2}", "aéü")
	f.Add(`[\x00-\x{ffff}]+`, "aé\U00010000")
	f.Fuzz(func(t *testing.T, expr, text string) {
		if len(expr) > 100 || len(text) > 100 || !utf8.ValidString(text) || strings.Contains(expr, `\C`) || strings.ContainsRune(expr, anyByte) || strings.ContainsRune(text, utf8.RuneError) {
			return
		}
		if _, err := regexp.Compile(expr); err != nil {
			return
		}
		want, err := regexp.Compile(`\A(?:` + expr + `)\z`)
		if err != nil {
			return
		}
		p, err := newPattern(expr)
		if err != nil {
			t.Fatalf("%q: %v", expr, err)
		}
		if got := p.matches(text); got != want.MatchString(text) {
			t.Errorf("%q, %q: got %t", expr, text, got)
		}
	})
}
