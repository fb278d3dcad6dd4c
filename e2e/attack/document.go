// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"fmt"
	"os"
	"strings"
	"unicode/utf8"
)

// Markers in the document. The text between them is generated.
const (
	listBegin = "<!-- attacks: made by make attack -->\n"
	listEnd   = "<!-- end -->\n"
)

// lineWidth is the maximum line width of the document, in characters.
const lineWidth = 100

// list returns the generated part of the document: all attacks by area and promise, with the
// observations. It omits attacks that are not in observed.
func list(all []attack, observed map[string]string) string {
	var b strings.Builder
	for _, area := range groupBy(all, func(a attack) string { return a.area }) {
		fmt.Fprintf(&b, "\n### %s\n", strings.ToUpper(area[0].area[:1])+area[0].area[1:])
		for _, group := range groupBy(area, func(a attack) string { return a.promise }) {
			b.WriteString("\n" + wrap("Promised: "+group[0].promise+".", "") + "\n\n")
			for _, a := range group {
				if seen, ok := observed[a.try]; ok {
					b.WriteString(wrap(entry(a.try)+seen+"**", "  ") + "\n")
				}
			}
		}
	}
	return b.String() + "\n"
}

// entry returns the beginning of an attack's line, before the observation.
func entry(try string) string { return "- " + try + ": **" }

// groupBy groups attacks by a key, in the order in which the keys first occur.
func groupBy(all []attack, key func(attack) string) [][]attack {
	var out [][]attack
	index := map[string]int{}
	for _, a := range all {
		i, ok := index[key(a)]
		if !ok {
			i = len(out)
			index[key(a)] = i
			out = append(out, nil)
		}
		out[i] = append(out[i], a)
	}
	return out
}

// wrap breaks a text into lines of at most lineWidth characters. All lines except the first begin
// with indent.
func wrap(text, indent string) string {
	var b strings.Builder
	width := 0
	for i, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case width+1+n > lineWidth:
			b.WriteString("\n" + indent)
			width = len(indent)
		default:
			b.WriteString(" ")
			width++
		}
		b.WriteString(word)
		width += n
	}
	return b.String()
}

// observations returns the observations in a document by the attack's entry.
func observations(doc string, all []attack) (map[string]string, error) {
	_, rest, found := strings.Cut(doc, listBegin)
	section, _, closed := strings.Cut(rest, listEnd)
	if !found || !closed {
		return nil, fmt.Errorf("it has no lines %q and %q", listBegin, listEnd)
	}
	section = strings.ReplaceAll(section, "\n  ", " ")
	observed := map[string]string{}
	for line := range strings.Lines(section) {
		for _, a := range all {
			if seen, ok := strings.CutPrefix(strings.TrimSpace(line), entry(a.try)); ok {
				observed[a.try] = strings.TrimSuffix(seen, "**")
			}
		}
	}
	return observed, nil
}

// updated returns the document with the results of the attacks that ran. Observations of other
// attacks remain unchanged.
func updated(doc string, all []attack, results []result) (string, error) {
	observed, err := observations(doc, all)
	if err != nil {
		return "", err
	}
	for _, r := range results {
		if r.skipped != "" {
			return "", fmt.Errorf("%s: %s", r.try, r.skipped)
		}
		observed[r.try] = r.seen()
	}
	head, rest, _ := strings.Cut(doc, listBegin)
	_, tail, _ := strings.Cut(rest, listEnd)
	return head + listBegin + list(all, observed) + listEnd + tail, nil
}

// writeDocument writes the results into a document.
func writeDocument(path string, results []result) error {
	doc, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	text, err := updated(string(doc), attacks(), results)
	if err != nil {
		return fmt.Errorf("%s is not written: %w", path, err)
	}
	return os.WriteFile(path, []byte(text), 0o644)
}
