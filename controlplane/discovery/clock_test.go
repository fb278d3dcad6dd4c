// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestClockMayJump checks that setting the clock, forwards or back, stops no push, trial or age. A
// time.Time of time.Now carries the monotonic clock, which timers, Sub, Since, Until, Before and
// After use. Functions that strip it, or create a time from numbers, may be used only to write
// readable times.
func TestClockMayJump(t *testing.T) {
	t.Parallel()
	strips := []string{
		"Round", "Truncate", "UTC", "In", "Local", "AddDate", "Unix", "UnixMilli", "UnixMicro", "UnixNano", "Date", "Parse", "ParseInLocation",
		"GobDecode", "UnmarshalJSON", "UnmarshalText", "UnmarshalBinary",
	}
	seen := 0
	for _, dir := range []string{".", "../push", "../replicas"} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") || strings.HasPrefix(filepath.Base(file), "debug") {
				continue // debug*.go prints times for users
			}
			set := token.NewFileSet()
			tree, err := parser.ParseFile(set, file, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(tree, func(n ast.Node) bool {
				sel, ok := n.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				if pkg, ok := sel.X.(*ast.Ident); ok && pkg.Name == "time" && sel.Sel.Name == "Now" {
					seen++
				}
				if call := sel.Sel.Name; slices.Contains(strips, call) {
					if pkg, ok := sel.X.(*ast.Ident); !ok || pkg.Name != "url" {
						t.Errorf("%s: %s takes the monotonic clock away", set.Position(sel.Pos()), call)
					}
				}
				return true
			})
		}
	}
	if seen < 10 {
		t.Errorf("only %d readings of the clock were looked at: the test looks in the wrong place", seen)
	}
}
