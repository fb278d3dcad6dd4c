// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package lograte

import (
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxDepth is how deep groups of attributes are clipped; deeper ones become text.
const maxDepth = 4

// Clip returns a text of a peer as it may be logged or stored: at most limit
// bytes of it, followed by its length if it was longer, without characters that
// change how a terminal shows the rest. Line feeds and tabs stay.
func Clip(s string, limit int) string {
	s, _ = clip(s, limit)
	return s
}

func clip(s string, limit int) (clipped string, changed bool) {
	length := len(s)
	if length > limit {
		cut := max(0, limit)
		for cut > 0 && cut > limit-utf8.UTFMax && !utf8.RuneStart(s[cut]) {
			cut--
		}
		s = s[:cut]
	}
	if strings.ContainsFunc(s, hidden) || !utf8.ValidString(s) {
		s, changed = visible(s), true
	}
	if length > limit {
		return s + "… (" + strconv.Itoa(length) + " bytes)", true
	}
	return s, changed
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

// clipAttr clips the value of an attribute, and reports whether it changed.
func clipAttr(a slog.Attr, limit int) (slog.Attr, bool) {
	v, changed := clipValue(a.Value, limit, maxDepth)
	return slog.Attr{Key: a.Key, Value: v}, changed
}

func clipValue(v slog.Value, limit, depth int) (out slog.Value, changed bool) {
	switch v.Kind() {
	case slog.KindLogValuer:
		out, _ = clipValue(v.Resolve(), limit, depth)
		return out, true
	case slog.KindString:
		if s, changed := clip(v.String(), limit); changed {
			return slog.StringValue(s), true
		}
	case slog.KindGroup:
		if depth == 0 {
			return slog.StringValue(Clip(v.String(), limit)), true
		}
		attrs := make([]slog.Attr, len(v.Group()))
		for i, a := range v.Group() {
			value, was := clipValue(a.Value, limit, depth-1)
			attrs[i], changed = slog.Attr{Key: a.Key, Value: value}, changed || was
		}
		if changed {
			return slog.GroupValue(attrs...), true
		}
	case slog.KindAny:
		if s, changed := clip(text(v.Any()), limit); changed {
			return slog.StringValue(s), true
		}
	}
	return v, false
}

// text returns what a handler would write of a value. fmt recovers from methods
// that panic.
func text(v any) string {
	if s, ok := v.([]string); ok {
		return strings.Join(s, " ")
	}
	return fmt.Sprint(v)
}
