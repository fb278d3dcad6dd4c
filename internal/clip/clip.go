// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package clip

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Text returns a text of a peer as it may be logged or stored: at most limit
// bytes of it, followed by its length if it was longer, without characters that
// change how a terminal shows the rest. Line feeds and tabs stay.
func Text(s string, limit int) string {
	s, _ = Changed(s, limit)
	return s
}

// Changed is Text, and reports whether the result differs from s.
func Changed(s string, limit int) (clipped string, changed bool) {
	start, end := cut(s, limit)
	if strings.ContainsFunc(start, hidden) || !utf8.ValidString(start) {
		start, changed = visible(start), true
	}
	return start + end, changed || end != ""
}

// Cut returns at most limit bytes of a text that will be quoted, or has no special
// characters, followed by its length if it was longer.
func Cut(s string, limit int) string {
	start, end := cut(s, limit)
	return start + end
}

// cut returns the beginning of a text, up to a character's end, and what stands for
// the rest; empty: there is none.
func cut(s string, limit int) (start, end string) {
	if len(s) <= limit {
		return s, ""
	}
	at := max(0, limit)
	for at > 0 && at > limit-utf8.UTFMax && !utf8.RuneStart(s[at]) {
		at--
	}
	return s[:at], "… (" + strconv.Itoa(len(s)) + " bytes)"
}

// hidden reports whether a character must not reach a terminal.
func hidden(r rune) bool { return r != '\n' && r != '\t' && !unicode.IsPrint(r) }

// visible replaces hidden characters and bytes that are no UTF-8 by their escapes.
func visible(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && size == 1 || hidden(r) {
			quoted := strconv.Quote(s[i : i+size])
			b.WriteString(quoted[1 : len(quoted)-1])
		} else {
			b.WriteString(s[i : i+size])
		}
		i += size
	}
	return b.String()
}
