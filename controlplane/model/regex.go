// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package model

import (
	"fmt"
	"regexp/syntax"
	"strconv"
)

// maxRegexSize limits the program size of a regular expression, counted approximately as RE2 does.
// Envoy rejects programs of more than 32768 instructions.
const maxRegexSize = 16_000

// CheckRegex returns an error for a regular expression that Envoy would reject. Envoy's RE2 matches
// bytes: it supports no code points above 255 and limits the program size. One rejected expression
// makes Envoy reject all routes of all services.
func CheckRegex(expr string) error {
	re, err := syntax.Parse(expr, syntax.Perl&^syntax.UnicodeGroups)
	if err != nil {
		return err
	}
	if escape := wideEscape(expr); escape != "" {
		return fmt.Errorf("%s is above 255, and requests are matched byte by byte: write the character itself", escape)
	}
	program, err := syntax.Compile(re.Simplify())
	if err != nil {
		return err
	}
	size := 0
	for _, inst := range program.Inst {
		size++
		if inst.Op == syntax.InstRune || inst.Op == syntax.InstRuneAny || inst.Op == syntax.InstRuneAnyNotNL {
			size += max(1, min(len(inst.Rune), 128)) // each range is a separate instruction
		}
	}
	if size > maxRegexSize {
		return fmt.Errorf("it is too large when its repetitions are written out (about %d steps, at most %d are allowed): repeat less", size, maxRegexSize)
	}
	return nil
}

// wideEscape returns the first escape sequence for a code point above 255.
func wideEscape(expr string) string {
	for i := 0; i+1 < len(expr); i++ {
		if expr[i] != '\\' {
			continue
		}
		var n, digits int
		rest := expr[i+1:]
		if rest[0] == 'x' && len(rest) > 1 && rest[1] == '{' {
			for digits = 2; digits < len(rest) && rest[digits] != '}'; digits++ {
			}
			hex, err := strconv.ParseUint(rest[2:digits], 16, 32)
			if err == nil {
				n = int(hex)
			}
		} else {
			for digits < min(len(rest), 3) && rest[digits] >= '0' && rest[digits] <= '7' {
				n = n*8 + int(rest[digits]-'0')
				digits++
			}
		}
		if n > 255 {
			return expr[i : i+1+min(digits+1, len(rest))]
		}
		i++ // an escaped character starts no escape sequence
	}
	return ""
}
