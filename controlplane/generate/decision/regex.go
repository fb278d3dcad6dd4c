// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package decision

import (
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"
	"unicode"
	"unicode/utf8"
)

// pattern is a regular expression that matches as RE2 does in Envoy: whole values, and bytes by \C.
// It differs from package regexp in values that are not UTF-8, which "." does not match.
type pattern struct {
	expr  string
	ascii *regexp.Regexp // for values of ASCII
	bytes *regexp.Regexp // for other values, each of whose bytes is one character; nil until needed
}

// anyByte stands for \C in an expression. It is the last private code point.
const anyByte = '\U0010fffd'

func newPattern(expr string) (*pattern, error) {
	ascii := replaceAnyByte(expr, `(?s:.)`)
	_, err := syntax.Parse(ascii, syntax.Perl) // an expression such as ")|(" would be one in parentheses
	if err != nil {
		return nil, fmt.Errorf("read the regular expression of a matcher: %w", err)
	}
	re, err := regexp.Compile(`\A(?:` + ascii + `)\z`)
	if err != nil {
		return nil, fmt.Errorf("read the regular expression of a matcher: %w", err)
	}
	return &pattern{expr: expr, ascii: re}, nil
}

func (p *pattern) matches(text string) bool {
	if strings.IndexFunc(text, func(r rune) bool { return r >= utf8.RuneSelf }) < 0 {
		return p.ascii.MatchString(text)
	}
	if p.bytes == nil {
		parsed, err := syntax.Parse(replaceAnyByte(p.expr, string(anyByte)), syntax.Perl)
		if err != nil {
			return false // newPattern has parsed it
		}
		var out strings.Builder
		writeBytes(&out, parsed)
		p.bytes = regexp.MustCompile(`\A(?:` + out.String() + `)\z`)
	}
	var each strings.Builder
	for _, b := range []byte(text) {
		each.WriteRune(rune(b))
	}
	return p.bytes.MatchString(each.String())
}

// replaceAnyByte replaces \C in an expression.
func replaceAnyByte(expr, by string) string {
	if !strings.Contains(expr, `\C`) {
		return expr
	}
	var out strings.Builder
	for i := 0; i < len(expr); i++ {
		switch {
		case expr[i] != '\\' || i+1 == len(expr):
			out.WriteByte(expr[i])
		case expr[i+1] == 'C':
			out.WriteString(by)
			i++
		default:
			out.WriteString(expr[i : i+2])
			i++
		}
	}
	return out.String()
}

// writeBytes writes an expression that matches the bytes of what re matches.
func writeBytes(out *strings.Builder, re *syntax.Regexp) {
	subs := func(separator string) {
		out.WriteString("(?:")
		for i, sub := range re.Sub {
			if i > 0 {
				out.WriteString(separator)
			}
			writeBytes(out, sub)
		}
		out.WriteString(")")
	}
	switch re.Op {
	case syntax.OpNoMatch:
		out.WriteString(`[^\x00-\x{10ffff}]`)
	case syntax.OpEmptyMatch:
		out.WriteString("(?:)")
	case syntax.OpLiteral:
		for _, r := range re.Rune {
			writeRune(out, r, re.Flags&syntax.FoldCase != 0)
		}
	case syntax.OpCharClass:
		writeClass(out, re.Rune)
	case syntax.OpAnyChar:
		writeClass(out, []rune{0, unicode.MaxRune})
	case syntax.OpAnyCharNotNL:
		writeClass(out, []rune{0, '\n' - 1, '\n' + 1, unicode.MaxRune})
	case syntax.OpStar:
		subs("")
		out.WriteString("*")
	case syntax.OpPlus:
		subs("")
		out.WriteString("+")
	case syntax.OpQuest:
		subs("")
		out.WriteString("?")
	case syntax.OpRepeat:
		subs("")
		if re.Max < 0 {
			fmt.Fprintf(out, "{%d,}", re.Min)
		} else {
			fmt.Fprintf(out, "{%d,%d}", re.Min, re.Max)
		}
	case syntax.OpCapture, syntax.OpConcat:
		subs("")
	case syntax.OpAlternate:
		subs("|")
	default: // an anchor or a word boundary, which depends on ASCII only
		out.WriteString("(?:" + re.String() + ")")
	}
}

// writeRune writes a character, or all that are equal to it without regard to case.
func writeRune(out *strings.Builder, r rune, fold bool) {
	if r == anyByte {
		out.WriteString(`[\x00-\xff]`)
		return
	}
	same := []rune{r, r}
	for next := unicode.SimpleFold(r); fold && next != r; next = unicode.SimpleFold(next) {
		same = append(same, next, next)
	}
	writeClass(out, same)
}

// writeClass writes the characters of ranges, each as its bytes in UTF-8.
func writeClass(out *strings.Builder, ranges []rune) {
	out.WriteString("(?:")
	first := true
	for i := 0; i < len(ranges); i += 2 {
		eachSequence(ranges[i], ranges[i+1], func(lo, hi []byte) {
			if !first {
				out.WriteString("|")
			}
			first = false
			for i := range lo {
				fmt.Fprintf(out, `[\x{%02x}-\x{%02x}]`, lo[i], hi[i])
			}
		})
	}
	if first {
		out.WriteString(`[^\x00-\x{10ffff}]`)
	}
	out.WriteString(")")
}

// eachSequence splits a range of characters into ranges of bytes.
func eachSequence(lo, hi rune, add func(lo, hi []byte)) {
	for _, last := range []rune{0x7f, 0x7ff, 0xffff} {
		if lo <= last && last < hi {
			eachSequence(lo, last, add)
			eachSequence(last+1, hi, add)
			return
		}
	}
	for bits := 6; bits < 6*len(encoded(lo)); bits += 6 {
		mask := rune(1)<<bits - 1
		if lo&^mask == hi&^mask {
			continue
		}
		if lo&mask != 0 {
			eachSequence(lo, lo|mask, add)
			eachSequence((lo|mask)+1, hi, add)
			return
		}
		if hi&mask != mask {
			eachSequence(lo, hi&^mask-1, add)
			eachSequence(hi&^mask, hi, add)
			return
		}
	}
	add(encoded(lo), encoded(hi))
}

// encoded returns a character in UTF-8, also a surrogate.
func encoded(r rune) []byte {
	const next = 0x80
	low := func(shift int) byte { return next | byte(r>>shift)&0x3f }
	switch {
	case r < 0x80:
		return []byte{byte(r)}
	case r < 0x800:
		return []byte{0xc0 | byte(r>>6), low(0)}
	case r < 0x10000:
		return []byte{0xe0 | byte(r>>12), low(6), low(0)}
	}
	return []byte{0xf0 | byte(r>>18), low(12), low(6), low(0)}
}
