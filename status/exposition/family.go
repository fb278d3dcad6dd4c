// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package exposition

import "bytes"

// family holds the comments that precede the samples of a family, as written by its source.
type family struct {
	name, kind, help, unit []byte
	hasHelp                bool
	from                   kind
	open                   bool // no sample has been written yet
}

func (f *family) reset(name []byte, from kind) {
	f.name = append(f.name[:0], name...)
	f.kind, f.help, f.unit = f.kind[:0], f.help[:0], f.unit[:0]
	f.hasHelp, f.from, f.open = false, from, true
}

// textName returns the name of the family in the text format, which is the name of its samples.
func (f *family) textName() []byte {
	if f.from == openMetrics {
		switch string(f.kind) {
		case "counter":
			return suffixed(f.name, "_total")
		case "info":
			return suffixed(f.name, "_info")
		}
	}
	return f.name
}

// textKind returns the type in the text format, which has fewer types.
func (f *family) textKind() string {
	switch kind := string(f.kind); kind {
	case "counter", "gauge", "histogram", "summary":
		return kind
	case "info", "stateset":
		return "gauge"
	default:
		return "untyped"
	}
}

// text appends the comments in the text format.
func (f *family) text(b []byte) []byte {
	name := f.textName()
	if f.hasHelp {
		help := f.help
		if f.from == openMetrics {
			help = bytes.ReplaceAll(help, []byte(`\"`), []byte(`"`))
		}
		b = describe(b, "HELP", name, string(help))
	}
	if len(f.kind) > 0 {
		b = describe(b, "TYPE", name, f.textKind())
	}
	return b
}

// openMetrics appends the comments in the OpenMetrics format. It requires a counter's samples to
// end in _total; a counter whose samples do not is exported with type unknown instead of being
// renamed.
func (f *family) openMetrics(b []byte) []byte {
	name, kind, help := f.name, string(f.kind), f.help
	if f.from == text {
		help = quoteHelp(help)
		switch stem, ok := bytes.CutSuffix(name, []byte("_total")); {
		case kind == "counter" && ok:
			name = stem
		case kind == "counter", kind == "untyped":
			kind = "unknown"
		}
	}
	if kind != "" {
		b = describe(b, "TYPE", name, kind)
	}
	if len(f.unit) > 0 {
		b = describe(b, "UNIT", name, string(f.unit))
	}
	if f.hasHelp {
		b = describe(b, "HELP", name, string(help))
	}
	return b
}

func describe(b []byte, word string, name []byte, rest string) []byte {
	b = append(b, "# "...)
	b = append(b, word...)
	b = append(b, ' ')
	b = append(b, name...)
	b = append(b, ' ')
	b = append(b, rest...)
	return append(b, '\n')
}

// suffixed appends a suffix to a name, inside the quotes if the name is quoted.
func suffixed(name []byte, suffix string) []byte {
	if n := len(name); n > 1 && name[n-1] == '"' {
		return append(append(bytes.Clone(name[:n-1]), suffix...), '"')
	}
	return append(bytes.Clone(name), suffix...)
}

// quoteHelp escapes quotes, as required by OpenMetrics but not by the text format.
func quoteHelp(help []byte) []byte {
	if bytes.IndexByte(help, '"') < 0 {
		return help
	}
	var b []byte
	for i := 0; i < len(help); i++ {
		switch {
		case help[i] == '\\' && i+1 < len(help):
			b = append(b, help[i])
			i++
		case help[i] == '"':
			b = append(b, '\\')
		}
		b = append(b, help[i])
	}
	return b
}
