// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// The documents match the code:
//
//   - docs/reference/metrics.md has the tables generated from the code (metrics_test.go);
//   - make targets that a document names exist, and CONTRIBUTING.md names all;
//   - docs/reference/mesh-file.md names every field of the mesh file, and
//     those of MeshConfig that have an effect;
//   - ARCHITECTURE.md and the pages for users stay short;
//   - the commands of the pages for users work (docs_run_test.go).

const (
	maxArchitecture = 300    // lines
	maxWords        = 15_000 // of the README and docs, written by hand
)

func document(t *testing.T, elem ...string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(append([]string{root}, elem...)...))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// all returns the first group of every match, sorted and unique.
func all(expression *regexp.Regexp, text string) []string {
	var found []string
	for _, m := range expression.FindAllStringSubmatch(text, -1) {
		found = append(found, m[1])
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// difference returns what is in a and not in b.
func difference(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(s string) bool { return slices.Contains(b, s) })
}

func TestMakeTargets(t *testing.T) {
	t.Parallel()
	targets := all(regexp.MustCompile(`(?m)^([a-z0-9-]+):.*## `), document(t, "Makefile"))
	named := regexp.MustCompile("(?m)(?:`|^|^[$] )make ([a-z0-9-]+)")
	for _, file := range walk(t, ".md") {
		for _, target := range difference(all(named, document(t, file)), targets) {
			t.Errorf("%s names make %s, which the Makefile does not have", file, target)
		}
	}
	for _, target := range difference(targets, all(named, document(t, "CONTRIBUTING.md"))) {
		t.Errorf("CONTRIBUTING.md does not name make %s", target)
	}
}

func TestMeshFileDocument(t *testing.T) {
	t.Parallel()
	fields := all(regexp.MustCompile(`(?:\btext\(|\bnumber\(|\{)"([a-zA-Z]+)", `), document(t, "mesh", "decode.go"))
	if len(fields) < 15 {
		t.Fatalf("only the fields %v were found in the code", fields)
	}
	doc := document(t, "docs", "reference", "mesh-file.md")
	for _, field := range fields {
		if !strings.Contains(doc, "`"+field+"`") {
			t.Errorf("docs/reference/mesh-file.md does not name `%s`", field)
		}
	}
	served := regexp.MustCompile(`(?s)var servedFields = .*?\n}`).FindString(document(t, "controlplane", "meshsettings", "fields.go"))
	settings := all(regexp.MustCompile(`"([a-zA-Z]+)"`), served)
	if len(settings) < 15 {
		t.Fatalf("only the fields %v of MeshConfig were found in the code", settings)
	}
	for _, field := range settings {
		if !strings.Contains(doc, "`"+field+"`") && !strings.Contains(doc, "`"+field+".") {
			t.Errorf("docs/reference/mesh-file.md does not name `%s` of MeshConfig", field)
		}
	}
}

func TestArchitectureIsShort(t *testing.T) {
	t.Parallel()
	if n := strings.Count(document(t, "ARCHITECTURE.md"), "\n"); n > maxArchitecture {
		t.Errorf("ARCHITECTURE.md has %d lines, more than %d", n, maxArchitecture)
	}
}

// TestDocumentWords limits the number of words of the pages for users. Words contain a letter; code
// blocks and generated parts do not count.
func TestDocumentWords(t *testing.T) {
	t.Parallel()
	words := 0
	for _, file := range walk(t, ".md") {
		if file != "README.md" && !below(file, "docs") {
			continue
		}
		for word := range strings.FieldsSeq(fencedBlock.ReplaceAllString(byHand(document(t, file)), "")) {
			if strings.ContainsFunc(word, unicode.IsLetter) {
				words++
			}
		}
	}
	if words < maxWords/2 || words > maxWords {
		t.Errorf("README.md and docs have %d words written by hand, at most %d are allowed", words, maxWords)
	}
}
