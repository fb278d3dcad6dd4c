// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/outrigger-mesh/outrigger/internal/columns"
)

// commonDomain is the end of most names of services, which is left out first.
const commonDomain = ".svc.cluster.local"

// configuration prints a table for each part.
func (v view) configuration(c *configuration, list []part) error {
	all, shortened := v.flags.width() == columns.Unlimited, false
	for i, p := range list {
		if i > 0 && p.name == extensions && len(c.resources[p.name]) == 0 {
			continue // most proxies have none
		}
		if i > 0 {
			v.say("\n")
		}
		rows := [][]string{p.header}
		for _, r := range c.resources[p.name] {
			rows = append(rows, p.rows(r, all)...)
		}
		if len(rows) == 1 {
			v.say("No %s.\n", cmp.Or(map[string]string{extensions: "extensions"}[p.name], p.name))
			continue
		}
		short, err := v.columns(without(rows, p.optional...), p.short)
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

// without returns rows without those of some columns that have no values, or only that of a resource in use.
func without(rows [][]string, columns ...string) [][]string {
	for _, column := range columns {
		i := slices.Index(rows[0], column)
		if i < 0 || slices.ContainsFunc(rows[1:], func(r []string) bool { return r[i] != "" && r[i] != statusActive }) {
			continue
		}
		out := make([][]string, len(rows)) // headers are shared
		for n, r := range rows {
			out[n] = slices.Concat(r[:i], r[i+1:])
		}
		rows = out
	}
	return rows
}

// columns prints rows as a table, and reports whether it shortened any text. If the table is too
// wide, it shortens the column with the given name first, then the widest ones, and then leaves
// out columns, the last one first.
func (v view) columns(rows [][]string, first string) (shortened bool, err error) {
	lines, missing, shortened := v.lines(rows, first)
	out := v.out
	if v.flags.output == outWide {
		out = columns.Raw(out)
	}
	for _, line := range lines {
		if _, err := io.WriteString(out, line); err != nil {
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
	if columns.Width(table) > width {
		shortened = true
		for _, r := range table {
			for i := range r {
				r[i] = strings.ReplaceAll(r[i], commonDomain, "…")
			}
		}
	}
	fitted := columns.Fit(table, first, width)
	for i, line := range fitted.Lines {
		fitted.Lines[i] = v.indent + line + "\n"
	}
	return fitted.Lines, strings.Join(fitted.Missing, ", "), shortened || fitted.Shortened
}

// writeResources prints resources as JSON or YAML: a list, or with several parts a list of each.
func (f *proxyConfigFlags) writeResources(out io.Writer, c *configuration) error {
	marshal := protojson.MarshalOptions{AllowPartial: true, Resolver: &resolver{Types: protoregistry.GlobalTypes}}
	lists := map[string][]json.RawMessage{}
	for _, p := range f.parts {
		lists[p.name] = []json.RawMessage{}
		for _, r := range c.resources[p.name] {
			if r.status == statusDraining { // its configuration is not that of the proxy any more
				continue
			}
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
	return f.write(out, answer)
}
