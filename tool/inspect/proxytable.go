// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"bytes"
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
// wide, it shortens the column with the given name first.
func (v view) columns(rows [][]string, first string) (shortened bool, err error) {
	for n, r := range rows {
		line := make([]string, len(r)) // headers are shared
		for i, cell := range r {
			if line[i] = oneLine(cell); line[i] == "" {
				line[i] = "-"
			}
		}
		rows[n] = line
	}
	widths, full := widthsOf(rows), v.flags.output == outWide
	if !full && total(widths) > v.flags.width() {
		for _, r := range rows {
			for i := range r {
				r[i] = strings.ReplaceAll(r[i], commonDomain, "…")
			}
		}
		shortened = true // or the columns are
		widths = widthsOf(rows)
		fit(rows[0], widths, first, v.flags.width())
	}
	w := v.tabs()
	for _, r := range rows {
		for i, cell := range r {
			r[i] = shorten(cell, widths[i])
		}
		_, _ = fmt.Fprintln(w, strings.Join(r, "\t")) // Flush returns the error
	}
	return shortened, w.Flush()
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

// fit reduces the first column to shorten, and then the widest ones, until a line has at most
// most characters. Headers stay.
func fit(header []string, widths []int, first string, most int) {
	least := make([]int, len(widths))
	for i := range widths {
		widths[i] = min(widths[i], most)
		least[i] = max(minColumn, utf8.RuneCountInString(header[i]))
	}
	before := slices.Index(header, first)
	for sum := total(widths); sum > most; sum-- {
		reduced := -1
		for i, n := range widths {
			if n > least[i] && (reduced < 0 || n > widths[reduced]) {
				reduced = i
			}
		}
		if before >= 0 && widths[before] > least[before] {
			reduced = before
		}
		if reduced < 0 {
			return
		}
		widths[reduced]--
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
