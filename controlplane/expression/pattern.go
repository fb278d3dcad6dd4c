// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package expression

import (
	"fmt"
	"regexp/syntax"
	"unicode"
	"unicode/utf8"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
)

// maxProgram is the size of the program that an Envoy compiles a regular expression to at most.
const maxProgram = 100

// checkPattern returns an error if an Envoy would refuse a regular expression of an expression. The
// size of its program is estimated, not below the one that Envoy computes.
func checkPattern(text string) error {
	tree, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return fmt.Errorf("not usable, as the pattern %s is no regular expression: %w", field.Quote(text), err)
	}
	program, err := syntax.Compile(tree.Simplify())
	if err != nil {
		return fmt.Errorf("not usable, as the pattern %s is no regular expression: %w", field.Quote(text), err)
	}
	size := 4 // the match, and the search for its begin
	for i := range program.Inst {
		switch inst := &program.Inst[i]; inst.Op {
		case syntax.InstNop, syntax.InstFail, syntax.InstMatch:
		case syntax.InstRune, syntax.InstRune1:
			size += sizeOf(inst.Rune, syntax.Flags(inst.Arg)&syntax.FoldCase != 0)
		case syntax.InstRuneAny, syntax.InstRuneAnyNotNL:
			size += 8
		case syntax.InstAlt, syntax.InstAltMatch:
			size += 2
		default:
			size++
		}
	}
	if size > maxProgram {
		return fmt.Errorf("not usable, as the pattern %s is too large for Envoy, which takes about %d characters and classes: use a shorter one, or several", field.Quote(text), maxProgram)
	}
	return nil
}

// sizeOf returns how many ranges of bytes the ranges of a class are.
func sizeOf(ranges []rune, fold bool) int {
	if len(ranges) == 1 {
		r := ranges[0]
		ranges = []rune{r, r}
		for other := r; fold; { // k and s are others, too, which are not ASCII
			if other >= utf8.RuneSelf {
				return 2 * utf8.UTFMax
			}
			other = unicode.SimpleFold(other)
			fold = other != r
		}
	}
	size := 0
	for i := 0; i+1 < len(ranges); i += 2 {
		size += bytesOf(ranges[i], ranges[i+1])
	}
	return size
}

// bytesOf returns how many ranges of bytes a range of characters is at most in UTF-8. It splits the
// range as RE2 does, by the lengths and the first bytes of the characters.
func bytesOf(low, high rune) int {
	const others = 6 // all that are not ASCII, which share their last bytes
	if low == utf8.RuneSelf && high == utf8.MaxRune {
		return others
	}
	for _, last := range []rune{utf8.RuneSelf - 1, 1<<11 - 1, 1<<16 - 1} {
		if low <= last && last < high {
			return bytesOf(low, last) + bytesOf(last+1, high)
		}
	}
	size := 1
	for _, last := range []rune{utf8.RuneSelf - 1, 1<<11 - 1, 1<<16 - 1} {
		if high > last {
			size++
		}
	}
	for bits := 6; bits < 6*size; bits += 6 {
		rest := rune(1)<<bits - 1
		switch {
		case low&^rest == high&^rest:
		case low&rest != 0:
			return bytesOf(low, low|rest) + bytesOf((low|rest)+1, high)
		case high&rest != rest:
			return bytesOf(low, high&^rest-1) + bytesOf(high&^rest, high)
		}
	}
	return size
}
