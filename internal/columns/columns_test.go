// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package columns

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestFit checks that lines are no longer than the width, and that what is not in them is named.
func TestFit(t *testing.T) {
	t.Parallel()
	rows := [][]string{{"NAMESPACE", "NAME", "HOSTS", "AGE"}, {"default", strings.Repeat("é", 40), strings.Repeat("host", 30), "5m"}}
	for width := 20; width < 200; width++ {
		table := Fit(rows, "HOSTS", width)
		for _, line := range table.Lines {
			if n := utf8.RuneCountInString(line); n > width {
				t.Errorf("a line has %d characters, want at most %d: %s", n, width, line)
			}
		}
		all := slices.Concat(strings.Fields(table.Lines[0]), table.Missing)
		if width > 30 && !slices.Equal(all, rows[0]) {
			t.Errorf("the columns of width %d are %q", width, all)
		}
		if full := strings.Contains(table.Lines[1], rows[1][1]) && strings.Contains(table.Lines[1], rows[1][2]); full == table.Shortened && len(table.Missing) == 0 {
			t.Errorf("of width %d: shortened is %t:\n%s", width, table.Shortened, table.Lines[1])
		}
	}
	if table := Fit(rows, "", Unlimited); table.Shortened || len(table.Missing) > 0 || utf8.RuneCountInString(table.Lines[0]) != Width(rows) {
		t.Errorf("without a limit: %+v", table)
	}
}

func TestShorten(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		text string
		n    int
		want string
	}{
		{"catalog.shop", 12, "catalog.shop"},
		{"catalog.shop", 11, "cat…og.shop"},
		{"ünïcödé.shop", 10, "ünï…é.shop"},
		{"", 0, ""},
		{"abcdef", -5, "…ef"},
	} {
		if got := Shorten(tc.text, tc.n); got != tc.want {
			t.Errorf("Shorten(%q, %d) = %q, want %q", tc.text, tc.n, got, tc.want)
		}
	}
}
