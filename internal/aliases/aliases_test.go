// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package aliases

import (
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	laughs := "a0: &a0 [x, x]\n"
	for n := byte('1'); n <= '9'; n++ {
		before := "*a" + string(n-1)
		laughs += "a" + string(n) + ": &a" + string(n) + " [" + strings.Repeat(before+", ", 9) + before + "]\n"
	}
	for name, c := range map[string]struct{ text, want string }{
		"nothing":           {"", ""},
		"an asterisk":       {"a: '*'", ""},
		"an alias":          {"a: &a {b: c}\nd: *a\ne: {<<: *a}", ""},
		"no YAML":           {"a: [*", "yaml"},
		"a long text":       {"a: " + strings.Repeat("x", 3<<20), ""},
		"a long text often": {"a: &a " + strings.Repeat("x", 50_000) + "\nb: [" + strings.Repeat("*a, ", 1000) + "]", "line 2: the aliases of the document expand to more than 2097152 bytes: write the text out"},
		"lists of lists":    {laughs, "expand to more than"},
		"merged keys":       {"a: &a {k: " + strings.Repeat("x", 50_000) + "}\nb: [" + strings.Repeat("{<<: *a}, ", 1000) + "]", "expand to more than"},
		"itself":            {"a: &a [*a]", "*a refers to a node that contains it"},
	} {
		err := Check([]byte(c.text))
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: Check() = %v, want %q", name, err, c.want)
		}
	}
}
