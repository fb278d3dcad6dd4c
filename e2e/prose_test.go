// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package e2e

import (
	"fmt"
	"go/ast"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// Comments, messages and documents are plain technical English. TestProse finds phrases
// that are not. The spelling is checked by make lint.

// banned are phrases that have a plain equivalent.
var banned = []struct{ phrase, instead string }{
	{`(is|are|was|were|be|been) told`, "receives, is reported, is known"},
	{`mended`, "fixed, corrected"},
	{`stands? in`, "is in, contains"},
	{`whoever`, "a caller that, anyone who"},
	{`people`, "users, operators"},
	{`none of these (is|are)`, "any other value is"},
	{`the asker('s)?`, "the caller"},
	{`gives (the|a|an|all|each|every|no|what|whether|how|which)`, "returns, reports, sets"},
	{`is given (the|a|an|its|no|what)`, "receives, has, takes"},
	{`for ever`, "indefinitely, forever"},
	{`keepers?`, "the name of what it does: canary, store, cache"},
	{`circles?`, "canary group"},
	{`crowds?`, "connection limit"},
	{`hotline`, "shared memory"},
	{`spoilt`, "invalid, quarantined"},
	{`on trial`, "candidate"},
	{`in sight`, "visible"},
	{`by (itself|themselves) again`, "automatically"},
	{`it is looked`, "checks"},
	{`nothing of (it|this|them)`, "none of its …"},
	{`the like`, "name what it is"},
	{`comes? to know`, "learns, receives"},
	{`anew`, "again"},
	{`(it|that|which) is no (JSON|YAML|URL|string|number|text|file|frame|protobuf|port|duration|socket|success)`, "is not a"},
	{`looked at again`, "checked again, retried"},
	{`it is tried again`, "retrying, it is retried"},
}

// startsWithGives finds the doc comment of a function that "gives" its result.
var startsWithGives = regexp.MustCompile(`^\w+ gives `)

func bannedExpression() *regexp.Regexp {
	var all []string
	for _, b := range banned {
		all = append(all, b.phrase)
	}
	return regexp.MustCompile(`(?i)\b(` + strings.Join(all, "|") + `)\b`)
}

// instead says what to write for a phrase that was found.
func instead(found string) string {
	for _, b := range banned {
		if regexp.MustCompile(`(?i)^(` + b.phrase + `)$`).MatchString(found) {
			return b.instead
		}
	}
	return "returns"
}

// passage is text for a reader, with the place where it begins.
type passage struct {
	place, text string
}

// passages returns the comments and strings of Go files and the text of documents,
// without what is generated and what a reader copies.
func passages(t *testing.T) []passage {
	t.Helper()
	var all []passage
	for _, s := range sources(t) {
		if ast.IsGenerated(s.file) || s.path == filepath.Join("e2e", "prose_test.go") {
			continue
		}
		add := func(n ast.Node, text string) {
			text = strings.Join(strings.Fields(text), " ")
			text = strings.ReplaceAll(text, "told apart", "distinguished") // plain English as well
			all = append(all, passage{fmt.Sprintf("%s:%d", s.path, s.line(n)), text})
		}
		for _, group := range s.file.Comments {
			add(group, group.Text())
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
				if text, err := strconv.Unquote(l.Value); err == nil {
					add(l, text)
				}
			}
			return true
		})
	}
	for _, file := range walk(t, ".md") {
		text := codeBlock.ReplaceAllString(byHand(document(t, file)), "")
		all = append(all, passage{file, strings.Join(strings.Fields(text), " ")})
	}
	return all
}

func TestProse(t *testing.T) {
	t.Parallel()
	expression := bannedExpression()
	for _, p := range passages(t) {
		for _, phrase := range expression.FindAllString(p.text, -1) {
			t.Errorf("%s: %q: write %s", p.place, phrase, instead(phrase))
		}
		if m := startsWithGives.FindString(p.text); m != "" && !expression.MatchString(p.text) {
			t.Errorf("%s: %q: write returns", p.place, strings.TrimSpace(m))
		}
	}
}

// TestBannedPhrases keeps the list itself from becoming empty.
func TestBannedPhrases(t *testing.T) {
	t.Parallel()
	expression := bannedExpression()
	for text, want := range map[string]string{
		"who calls is told why":      "is told",
		"until it is Mended":         "Mended",
		"recommended":                "",
		"gives the key":              "gives the",
		"the config stands in files": "stands in",
		"returns the key":            "",
		"outstanding":                "",
		"a body that is no JSON":     "that is no JSON",
		"it is no longer served":     "",
	} {
		if got := expression.FindString(text); got != want {
			t.Errorf("%q: found %q, want %q", text, got, want)
		} else if got != "" && instead(got) == "" {
			t.Errorf("%q: nothing is proposed instead", got)
		}
	}
}
