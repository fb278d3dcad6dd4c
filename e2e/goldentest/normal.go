// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package goldentest

import (
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/outrigger-mesh/outrigger/internal/columns"
)

// A Replacement is a text that differs from run to run, and what is written for it.
type Replacement struct{ Text, By string }

// differing are texts that differ from run to run in the output of every command.
var differing = []struct {
	text *regexp.Regexp
	by   string
}{
	{regexp.MustCompile(`\b20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`), "2006-01-02T15:04:05Z"},
	{regexp.MustCompile(`\b20\d\d-\d\d-\d\d \d\d:\d\d\b`), "2006-01-02 15:04"},
	{regexp.MustCompile(`\b\d\d:\d\d:\d\d\b`), "15:04:05"},
	{regexp.MustCompile(`^\d+h\d+m$`), "23h59m"}, // in a cell of a table
	{regexp.MustCompile(`^(\d+[ms])+$`), "5s"},   // the age in a cell
	{regexp.MustCompile(`\b(\d+[hms])+( ago\b)`), "5s$2"},
	{regexp.MustCompile(`(SYNCED \(|known for )(\d+[hms])+`), "${1}5s"},
	{regexp.MustCompile(`\b(\d+[dhm])+ left\b`), "23h59m left"},
	{regexp.MustCompile(`\b\d+\.\d+ s\b`), "1.0 s"},
	{regexp.MustCompile(`\b\d+ kB\b`), "100 kB"},
	{regexp.MustCompile(`((?:seconds|duration)"?: ?)\d+(\.\d+)?`), "${1}1.5"},
	{regexp.MustCompile(`(?m)( [1-5]\d\d) +[0-9.]+s?( +\d+)$`), "$1           1.5$2"}, // milliseconds of a request
	{regexp.MustCompile(`\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b`), "01234567-89ab-cdef-0123-456789abcdef"},
	{regexp.MustCompile(`\b(outrigger-up-)\d+`), "${1}1234567890"},
	{regexp.MustCompile(`\b(process |kill |control-)\d+\b`), "${1}12345"},
	{regexp.MustCompile(`\b127\.0\.0\.1:(3[2-9]|[45]\d|60)\d{3}\b`), "127.0.0.1:40000"}, // any free port
	{regexp.MustCompile(`\bgo1\.\d+(\.\d+)?\b`), "go1.x"},
	{regexp.MustCompile(`\b[0-9a-f]{6}…[0-9a-f]{12}\b`), "123456…123456789abc"}, // serial numbers
	{regexp.MustCompile(`^[0-9a-f]{8}$`), "12345678"},                           // the revision in a cell
	{regexp.MustCompile(`\b[0-9a-f]{16}\b`), "0123456789abcdef"},
	{regexp.MustCompile(`\b[0-9a-f]{4}…[0-9a-f]{10}\b`), "1234…123456789a"}, // and hashes
	{regexp.MustCompile(`\b[0-9a-f]{64}\b`), strings.Repeat("0123456789abcdef", 4)},
	{regexp.MustCompile(`\b[0-9a-f]{32}\b`), "0123456789abcdef0123456789abcdef"},
}

// control are the control sequences of terminals.
var control = regexp.MustCompile("\x1b\\[[0-9;]*[A-Za-z]")

// Normal returns an output in which what differs from run to run is replaced. Tables and lines that it
// changes are laid out again, because the widths of columns and the breaks of lines depend on it.
func Normal(text string, replacements []Replacement) string {
	replace := func(s string) string {
		for _, r := range replacements {
			s = strings.ReplaceAll(s, r.Text, r.By)
		}
		for _, d := range differing {
			s = d.text.ReplaceAllString(s, d.by)
		}
		return s
	}
	text = control.ReplaceAllString(text, "")
	var b strings.Builder
	for lines := slices.Collect(strings.Lines(text)); len(lines) > 0; {
		if rows := table(lines); len(rows) > 1 {
			for _, row := range rows {
				for i, cell := range row {
					row[i] = replace(cell)
				}
			}
			b.WriteString(columns.Fit(rows, "", columns.Unlimited).String())
			lines = lines[len(rows):]
			continue
		}
		long, n := unwrapped(lines)
		switch replaced := replace(long); {
		case n == 1 && utf8.RuneCountInString(long) > Columns: // it is meant to be
			b.WriteString(replaced)
		case replaced != long:
			b.WriteString(columns.Wrap(replaced, Columns))
		default:
			b.WriteString(strings.Join(lines[:n], ""))
		}
		lines = lines[n:]
	}
	return b.String()
}

// header is the first line of a table.
var header = regexp.MustCompile(`^ *[A-Z][A-Z ]*[A-Z](   +[A-Z][A-Z ]*[A-Z])+\n`)

// table returns the cells of the table that lines begin with, or nil if they begin with none. A row whose
// columns are not those of the header ends the table.
func table(lines []string) (rows [][]string) {
	if !header.MatchString(lines[0]) {
		return nil
	}
	var starts []int
	for i, c := range lines[0] {
		if c != ' ' && (i == 0 || i >= columns.Gap && strings.TrimSpace(lines[0][i-columns.Gap:i]) == "") {
			starts = append(starts, i)
		}
	}
	lead := strings.Repeat(" ", starts[0])
	for _, line := range lines {
		row := cells([]rune(strings.TrimSuffix(line, "\n")), starts)
		if !strings.HasPrefix(line, lead) || row == nil {
			break
		}
		row[0] = lead + row[0]
		rows = append(rows, row)
	}
	return rows
}

// cells returns the cells of a row whose columns start at some characters, or nil if it is none.
func cells(row []rune, starts []int) (list []string) {
	for i, start := range starts {
		end := len(row)
		if i+1 < len(starts) {
			end = min(end, starts[i+1])
		}
		cell := strings.TrimRight(string(row[min(start, end):end]), " ")
		if i == 0 && cell == "" || i+1 < len(starts) && end == starts[i+1] && utf8.RuneCountInString(cell) > end-start-columns.Gap {
			return nil
		}
		list = append(list, cell)
	}
	return list
}

// unwrapped returns the line that lines begin with as it was before it was broken to fit the terminal, and
// the number of its lines.
func unwrapped(lines []string) (line string, n int) {
	line, n = lines[0], 1
	for long := line; n < len(lines) && strings.HasPrefix(lines[n], "  "); {
		long = strings.TrimSuffix(long, "\n") + " " + strings.TrimLeft(lines[n], " ")
		if columns.Wrap(long, Columns) != strings.Join(lines[:n+1], "") {
			break
		}
		line, n = long, n+1
	}
	return line, n
}
