// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package expression

import (
	"fmt"
	"regexp/syntax"
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
		ranges = []rune{ranges[0], ranges[0]}
		if fold && ranges[0] >= utf8.RuneSelf {
			return 2 * utf8.UTFMax
		}
	}
	size := 0
	for i := 0; i+1 < len(ranges); i += 2 {
		low, high := ranges[i], ranges[i+1]
		if low < utf8.RuneSelf {
			size++
			low = utf8.RuneSelf
		}
		switch {
		case high < low:
		case high == utf8.MaxRune && low == utf8.RuneSelf:
			size += 6 // all other characters
		default:
			size += utf8.RuneLen(high)
		}
	}
	return size
}
