// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package columns

import (
	"fmt"
	"strings"
	"testing"
)

func TestWrap(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ text, want string }{
		"short":    {"a b\n\n  c", "a b\n\n  c"},
		"sentence": {"The terminal is too narrow for REVISION, SOURCE.\n", "The terminal is too\n  narrow for\n  REVISION, SOURCE.\n"},
		"column":   {"  -o, -a  the meaning of it\n", "  -o, -a  the\n          meaning of\n          it\n"},
		"far":      {"      --output-threshold string  least severity\n", "      --output-threshold string\n          least\n          severity\n"},
		"long":     {"see https://example.com/a/long/path for it", "see\n  https://example.com/a/long/path\n  for it"},
		"one word": {"https://example.com/a/long/path\n", "https://example.com/a/long/path\n"},
		"command":  {"  outrigger get vs catalog -n shop  # in YAML, all of it\n", "  # in YAML, all of\n  # it\n  outrigger get vs \\\n    catalog -n shop\n"},
		"colours":  {"\x1b[31merror: a\x1b[0m bbb ccc ddd\n", "\x1b[31merror: a\x1b[0m bbb ccc ddd\n"},
		"runes":    {strings.Repeat("é", 12) + " " + strings.Repeat("ü", 12), strings.Repeat("é", 12) + "\n  " + strings.Repeat("ü", 12)},
	} {
		if got := Wrap(tc.text, 20); got != tc.want {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
	}
}

// TestWriter writes the parts of lines.
func TestWriter(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	w := &Writer{Out: &out, Width: 10}
	for _, part := range []string{"one two three\nfour ", "five six\nseven eight nine\n", "", "Apply it? [y/N] "} {
		if n, err := fmt.Fprint(w, part); err != nil || n != len(part) {
			t.Errorf("%q: got %d, %v", part, n, err)
		}
	}
	if _, err := fmt.Fprint(Raw(w), "a line that stays as it is"); err != nil {
		t.Error(err)
	}
	if got, want := out.String(), "one two\n  three\nfour five six\nseven\n  eight\n  nine\nApply it?\n  [y/N] a line that stays as it is"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if OfTerminal(w) != 10 || OfTerminal(&out) != 0 || OfTerminal(&Writer{Out: &out}) != 0 {
		t.Error("the widths are wrong")
	}
}

func TestFill(t *testing.T) {
	t.Parallel()
	if got, want := Fill("One two\nthree four.\n\nAll:\n  A  b\n  C  d\n\nFive six\nseven.", 10), "One two\nthree\nfour.\n\nAll:\n  A  b\n  C  d\n\nFive six\nseven."; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
