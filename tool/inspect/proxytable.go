// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoregistry"
	"sigs.k8s.io/yaml"
)

const (
	// minColumn is how many characters of a column remain at least if a table is too wide.
	minColumn = 10
	// leastColumns is how many columns a table keeps on a narrow terminal, and minShortened how many
	// characters of these remain.
	leastColumns, minShortened = 2, 3
	// commonDomain is the end of most names of services, which is left out first.
	commonDomain = ".svc.cluster.local"
)

// configuration prints a table for each part.
func (v view) configuration(c *configuration, list []part) error {
	all, shortened := v.flags.output == outWide, false
	for i, p := range list {
		if i > 0 {
			v.say("\n")
		}
		rows := [][]string{p.header}
		for _, r := range c.resources[p.name] {
			rows = append(rows, p.rows(r, all)...)
		}
		if len(rows) == 1 {
			v.say("No %s.\n", p.name)
			continue
		}
		short, err := v.columns(without(rows, p.optional), p.short)
		if err != nil {
			return err
		}
		shortened = shortened || short
	}
	if shortened {
		v.say("\n… stands for a part of a text: -o wide shows texts in full.\n")
	}
	v.omissions(c)
	return nil
}

// omissions prints what is missing in the output.
func (v view) omissions(c *configuration) {
	if c.unknown > 0 {
		v.say("\nThe content of %s unknown types is left out.\n", count(c.unknown, "message of", "messages of"))
	}
	if c.unread > 0 {
		v.say("\n%s left out: their types are not those of this version.\n", count(c.unread, "resource is", "resources are"))
	}
	if c.rejected > 0 {
		v.say("\n%s rejected or held back: outrigger status PROXY.\n", count(c.rejected, "resource is", "resources are"))
	}
}

// without returns rows without a column that has no values.
func without(rows [][]string, column string) [][]string {
	i := slices.Index(rows[0], column)
	if i < 0 || slices.ContainsFunc(rows[1:], func(r []string) bool { return r[i] != "" }) {
		return rows
	}
	out := make([][]string, len(rows))
	for n, r := range rows {
		out[n] = slices.Concat(r[:i], r[i+1:])
	}
	return out
}

// columns prints rows as a table, and reports whether it shortened any text. If the table is too
// wide, it shortens the column with the given name first, then the widest ones, and then leaves
// out columns, the last one first.
func (v view) columns(rows [][]string, first string) (shortened bool, err error) {
	lines, missing, shortened := v.lines(rows, first)
	for _, line := range lines {
		if _, err := io.WriteString(v.out, line); err != nil {
			return shortened, err
		}
	}
	if missing != "" {
		v.say("%sThe terminal is too narrow for %s.\n", v.indent, missing)
	}
	return shortened, nil
}

// indented returns a view that prints tables as parts of a list.
func (v view) indented() view {
	v.indent = "  "
	return v
}

// lines returns the lines of a table, the names of the columns that it leaves out, and whether it
// shortened any text.
func (v view) lines(rows [][]string, first string) (lines []string, missing string, shortened bool) {
	table := make([][]string, len(rows)) // headers are shared
	for n, r := range rows {
		table[n] = make([]string, len(r))
		for i, cell := range r {
			table[n][i] = cmp.Or(oneLine(cell), "-")
		}
	}
	width := v.flags.width() - utf8.RuneCountInString(v.indent)
	widths := widthsOf(table)
	if v.flags.output != outWide && total(widths) > width {
		for _, r := range table {
			for i := range r {
				r[i] = strings.ReplaceAll(r[i], commonDomain, "…")
			}
		}
		shortened = true // or the columns are
		var kept int
		widths, kept = fit(table[0], widthsOf(table), first, width)
		missing = strings.Join(table[0][kept:], ", ")
	}
	for _, r := range table {
		var b strings.Builder
		space := v.indent
		for i, most := range widths {
			cell := shorten(r[i], most)
			b.WriteString(space + cell)
			space = strings.Repeat(" ", gap+most-utf8.RuneCountInString(cell))
		}
		lines = append(lines, b.String()+"\n")
	}
	return lines, missing, shortened
}

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
	sum := gap * (len(widths) - 1)
	for _, n := range widths {
		sum += n
	}
	return sum
}

// fit returns the widths of columns so that a line has at most most characters, and how many columns
// remain. It reduces the column with the given name and then the widest ones, but not to less than
// their headers or minColumn; then it leaves out the last column. Two columns remain: they may have
// less than their headers.
func fit(header []string, natural []int, first string, most int) (widths []int, kept int) {
	before := slices.Index(header, first)
	for kept = len(header); ; kept-- {
		widths = slices.Clone(natural[:kept])
		least := make([]int, kept)
		for i := range widths {
			widths[i] = min(widths[i], most)
			if least[i] = max(minColumn, utf8.RuneCountInString(header[i])); kept <= leastColumns {
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
			if before >= 0 && before < kept && widths[before] > least[before] {
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

// writeResources prints resources as JSON or YAML: a list, or with several parts a list of each.
func (f *proxyConfigFlags) writeResources(out io.Writer, c *configuration) error {
	marshal := protojson.MarshalOptions{AllowPartial: true, Resolver: &resolver{Types: protoregistry.GlobalTypes}}
	lists := map[string][]json.RawMessage{}
	for _, p := range f.parts {
		lists[p.name] = []json.RawMessage{}
		for _, r := range c.resources[p.name] {
			raw, err := marshal.Marshal(r.message)
			if err != nil {
				return fmt.Errorf("write %s %s: %w", p.name, oneLine(r.name), err)
			}
			lists[p.name] = append(lists[p.name], raw)
		}
	}
	var answer any = lists
	if len(f.parts) == 1 {
		answer = lists[f.parts[0].name]
	}
	return f.writeVisible(out, answer)
}

// writeVisible prints an answer as JSON or YAML without characters that control terminals.
func (f *askFlags) writeVisible(out io.Writer, answer any) error {
	raw, err := json.MarshalIndent(answer, "", "  ")
	if err != nil {
		return fmt.Errorf("write the resources: %w", err)
	}
	text := visibleLines(raw)
	if f.output == outYAML {
		if raw, err = yaml.JSONToYAML([]byte(text)); err != nil {
			return fmt.Errorf("write the resources as YAML: %w", err)
		}
		text = visibleLines(raw)
	}
	_, err = io.WriteString(out, text)
	return err
}

// visibleLines escapes the characters in lines of JSON or YAML that control terminals.
func visibleLines(raw []byte) string {
	var b strings.Builder
	for line := range bytes.Lines(raw) {
		b.WriteString(visible(bytes.TrimSuffix(line, []byte("\n"))))
		b.WriteByte('\n')
	}
	return b.String()
}
