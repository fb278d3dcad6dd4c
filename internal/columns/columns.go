// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package columns

import (
	"math"
	"slices"
	"strings"
	"unicode/utf8"
)

// Unlimited is the width of what is no terminal.
const Unlimited = math.MaxInt

// Gap is the number of spaces between columns.
const Gap = 3

const (
	// Least is how many characters of a column remain at least if a table is too wide.
	Least = 10
	// leastColumns is how many columns a table keeps on a narrow terminal, and minShortened how many
	// characters of these remain.
	leastColumns, minShortened = 2, 3
)

// Table is a table that fits a terminal.
type Table struct {
	Lines     []string // without line breaks
	Missing   []string // headers of the columns that are left out
	Shortened bool     // whether any cell is not shown in full
	width     int
}

// Fit lays out rows, of which the first is the header, in lines of at most width characters. If they are
// too wide, it shortens the column with the header first, then the widest ones, but not to less than
// their headers or 10 characters; then it leaves out columns, the last one first. Two columns remain,
// which may have less than their headers.
func Fit(rows [][]string, first string, width int) Table {
	natural := widthsOf(rows)
	widths, kept := fit(rows[0], natural, first, width)
	t := Table{Missing: rows[0][kept:], width: width}
	for _, r := range rows {
		var b strings.Builder
		space := 0
		for i, most := range widths {
			cell := Shorten(r[i], most)
			t.Shortened = t.Shortened || cell != r[i]
			b.WriteString(strings.Repeat(" ", space) + cell)
			space = Gap + most - utf8.RuneCountInString(cell)
		}
		t.Lines = append(t.Lines, b.String())
	}
	return t
}

// String returns the lines, and a sentence that names the columns that are left out.
func (t Table) String() string {
	text := strings.Join(t.Lines, "\n") + "\n"
	if len(t.Missing) > 0 {
		text += Wrap("The terminal is too narrow for "+strings.Join(t.Missing, ", ")+".\n", t.width)
	}
	return text
}

// Width returns the width of a table that is not shortened, in characters.
func Width(rows [][]string) int { return total(widthsOf(rows)) }

// widthsOf returns the widths of columns, in characters.
func widthsOf(rows [][]string) []int {
	widths := make([]int, len(rows[0]))
	for _, r := range rows {
		for i, cell := range r {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	return widths
}

// total returns the width of a line of columns.
func total(widths []int) int {
	sum := Gap * (len(widths) - 1)
	for _, n := range widths {
		sum += n
	}
	return sum
}

// fit returns the widths of columns so that a line has at most most characters, and how many columns
// remain. It reduces the column with the given name and then the widest ones, but not to less than
// their headers or Least; then it leaves out the last column. Two columns remain: they may have
// less than their headers.
func fit(header []string, natural []int, first string, most int) (widths []int, kept int) {
	before := slices.Index(header, first)
	for kept = len(header); ; kept-- {
		widths = slices.Clone(natural[:kept])
		least := make([]int, kept)
		for i := range widths {
			widths[i] = min(widths[i], most)
			if least[i] = max(Least, utf8.RuneCountInString(header[i])); kept <= leastColumns {
				least[i] = minShortened
			}
		}
		for sum := total(widths); sum > most; sum-- {
			reduced := -1
			for i, n := range widths {
				if n > least[i] && (reduced < 0 || n > widths[reduced]) {
					reduced = i
				}
			}
			if before >= 0 && before < kept && widths[before] > max(Least, least[before]) {
				reduced = before
			}
			if reduced < 0 {
				break
			}
			widths[reduced]--
		}
		if total(widths) <= most || kept <= leastColumns {
			return widths, kept
		}
	}
}

// Shorten replaces the middle of a text that has more than n characters. More is left of its end,
// which distinguishes the pods of a deployment.
func Shorten(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	n = max(n, 3) - 1 // without the ellipsis
	return string(r[:n/3]) + "…" + string(r[len(r)-(n-n/3):])
}
