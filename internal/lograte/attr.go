// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package lograte

import (
	"fmt"
	"log/slog"
	"strings"

	"github.com/outrigger-mesh/outrigger/internal/clip"
)

// maxDepth is the depth up to which groups of attributes are clipped individually; deeper groups
// are converted to text.
const maxDepth = 4

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
		if s, changed := clip.Changed(v.String(), limit); changed {
			return slog.StringValue(s), true
		}
	case slog.KindGroup:
		if depth == 0 {
			return slog.StringValue(clip.Text(v.String(), limit)), true
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
		if s, changed := clip.Changed(text(v.Any()), limit); changed {
			return slog.StringValue(s), true
		}
	}
	return v, false
}

// text returns the text that a handler would write for a value. fmt recovers from panicking
// methods.
func text(v any) string {
	if s, ok := v.([]string); ok {
		return strings.Join(s, " ")
	}
	return fmt.Sprint(v)
}
