// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package analyze

import (
	"embed"
	"fmt"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/internal/columns"
)

// examples has for each code an object with the mistake, the finding, and the object without it, and
// base.yaml, which is beside each. The tests check them.
//
//go:embed testdata/base.yaml testdata/IST* testdata/OUT*
var examples embed.FS

// Explanation is what a code means.
type Explanation struct {
	Code     string   `json:"code"`
	Name     string   `json:"name"`
	Severity Severity `json:"severity"`
	// When says when the code is reported, NotReported why it never is.
	When        string `json:"when,omitempty"`
	NotReported string `json:"notReported,omitempty"`
	// Example are objects with the mistake, Findings is what an analysis prints about the code, Corrected
	// are the objects without the mistake, Beside are objects that both need.
	Example   string `json:"example,omitempty"`
	Findings  string `json:"findings,omitempty"`
	Corrected string `json:"corrected,omitempty"`
	Beside    string `json:"beside,omitempty"`
}

// Explain returns what a code means. It returns false for an unknown code.
func Explain(code string) (Explanation, bool) {
	i := slices.IndexFunc(checks[:], func(c Check) bool { return c.Code == code })
	if i < 0 {
		return Explanation{}, false
	}
	c := checks[i]
	e := Explanation{Code: c.Code, Name: c.Name, Severity: c.Severity, When: c.About, NotReported: c.Absent}
	if c.Absent == "" {
		e.Example, e.Corrected, e.Beside = example(code+".yaml"), example(code+".healthy.yaml"), example("base.yaml")
		e.Findings = findingsOf(code, example(code+".golden"))
	}
	return e, true
}

// example returns a file of the examples.
func example(name string) string {
	text, err := examples.ReadFile("testdata/" + name)
	if err != nil {
		return "" // the tests check that it is there
	}
	return string(text)
}

// findingsOf returns the findings of a code among others: lines with the code, and indented lines.
func findingsOf(code, all string) string {
	var b strings.Builder
	of := false
	for line := range strings.Lines(all) {
		if !strings.HasPrefix(line, " ") {
			of = strings.Contains(line, " "+code+" ")
		}
		if of {
			b.WriteString(line)
		}
	}
	return b.String()
}

// Page returns the explanation in Markdown, with sentences and findings in lines of at most width
// characters. Objects stay as they are, so that they can be copied.
func (e Explanation) Page(width int) string {
	const findings = "outrigger analyze prints"
	var b strings.Builder
	fmt.Fprintf(&b, "# %s: %s\n\n", e.Code, e.Name)
	if e.NotReported != "" {
		b.WriteString(Wrap("A code of istioctl analyze. It is not reported: "+e.NotReported+".", "", width))
		return b.String()
	}
	b.WriteString(Wrap(fmt.Sprintf("Severity: %s. It is reported when %s.", e.Severity, e.When), "", width))
	for _, part := range [][2]string{
		{"With these objects", e.Example}, {findings, e.Findings}, {"With these it does not", e.Corrected}, {"In base.yaml, beside both", e.Beside},
	} {
		fmt.Fprintf(&b, "\n%s:\n\n", part[0])
		for line := range strings.Lines(part[1]) {
			line = strings.TrimRight("    "+line, " \n") + "\n"
			if part[0] == findings {
				line = columns.Wrap(line, width)
			}
			b.WriteString(line)
		}
	}
	return b.String()
}
