// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mesh

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
)

// Display configures the output for the user.
type Display struct {
	// Out receives all output: progress, the table, and the output of the workloads.
	Out io.Writer
	// Terminal enables progress lines that are updated in place.
	Terminal bool
	// Height and Width are the lines and columns of the terminal, 0 if unknown.
	Height, Width int
	// Color enables colours.
	Color bool
}

// Terminal colours.
const (
	colorRed    = "31"
	colorGreen  = "32"
	colorYellow = "33"
	colorCyan   = "36"
	colorGrey   = "90"
)

// screen shows lines and, while a mesh starts, one progress line for each workload below them. It
// is safe for concurrent use.
type screen struct {
	display Display
	width   int // width of the name column

	mu    sync.Mutex // guards the fields below
	rows  []*row
	drawn int  // number of progress lines currently on the terminal
	done  bool // progress lines are no longer shown
}

// row is the progress line of one workload or of the control plane.
type row struct {
	name   string
	states []string // in the order of steps
	steps  []role
}

func newScreen(d Display, names []string) *screen {
	s := &screen{display: d, width: len(controlName)}
	for _, n := range names {
		s.width = max(s.width, len(agentLabel(n)))
	}
	return s
}

// track adds a progress line with one state per step.
func (s *screen) track(name string, steps ...role) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &row{name: name, steps: steps, states: make([]string, len(steps))}
	for i := range r.states {
		r.states[i] = "waiting"
	}
	s.rows = append(s.rows, r)
}

// progress changes one state of a progress line. Without a terminal, it prints a separate line.
func (s *screen) progress(name string, step role, state string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done {
		return
	}
	if !s.inPlace() {
		if state != stateStarting {
			s.print(fmt.Sprintf("outrigger: %s%s %s", owner(name), step, state))
		}
		return
	}
	for _, r := range s.rows {
		for i := range r.steps {
			if r.name == name && r.steps[i] == step {
				r.states[i] = state
			}
		}
	}
	s.clear()
	s.draw()
}

// inPlace reports whether the progress lines can be updated in place, which requires a sufficiently
// high terminal. The caller holds mu.
func (s *screen) inPlace() bool {
	return s.display.Terminal && (s.display.Height == 0 || len(s.rows) < s.display.Height)
}

// settle leaves the progress lines on the screen and continues below them.
func (s *screen) settle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.done && s.inPlace() && s.drawn == 0 {
		s.draw()
	}
	s.done, s.drawn = true, 0
}

// say shows a line of outrigger itself.
func (s *screen) say(color, format string, args ...any) {
	s.line(s.paint(color, fmt.Sprintf(format, args...)))
}

// child shows a line of a part's output.
func (s *screen) child(p string, l level, text string) {
	switch l {
	case levelError:
		text = s.paint(colorRed, text)
	case levelWarning:
		text = s.paint(colorYellow, text)
	}
	s.line(s.paint(colorGrey, fmt.Sprintf("%-*s | ", s.width, p)) + text)
}

func (s *screen) line(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clear()
	s.print(text)
	if s.inPlace() && !s.done && len(s.rows) > 0 {
		s.draw()
	}
}

// table shows columns below a heading.
func (s *screen) table(rows [][]string) {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	for _, r := range rows {
		_, _ = fmt.Fprintln(w, strings.Join(r, "\t")) // to a strings.Builder
	}
	_ = w.Flush()
	s.line("\n" + strings.TrimRight(b.String(), "\n") + "\n")
}

func (s *screen) paint(color, text string) string {
	if !s.display.Color || color == "" {
		return text
	}
	return "\x1b[" + color + "m" + text + "\x1b[0m"
}

// clear removes the progress lines from the terminal. The caller holds mu.
func (s *screen) clear() {
	if s.drawn > 0 {
		s.write(fmt.Sprintf("\x1b[%dA\x1b[J", s.drawn))
		s.drawn = 0
	}
}

// draw writes the progress lines to the terminal. The caller holds mu.
func (s *screen) draw() {
	var b strings.Builder
	for _, r := range s.rows {
		fmt.Fprintf(&b, "  %-*s", s.width, r.name)
		for i, step := range r.steps {
			state := fmt.Sprintf("%-14s", r.states[i])
			if strings.HasPrefix(r.states[i], "ready") {
				state = s.paint(colorGreen, state)
			}
			fmt.Fprintf(&b, "  %s %s", step, state)
		}
		b.WriteByte('\n')
	}
	s.write(b.String())
	s.drawn = len(s.rows)
}

func (s *screen) print(text string) { s.write(text + "\n") }

// write ignores errors, which the owner of Out may handle.
func (s *screen) write(text string) { _, _ = io.WriteString(s.display.Out, text) }

// stateStarting is shown on a terminal but not printed as a separate line.
const stateStarting = "starting"

// agentLabel returns the label of output lines of an agent or its Envoy.
func agentLabel(name string) string { return name + " agent" }

// owner returns the beginning of a message about a part of a workload. The control plane has only
// one part.
func owner(name string) string {
	if name == controlName {
		return ""
	}
	return name + ": "
}

// seconds formats a short duration.
func seconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }
