// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package analyze

import (
	"fmt"
	"strings"
)

// Document returns the page of the codes, in Markdown.
func Document() string {
	var b strings.Builder
	b.WriteString("# Analysis\n\nThe findings of `outrigger analyze`. `outrigger explain CODE` prints an example of each and its\ncorrection. Made from the program by `make generate`.\n")
	table := func(title string, row func(Check) (cells string, ok bool), head string) {
		fmt.Fprintf(&b, "\n## %s\n\n%s", title, head)
		for _, c := range Checks() {
			if cells, ok := row(c); ok {
				fmt.Fprintf(&b, "| `%s` | %s |\n", c.Code, cells)
			}
		}
	}
	found := func(prefix string) func(Check) (string, bool) {
		return func(c Check) (string, bool) {
			return fmt.Sprintf("%s | %s | %s", c.Name, c.Severity, c.About), c.Absent == "" && strings.HasPrefix(c.Code, prefix)
		}
	}
	const head = "| code | name | severity | when |\n|---|---|---|---|\n"
	table("Codes of istioctl analyze", found("IST"), head)
	table("Codes of Outrigger", found("OUT"), head)
	table("Codes of istioctl analyze that are not reported", func(c Check) (string, bool) {
		return c.Name + " | " + c.Absent, c.Absent != ""
	}, "| code | name | why |\n|---|---|---|\n")
	return b.String()
}
