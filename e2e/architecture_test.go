// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package e2e

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// architecture returns one section of ARCHITECTURE.md.
func architecture(t *testing.T, title string) string {
	t.Helper()
	_, text, found := strings.Cut(document(t, "ARCHITECTURE.md"), "\n## "+title+"\n")
	if !found {
		t.Fatalf("ARCHITECTURE.md has no section %q", title)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	return text
}

var codeSpan = regexp.MustCompile("`([^`]+)`")

// TestWhereToChange checks that the places that ARCHITECTURE.md names for changes exist: packages,
// files, and names of packages.
func TestWhereToChange(t *testing.T) {
	t.Parallel()
	rows := 0
	for line := range strings.Lines(architecture(t, "Where do I change …")) {
		cells := strings.Split(line, "|")
		if len(cells) != 4 || strings.HasPrefix(cells[1], "-") || cells[1] == " what " {
			continue
		}
		rows++
		base := "."
		if strings.HasPrefix(cells[2], " in `") {
			base = codeSpan.FindStringSubmatch(cells[2])[1]
		}
		for _, span := range codeSpan.FindAllStringSubmatch(cells[2], -1) {
			name := strings.TrimPrefix(span[1], base+"/")
			if name == base || !strings.Contains(name, "/") && base == "." && filepath.Ext(name) != ".txt" {
				continue // a name inside a package, or a command
			}
			if found, err := filepath.Glob(filepath.Join(root, base, name)); err != nil || len(found) == 0 {
				t.Errorf("%s: %s does not exist (%v)", strings.TrimSpace(cells[1]), path.Join(base, name), err)
			}
		}
	}
	if rows < 20 {
		t.Errorf("ARCHITECTURE.md lists the places of %d changes, want 20", rows)
	}
}

// required is a line of go.mod with a direct dependency.
var required = regexp.MustCompile(`(?m)^\t([^ \t]+\.[^ \t]+/[^ \t]+) v[^ \t]+$`)

// TestDependencyTable checks that ARCHITECTURE.md contains the purpose of each direct dependency.
func TestDependencyTable(t *testing.T) {
	t.Parallel()
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	table := architecture(t, "Dependencies")
	table, _, _ = strings.Cut(table, "\nWhat is done here, ") // the reasons after the table name some of them again
	modules := required.FindAllSubmatch(mod, -1)
	for _, m := range modules {
		parts := slices.DeleteFunc(strings.Split(string(m[1]), "/"), func(part string) bool {
			return regexp.MustCompile(`^(v[0-9]+|go|envoy|rpc|googleapis)$`).MatchString(part)
		})
		name := regexp.MustCompile(`\.v[0-9]+$`).ReplaceAllString(parts[len(parts)-1], "")
		if !regexp.MustCompile(`\b` + regexp.QuoteMeta(name) + `\b`).MatchString(table) {
			t.Errorf("ARCHITECTURE.md does not say why %s is used", m[1])
		}
	}
	if len(modules) < 30 {
		t.Errorf("%d direct dependencies were found in go.mod", len(modules))
	}
}
