// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package edit

import (
	"bytes"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// offset returns where a node begins in the text. Columns count characters.
func (m *merger) offset(n *yaml.Node) int {
	at := m.lines[n.Line-1]
	for range n.Column - 1 {
		_, size := utf8.DecodeRune(m.text[at:])
		at += size
	}
	return at
}

// startsLine reports whether only spaces are in front of a node.
func (m *merger) startsLine(n *yaml.Node) bool {
	return len(bytes.TrimLeft(m.text[m.lines[n.Line-1]:m.offset(n)], " ")) == 0
}

// block returns where an entry or an item of a block collection begins and ends:
// its first line, and the lines below it that are indented deeper than its column,
// without the comments and empty lines behind it, which may belong to what follows.
// The value of an entry may be a list whose dashes are below the key.
func (m *merger) block(line, column int) (start, end int) {
	indent := column - 1
	start, end = m.lines[line-1], m.lines[line]
	dashes := bytes.HasPrefix(bytes.TrimLeft(m.text[start:], " "), []byte("-")) && leading(m.text[start:end]) == indent
	for i := line; i+1 < len(m.lines); i++ {
		text := m.text[m.lines[i]:m.lines[i+1]]
		if isComment(text) {
			continue
		}
		n := leading(text)
		item := strings.HasPrefix(strings.TrimSpace(string(text))+" ", "- ")
		if n < indent || n == indent && (dashes || !item) || bytes.HasPrefix(text, []byte("...")) {
			break
		}
		end = m.lines[i+1]
	}
	return start, end
}

func leading(line []byte) int { return len(line) - len(bytes.TrimLeft(line, " ")) }

// scalarEnd returns the length of the scalar at the beginning of text.
func scalarEnd(text []byte, n *yaml.Node) (int, bool) {
	switch {
	case n.Style&yaml.DoubleQuotedStyle != 0:
		return quotedEnd(text)
	case n.Style&yaml.SingleQuotedStyle != 0:
		return quotedEnd(text)
	case n.Style&(yaml.LiteralStyle|yaml.FoldedStyle|yaml.TaggedStyle) != 0, n.Value == "":
		return 0, false
	}
	return len(n.Value), bytes.HasPrefix(text, []byte(n.Value))
}

// quotedEnd returns the length of the text in quotes at the beginning of text.
func quotedEnd(text []byte) (int, bool) {
	if len(text) == 0 || text[0] != '"' && text[0] != '\'' {
		return 0, false
	}
	for i := 1; i < len(text); i++ {
		switch {
		case text[i] == '\\' && text[0] == '"':
			i++
		case text[i] == text[0] && text[0] == '\'' && i+1 < len(text) && text[i+1] == '\'':
			i++
		case text[i] == text[0]:
			return i + 1, true
		}
	}
	return 0, false
}

// flowEnd returns the length of the collection in brackets at the beginning of
// text. A collection with comments in it has none.
func flowEnd(text []byte) (int, bool) {
	depth := 0
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '[', '{':
			depth++
		case ']', '}':
			if depth--; depth == 0 {
				return i + 1, true
			}
		case '"', '\'':
			if i > 0 && strings.IndexByte(" \t\n,[{:", text[i-1]) < 0 {
				continue // inside a plain scalar
			}
			n, ok := quotedEnd(text[i:])
			if !ok {
				return 0, false
			}
			i += n - 1
		case '#':
			if i > 0 && strings.IndexByte(" \t\n", text[i-1]) >= 0 {
				return 0, false
			}
		}
		if depth == 0 {
			return 0, false
		}
	}
	return 0, false
}
