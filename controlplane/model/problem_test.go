// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package model

import (
	"fmt"
	"slices"
	"testing"
)

// TestLimitProblems checks that LimitProblems omits and counts problems of objects that have many,
// and does not change a short list.
func TestLimitProblems(t *testing.T) {
	t.Parallel()
	list := func(object string, n int) (all []Problem) {
		for i := range n {
			all = append(all, Problem{Object: Key{Name: object}, Reason: fmt.Sprint(i)})
		}
		return all
	}
	of := func(all []Problem, object string) (n int) {
		for _, p := range all {
			if p.Object.Name == object {
				n++
			}
		}
		return n
	}
	short := list("a", MaxProblems)
	if got := LimitProblems(short); !slices.Equal(got, short) {
		t.Errorf("LimitProblems changed a list of %d problems to %d", len(short), len(got))
	}
	got := LimitProblems(append(list("a", 5000), list("b", 2)...))
	if of(got, "a") != maxProblemsOfObject || of(got, "b") != 2 {
		t.Errorf("%d problems of a and %d of b are listed", of(got, "a"), of(got, "b"))
	}
	last := got[len(got)-1]
	if last.Unlisted != 4980 || last.Warning || last.Reason != "4980 more problems are not listed: correct the others first" {
		t.Errorf("the last problem is %+v", last)
	}
	if CountProblems(got) != 5002 {
		t.Errorf("CountProblems() = %d, want 5002", CountProblems(got))
	}
	var many []Problem
	for i := range 3000 {
		many = append(many, list(fmt.Sprint("o", i), 2)...)
	}
	if got := LimitProblems(many); len(got) != MaxProblems+1 || CountProblems(got) != 6000 || of(got, "o999") != 1 {
		t.Errorf("%d problems are listed and %d counted", len(got), CountProblems(got))
	}
}
