// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package clip

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Text sanitizes a peer's text for logs and storage. It returns at most limit bytes, followed by
// the original length if the text was longer, and escapes characters that affect how a terminal
// shows the rest. Line feeds and tabs are kept.
func Text(s string, limit int) string {
	s, _ = Changed(s, limit)
	return s
}

// Changed is like Text, and reports whether the result differs from s.
func Changed(s string, limit int) (clipped string, changed bool) {
	start, end := cut(s, limit)
	if strings.ContainsFunc(start, hidden) || !utf8.ValidString(start) {
		start, changed = visible(start), true
	}
	return start + end, changed || end != ""
}

// Cut returns at most limit bytes of s, followed by the original length if s was longer. It does
// not escape: the text must be quoted by the caller or contain no special characters.
func Cut(s string, limit int) string {
	start, end := cut(s, limit)
	return start + end
}

// Start returns at most limit bytes of s, up to the end of a character. It does not escape.
func Start(s string, limit int) string {
	start, _ := cut(s, limit)
	return start
}

// cut returns the beginning of a text, up to the end of a character, and a note that replaces the
// rest. The note is empty if nothing was cut.
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

// hidden reports whether a character must not be sent to a terminal.
func hidden(r rune) bool { return r != '\n' && r != '\t' && !unicode.IsPrint(r) }

// visible escapes hidden characters and bytes that are not valid UTF-8.
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
