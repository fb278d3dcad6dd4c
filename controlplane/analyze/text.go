// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package analyze

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/outrigger-mesh/outrigger/internal/clip"
	"github.com/outrigger-mesh/outrigger/internal/columns"
)

// maxText is the maximum length of a part of a finding in bytes.
const maxText = 2000

// Text returns a finding as lines of at most width characters: its object, what is wrong, the cure;
// with [columns.Unlimited] as one line. Characters that control terminals are escaped.
func (f Finding) Text(width int) string {
	head := fmt.Sprintf("%s %s %s", strings.ToUpper(string(f.Severity)), f.Code, plain(f.Object.String()))
	source := plain(f.Source)
	if width == columns.Unlimited {
		return strings.TrimSpace(fmt.Sprintf("%s: %s %s", strings.TrimSpace(head+"  "+source), plain(f.Message), plain(f.Cure))) + "\n"
	}
	if source != "" {
		gap := "  "
		if utf8.RuneCountInString(head+gap+source) > width {
			gap = "\n  "
		}
		head += gap + source
	}
	return head + "\n" + Wrap(plain(f.Message), "  ", width) + Wrap(plain(f.Cure), "  ", width)
}

// plain returns a text as one line.
func plain(s string) string {
	return clip.Text(strings.Join(strings.Fields(s), " "), maxText)
}

// Wrap returns words as lines of at most width characters, unless a word is longer.
func Wrap(text, indent string, width int) string {
	var b strings.Builder
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && utf8.RuneCountInString(indent+line+" "+word) > width {
			b.WriteString(indent + line + "\n")
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	if line != "" {
		b.WriteString(indent + line + "\n")
	}
	return b.String()
}
