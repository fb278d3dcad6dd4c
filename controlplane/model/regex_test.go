// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package model

import (
	"strings"
	"testing"
)

func TestCheckRegex(t *testing.T) {
	t.Parallel()
	for expr, says := range map[string]string{
		"":                                 "",
		`^/users/[0-9]{1,10}(/.*)?$`:       "",
		`(?i)firefox|chrome`:               "",
		`é+`:                               "",
		`\x{ff}\377\0`:                     "",
		`\\x{100}`:                         "", // an escaped backslash followed by 100 x
		`(`:                                "missing closing )",
		`a**`:                              "nested repetition",
		`\p{Letter}`:                       `\p`,
		`[\pL]`:                            `\p`,
		`\x{100}`:                          `\x{100} is above 255`,
		`a\777`:                            `\777 is above 255`,
		strings.Repeat(`(.{1000})`, 90):    "repeat less",
		strings.Repeat(`([^a]{1000})`, 9):  "repeat less",
		strings.Repeat(`(ab){500}`, 20):    "repeat less",
		strings.Repeat(`[acegik]{100}`, 4): "",
	} {
		err := CheckRegex(expr)
		if (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("CheckRegex(%.40q) = %v, want an error with %q", expr, err, says)
		}
	}
}

func FuzzCheckRegex(f *testing.F) {
	for _, seed := range []string{`\`, `\x{`, `\x{100`, `\7`, `\777`, `(`, `a{1000}`, `\\x{100}`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, expr string) {
		if len(expr) <= 1024 && CheckRegex(expr) == nil && wideEscape(expr) != "" {
			t.Errorf("CheckRegex(%q) = nil, want an error", expr)
		}
	})
}
