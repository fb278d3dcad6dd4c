// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// The widths of the source of a document, in characters.
const (
	maxLine = 100
	maxRow  = 120 // of a table
)

// TestDocumentWidth finds lines that are too wide for a terminal, outside of code and of generated
// documents.
func TestDocumentWidth(t *testing.T) {
	t.Parallel()
	for _, file := range walk(t, ".md") {
		text := fencedBlock.ReplaceAllString(byHand(document(t, file)), "")
		for line := range strings.SplitSeq(text, "\n") {
			limit := maxLine
			if strings.HasPrefix(line, "|") {
				limit = maxRow
			}
			if utf8.RuneCountInString(line) > limit && strings.Contains(strings.TrimSpace(line), " ") {
				t.Errorf("%s: %d characters, at most %d: %.60s…", file, utf8.RuneCountInString(line), limit, line)
			}
		}
	}
}

var (
	generatedPage = regexp.MustCompile("(?m)^.*Made from .* by `make generate`")
	generatedPart = regexp.MustCompile(`(?s)<!-- [a-z-]+: made by make \w+ -->.*?<!-- end -->`)
)

// byHand returns the parts of a document that are written by hand.
func byHand(text string) string {
	if generatedPage.MatchString(text) {
		return ""
	}
	return generatedPart.ReplaceAllString(text, "")
}

var (
	fencedBlock = regexp.MustCompile("(?ms)^```.*?^```$")
	heading     = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	inlineLink  = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	notInAnchor = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// anchors returns the anchors of the headings of a document, as Markdown renderers
// make them: lower case, without punctuation, blanks as hyphens.
func anchors(text string) map[string]bool {
	all := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(fencedBlock.ReplaceAllString(text, ""), -1) {
		title := inlineLink.ReplaceAllString(strings.TrimSpace(m[1]), "$1")
		title = notInAnchor.ReplaceAllString(strings.ToLower(title), "")
		all[strings.ReplaceAll(title, " ", "-")] = true
	}
	return all
}

// linkProblem returns why a link of a document is broken, or "".
func linkProblem(t *testing.T, file, link string) string {
	t.Helper()
	target, fragment, hasFragment := strings.Cut(link, "#")
	path := file
	if target != "" {
		path = filepath.Join(filepath.Dir(file), target)
	}
	if _, err := os.Stat(filepath.Join(root, path)); err != nil {
		return "there is no such file"
	}
	if hasFragment && filepath.Ext(path) == ".md" && !anchors(document(t, path))[fragment] {
		return "the document has no such heading"
	}
	return ""
}

// TestAnchors tests the check of links itself.
func TestAnchors(t *testing.T) {
	t.Parallel()
	got := anchors("# The mesh file\n## What `up` makes, and [where](x.md)\n```sh\n# comment\n```\n### x-forwarded-client-cert\n")
	for _, want := range []string{"the-mesh-file", "what-up-makes-and-where", "x-forwarded-client-cert"} {
		if !got[want] {
			t.Errorf("the anchors %v lack %q", got, want)
		}
	}
	if got["comment"] {
		t.Errorf("the comment in a block of code is an anchor: %v", got)
	}
	for link, found := range map[string]bool{"docs/concepts.md": true, "docs/concepts.md#words": true, "docs/concepts.md#nothing": false, "docs/nothing.md": false, "#run-it": true, "#nothing": false} {
		if got := linkProblem(t, "README.md", link) == ""; got != found {
			t.Errorf("the link %s leads somewhere: %v, want %v", link, got, found)
		}
	}
}
