// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package objects

import (
	"strings"
	"testing"
)

// TestComplete completes kinds, names and namespaces like a shell does.
func TestComplete(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.in = entry
	s.want("create -f -", 0, "workloadentry/one created\nworkloadentry/two in shop created\n", "")
	for line, want := range map[string]string{
		"get workloade|":        "workloadentry",
		"get tra|":              "trafficextension",
		"get w|":                "wasmplugin we wg workloadentry workloadgroup",
		"get we |":              "one",
		"describe we o|":        "one",
		"describe we x|":        "",
		"delete we -n shop |":   "two",
		"get we -A |":           "one two",
		"get we -n |":           "default shop",
		"delete -n s|":          "shop",
		"get nothing |":         "",
		"get we -o |":           "json name table wide yaml",
		"get workloadentry/on|": "workloadentry/one",
	} {
		text, _ := strings.CutSuffix(line, "|")
		args := append([]string{"__complete"}, strings.Split(text, " ")...)
		code, out, _ := s.run(args...)
		var got []string
		for line := range strings.Lines(out) {
			if line = strings.TrimSuffix(line, "\n"); !strings.HasPrefix(line, ":") {
				got = append(got, line)
			}
		}
		if code != 0 || strings.Join(got, " ") != want {
			t.Errorf("%s: code %d, %q, want %q", line, code, got, want)
		}
	}
}
