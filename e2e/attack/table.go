// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"
)

// Markers in the document; what is between a beginning and the end is generated.
const (
	attacksBegin = "<!-- attacks: made by make attack -->\n"
	costsBegin   = "<!-- costs: made by make attack -->\n"
	markEnd      = "<!-- end -->\n"
)

// Heads of the tables.
const (
	attackHead = "| area | tried | promised | observed |\n|---|---|---|---|\n"
	costHead   = "| who | attack | memory, at most | CPU, about | log lines, at most |\n|---|---|---|---|---|\n"
)

// printTable prints all attacks, with what they cost.
func printTable(out io.Writer, results []result) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	var b strings.Builder
	b.WriteString("result\tarea\ttried\tpromised\tobserved\tmemory\tCPU\tlog lines\n")
	for _, r := range results {
		memory, cpu, lines := "-", "-", "-"
		if c := r.outcome.cost; c != nil {
			memory, cpu, lines = fmt.Sprintf("%.1f MB", float64(c.memory)/1e6), fmt.Sprintf("%.2f s", c.cpu.Seconds()), fmt.Sprint(c.lines)
		}
		fmt.Fprintf(&b, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.verdict(), r.area, r.try, r.promise, r.seen(), memory, cpu, lines)
	}
	_, err := io.WriteString(w, b.String())
	if err := errors.Join(err, w.Flush()); err != nil {
		return fmt.Errorf("print the table: %w", err)
	}
	return nil
}

// attackTable returns the rows of the attacks for the document.
func attackTable(results []result) string {
	var b strings.Builder
	b.WriteString(attackHead)
	for _, r := range results {
		b.WriteString(r.row() + " " + r.seen() + " |\n")
	}
	return b.String()
}

// row returns the part of an attack's row that does not depend on the machine.
func (a attack) row() string { return fmt.Sprintf("| %s | %s | %s |", a.area, a.try, a.promise) }

// costTable returns the rows of what attackers cost, rounded up.
func costTable(results []result) string {
	var b strings.Builder
	b.WriteString(costHead)
	for _, r := range results {
		c := r.outcome.cost
		if c == nil {
			continue
		}
		fmt.Fprintf(&b, "| %s | %s | %d MB | %s | %d |\n", c.who, r.try, rounded(c.memory/1e6), roundedSeconds(c.cpu), rounded(int64(c.lines)))
	}
	return b.String()
}

// rounded rounds up to 1, 2 or 5 times a power of ten, so that runs agree.
func rounded(n int64) int64 {
	if n <= 0 {
		return 0
	}
	for unit := int64(1); ; unit *= 10 {
		for _, digit := range []int64{1, 2, 5} {
			if n <= digit*unit {
				return digit * unit
			}
		}
	}
}

func roundedSeconds(d time.Duration) string {
	if d <= 500*time.Millisecond {
		return "under 0.5 s"
	}
	return fmt.Sprintf("%d s", rounded(int64((d+time.Second-1)/time.Second)))
}

// writeDocument puts both tables between their markers. Rows of attacks that did not
// run stay as they are.
func writeDocument(path string, results []result) error {
	for _, r := range results {
		if r.skipped != "" {
			return fmt.Errorf("%s is not written: %s: %s", path, r.try, r.skipped)
		}
	}
	doc, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	text, err := between(string(doc), attacksBegin, attackTable(results))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if text, err = between(text, costsBegin, costTable(results)); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	text, err = restore(text, string(doc), results)
	if err != nil {
		return fmt.Errorf("%s is not written: %w", path, err)
	}
	return os.WriteFile(path, []byte(text), 0o644)
}

// restore returns a document whose tables have the rows of all attacks: those that ran
// from the new document, the others from the old one, if it has them.
func restore(text, old string, results []result) (string, error) {
	ran := map[string]bool{}
	for _, r := range results {
		ran[r.try] = true
	}
	var rows, costs strings.Builder
	for _, a := range attacks() {
		from := old
		if ran[a.try] {
			from = text
		}
		row, costRow := "", ""
		for line := range strings.Lines(from) {
			switch {
			case strings.HasPrefix(line, a.row()):
				row = line
			case strings.Count(line, "|") == 6 && strings.Contains(line, "| "+a.try+" |"):
				costRow = line
			}
		}
		rows.WriteString(row)
		costs.WriteString(costRow)
	}
	text, err := between(text, attacksBegin, attackHead+rows.String())
	if err != nil {
		return "", err
	}
	return between(text, costsBegin, costHead+costs.String())
}

// between replaces what is between a marker and the end that follows it.
func between(doc, begin, text string) (string, error) {
	head, rest, found := strings.Cut(doc, begin)
	_, tail, closed := strings.Cut(rest, markEnd)
	if !found || !closed {
		return "", fmt.Errorf("it has no lines %q and %q", begin, markEnd)
	}
	return head + begin + text + markEnd + tail, nil
}
