// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package analyze

import (
	"embed"
	"fmt"
	"slices"
	"strings"
)

// examples has for each code an object with the mistake, the finding, and the object without it. The
// tests check them.
//
//go:embed testdata/IST* testdata/OUT*
var examples embed.FS

// pageWidth is the width of sentences in pages, in characters.
const pageWidth = 80

// Page returns what a code means, with an example and its correction, in Markdown. It returns false for
// an unknown code.
func Page(code string) (string, bool) {
	i := slices.IndexFunc(checks[:], func(c Check) bool { return c.Code == code })
	if i < 0 {
		return "", false
	}
	c := checks[i]
	if c.Absent != "" {
		about := Wrap("A code of istioctl analyze. It is not reported: "+c.Absent+".", "", pageWidth)
		return fmt.Sprintf("# %s: %s\n\n%s", c.Code, c.Name, about), true
	}
	var b strings.Builder
	about := Wrap(fmt.Sprintf("Severity: %s. It is reported when %s.", c.Severity, c.About), "", pageWidth)
	fmt.Fprintf(&b, "# %s: %s\n\n%s", c.Code, c.Name, about)
	for _, part := range [][2]string{
		{"With these objects", ".yaml"}, {"outrigger analyze prints", ".golden"}, {"With these it does not", ".healthy.yaml"},
	} {
		text, err := examples.ReadFile("testdata/" + code + part[1])
		if err != nil {
			continue // the tests check that there is one
		}
		fmt.Fprintf(&b, "\n%s:\n\n", part[0])
		for line := range strings.Lines(string(text)) {
			b.WriteString(strings.TrimRight("    "+line, " \n") + "\n")
		}
	}
	return b.String(), true
}
