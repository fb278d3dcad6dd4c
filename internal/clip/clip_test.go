// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package clip

import "testing"

func TestText(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                   "",
		"short":              "short",
		"two\nlines\t":       "two\nlines\t",
		"0123456789":         "0123456789",
		"0123456789a":        "0123456789… (11 bytes)",
		"012345678é":         "012345678… (11 bytes)",
		"\x1b[2Jx":           `\x1b[2Jx`,
		"a\u202eb":           `a\u202eb`,
		"\xff\xfe":           `\xff\xfe`,
		"\x80\x80\x80\x80":   `\x80\x80\x80\x80`,
		"0123456789\xff\xff": "0123456789… (12 bytes)",
	} {
		if got := Text(in, 10); got != want {
			t.Errorf("Text(%q) = %q, want %q", in, got, want)
		}
	}
}

// TestCut checks that Cut only shortens, because the text will be quoted.
func TestCut(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"": "", "0123456789": "0123456789", "0123456789a": "0123456789… (11 bytes)", "012345678é": "012345678… (11 bytes)", "\x1b\xff": "\x1b\xff",
	} {
		if got := Cut(in, 10); got != want {
			t.Errorf("Cut(%q) = %q, want %q", in, got, want)
		}
	}
	if got := Cut("abc", 0); got != "… (3 bytes)" {
		t.Errorf("Cut(abc, 0) = %q", got)
	}
}
