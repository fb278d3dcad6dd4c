// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// printTable prints all attacks with their costs.
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

// costOf returns the cost between two measurements.
func costOf(before, after usage) *cost {
	return &cost{memory: max(0, after.Peak-before.RSS), cpu: after.CPU - before.CPU, lines: after.lines - before.lines}
}

// String returns the cost in rounded figures.
func (c *cost) String() string {
	return fmt.Sprintf("at most %d MB, %s of CPU, %d log lines", rounded(c.memory/1e6), roundedSeconds(c.cpu), rounded(int64(c.lines)))
}

// rounded rounds up to 1, 2 or 5 times a power of ten, so that different runs have the same result.
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
