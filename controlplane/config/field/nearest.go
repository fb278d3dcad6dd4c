// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package field

import (
	"strconv"
	"strings"
)

// MostEdits is the most edits between a name and the one that is suggested.
const MostEdits = 2

// separators are written between words, and names of fields lack.
var separators = strings.NewReplacer("_", "", "-", "")

// DidYouMean returns ": did you mean …?" for the nearest name, or the list of
// names when none is near.
func DidYouMean(got string, names []string) string {
	best, most, joined := "", min(MostEdits, len(got)/2)+1, separators.Replace(got)
	for _, name := range names {
		if strings.EqualFold(joined, name) {
			best = name
			break
		}
		if d := Edits(got, name); d < most {
			best, most = name, d
		}
	}
	switch {
	case best != "":
		return ": did you mean " + strconv.Quote(best) + "?"
	case len(names) > 0:
		return ": it knows " + strings.Join(names, ", ")
	}
	return ""
}

// Edits is the number of insertions, deletions, replacements and swaps of
// neighbours between two short words; bytes are enough for field names.
func Edits(a, b string) int {
	const far = 1 << 10
	if len(a) > 64 || len(b) > 64 {
		return far
	}
	before, prev, cur := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], before[j-2]+1)
			}
		}
		before, prev, cur = prev, cur, before
	}
	return prev[len(b)]
}
