// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package analyze

import (
	"os"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/internal/columns"
)

//go:generate go test -run ^TestDocument$ . -update

// TestPages checks that each code has a page, with the mistake, its findings with their cures, and the
// correction.
func TestPages(t *testing.T) {
	t.Parallel()
	for _, c := range Checks() {
		e, ok := Explain(c.Code)
		page := e.Page(80)
		if c.Absent != "" {
			if !ok || !strings.Contains(strings.ReplaceAll(page, "\n", " "), c.Absent) {
				t.Errorf("the page of %s is\n%s", c.Code, page)
			}
			continue
		}
		if parts := strings.Count(page, ":\n\n    "); !ok || parts != 4 || e.Example == e.Corrected || !strings.Contains(page, "\n    "+string(c.Severity)+" "+c.Code+" ") {
			t.Errorf("the page of %s is\n%s", c.Code, page)
		}
		heads := 0
		for line := range strings.Lines(e.Findings) {
			if strings.HasPrefix(line, " ") {
				continue
			}
			if heads++; !strings.HasPrefix(line, string(c.Severity)+" "+c.Code+" ") {
				t.Errorf("the findings of %s contain %s", c.Code, line)
			}
		}
		if lines := strings.Count(e.Findings, "\n"); lines != 3*heads {
			t.Errorf("%s has %d findings in %d lines, want the object, the mistake and the cure of each", c.Code, heads, lines)
		}
	}
	if e, ok := Explain("IST9999"); ok {
		t.Errorf("an unknown code has the page\n%s", e.Page(80))
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

// TestTextInPipes checks that a finding without a terminal is one line, whatever it has.
func TestTextInPipes(t *testing.T) {
	t.Parallel()
	f := Finding{Code: "IST0101", Severity: Error, Object: Object{Kind: "VirtualService", Namespace: "shop", Name: "web"}, Source: "web.yaml:3", Message: strings.Repeat("It is\nwrong. ", 20), Cure: "Correct it."}
	want := "ERROR IST0101 VirtualService/shop/web  web.yaml:3: " + strings.Repeat("It is wrong. ", 20) + "Correct it.\n"
	if got := f.Text(columns.Unlimited); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if f.Source, f.Cure = "", ""; strings.Count(f.Text(columns.Unlimited), "\n") != 1 || strings.Count(f.Text(80), "\n") < 4 {
		t.Errorf("got %q, and %q with 80 columns", f.Text(columns.Unlimited), f.Text(80))
	}
}
