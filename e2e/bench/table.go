// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// unit is the unit in which a figure is printed. Figures are stored in bytes and seconds.
type unit string

const (
	kilobytes    unit = "kB"
	megabytes    unit = "MB"
	seconds      unit = "s"
	milliseconds unit = "ms"
	// count is the number of unwanted items: the target is zero.
	count unit = "count"
)

// figure is one row of the table.
type figure struct {
	Name string
	Unit unit
	// Ours and Straight are in bytes or seconds. Straight is the cost without Outrigger, or 0 if
	// there is no comparison.
	Ours     float64
	Straight float64
	// Target is the maximum of Ours, and TargetRatio the maximum ratio of Ours to Straight; 0 means
	// none.
	Target      float64
	TargetRatio float64
}

func (u unit) text(v float64) string {
	switch {
	case u == count:
		return fmt.Sprintf("%.0f", v)
	case v == 0:
		return "-"
	case u == kilobytes:
		return fmt.Sprintf("%.1f kB", v/1e3)
	case u == megabytes:
		return fmt.Sprintf("%.2f MB", v/1e6)
	case u == milliseconds:
		return fmt.Sprintf("%.3f ms", v*1e3)
	}
	return fmt.Sprintf("%.3f s", v)
}

// straight returns the value of Straight and the ratio, or "-" without a comparison.
func (f figure) straight() (way, ratio string) {
	if f.Straight == 0 {
		return "-", "-"
	}
	return f.Unit.text(f.Straight), fmt.Sprintf("%.2fx", f.Ours/f.Straight)
}

// target returns the target and whether it is met.
func (f figure) target() string {
	var text string
	met := true
	switch {
	case f.Unit == count:
		text, met = "0", f.Ours == 0
	case f.TargetRatio > 0:
		text, met = fmt.Sprintf("%.1fx", f.TargetRatio), f.Ours <= f.TargetRatio*f.Straight
	case f.Target > 0:
		text, met = f.Unit.text(f.Target), f.Ours <= f.Target
	default:
		return "-"
	}
	if !met {
		text += "  missed"
	}
	return text
}

func printTable(out io.Writer, head string, figures []figure) error {
	var text strings.Builder
	fmt.Fprintf(&text, "%s\n\nfigure\tours\tstraight\tratio\ttarget\n", head)
	for _, f := range figures {
		straight, ratio := f.straight()
		fmt.Fprintf(&text, "%s\t%s\t%s\t%s\t%s\n", f.Name, f.Unit.text(f.Ours), straight, ratio, f.target())
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, err := io.WriteString(w, text.String())
	if err := errors.Join(err, w.Flush()); err != nil {
		return fmt.Errorf("print the table: %w", err)
	}
	return nil
}
