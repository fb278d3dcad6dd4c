// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mesh

import (
	"fmt"
	"slices"
	"strings"
)

// suggest returns the end of a message about an unknown name: the closest known name, or all of
// them.
func suggest(name string, known []string) string {
	best, distance := "", max(2, len(name)/3)+1
	for _, k := range known {
		if d := edits(strings.ToLower(name), strings.ToLower(k)); d < distance {
			best, distance = k, d
		}
	}
	if best != "" {
		return fmt.Sprintf("did you mean %q?", best)
	}
	sorted := slices.Sorted(slices.Values(known))
	return "the fields are " + strings.Join(sorted, ", ")
}

// edits returns the edit distance of a and b: the number of characters to insert, remove or
// replace.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
