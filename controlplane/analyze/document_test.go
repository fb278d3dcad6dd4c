// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package analyze

import (
	"os"
	"strings"
	"testing"
)

//go:generate go test -run ^TestDocument$ . -update

// TestPages checks that each code has a page, with the mistake, the finding and the correction.
func TestPages(t *testing.T) {
	t.Parallel()
	for _, c := range Checks() {
		page, ok := Page(c.Code)
		parts := strings.Count(page, ":\n\n    ")
		if !ok || c.Absent == "" && (parts != 3 || !strings.Contains(page, "\n    "+string(c.Severity)+" "+c.Code+" ")) || c.Absent != "" && !strings.Contains(strings.ReplaceAll(page, "\n", " "), c.Absent) {
			t.Errorf("the page of %s is\n%s", c.Code, page)
		}
	}
	if page, ok := Page("IST9999"); ok {
		t.Errorf("an unknown code has the page\n%s", page)
	}
}

// TestDocument compares the page of the codes with the table.
func TestDocument(t *testing.T) {
	t.Parallel()
	const file = "../../docs/reference/analysis.md"
	if *update {
		if err := os.WriteFile(file, []byte(Document()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != Document() {
		t.Errorf("%s is not what the table of codes says: run make generate", file)
	}
}
