// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mesh

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/columns"
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
	// size returns the current number of lines and columns of the terminal; nil means that they are unknown.
	size func() (lines, columns int)
}

// Terminal colours.
const (
	colorRed    = "31"
	colorGreen  = "32"
	colorYellow = "33"
	colorCyan   = "36"
	colorGrey   = "90"
)

// redraw is how long the status lines stay away after a line of output, so that much output is not
// delayed by them.
const redraw = 50 * time.Millisecond

// screen shows lines, and below them what changes in place on a terminal: one progress line for each
// workload while a mesh starts, and then the status lines. It is safe for concurrent use.
type screen struct {
	display Display
	width   int // width of the name column

	mu      sync.Mutex // guards the fields below
	rows    []*row
	drawn   int  // number of lines that are currently on the terminal and are to be replaced
	done    bool // progress lines are no longer shown
	status  []colored
	waiting bool // the status lines are about to be drawn again
	ended   bool // status lines are no longer shown
}

// colored is a line with its colour, "" for none.
type colored struct{ color, text string }

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
	if !s.done {
		s.done, s.drawn = true, 0
	}
}

// end removes the status lines, and shows none from now on.
func (s *screen) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done {
		s.clear()
	}
	s.status, s.ended = nil, true
}

// say shows a line of outrigger itself, in lines that fit the terminal.
func (s *screen) say(color, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if s.display.Terminal {
		_, width := s.size()
		text = columns.Wrap(text, width)
	}
	s.line(s.paint(color, text))
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
	switch {
	case !s.done && s.inPlace() && len(s.rows) > 0:
		s.draw()
	case len(s.status) > 0 && !s.waiting:
		s.waiting = true
		time.AfterFunc(redraw, s.drawStatus)
	}
}

// setStatus replaces the status lines. Without a terminal, it shows nothing.
func (s *screen) setStatus(lines []colored) {
	s.mu.Lock()
	if s.display.Terminal && !s.ended {
		s.status = lines
	}
	s.mu.Unlock()
	s.drawStatus()
}

// drawStatus writes the status lines to the terminal, each cut to its width.
func (s *screen) drawStatus() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = false
	if !s.done || s.ended {
		return
	}
	s.clear()
	if len(s.status) == 0 {
		return
	}
	_, columns := s.size()
	var b strings.Builder
	for _, l := range s.status {
		b.WriteString(s.paint(l.color, shorten(strings.ReplaceAll(l.text, "\n", " "), columns)) + "\n")
	}
	s.write(b.String())
	s.drawn = len(s.status)
}

// shorten returns at most a number of characters of a text.
func shorten(text string, most int) string {
	if all := []rune(text); len(all) > most {
		return string(all[:most-1]) + "…"
	}
	return text
}

// size returns the number of lines and columns of the terminal.
func (s *screen) size() (lines, columns int) {
	lines, columns = 24, 80
	if s.display.size != nil {
		if l, c := s.display.size(); l > 0 && c > 1 {
			lines, columns = l, c
		}
	}
	return lines, columns
}

// table shows columns below a heading, as wide as the terminal at most.
func (s *screen) table(rows [][]string) {
	width := columns.Unlimited
	if s.display.Width > 0 {
		width = s.display.Width
	}
	s.line("\n" + columns.Fit(rows, "", width).String())
}

func (s *screen) paint(color, text string) string {
	if !s.display.Color || color == "" {
		return text
	}
	return "\x1b[" + color + "m" + text + "\x1b[0m"
}

// clear removes the lines that are to be replaced from the terminal. The caller holds mu.
func (s *screen) clear() {
	if s.drawn > 0 {
		s.write(fmt.Sprintf("\r\x1b[%dA\x1b[J", s.drawn))
		s.drawn = 0
	}
}

// draw writes the progress lines to the terminal, each cut to its width. The caller holds mu.
func (s *screen) draw() {
	_, columns := s.size()
	var b strings.Builder
	for _, r := range s.rows {
		plain := fmt.Sprintf("  %-*s", s.width, r.name)
		painted := plain
		for i, step := range r.steps {
			state := fmt.Sprintf("%-14s", r.states[i])
			plain += fmt.Sprintf("  %s %s", step, state)
			if strings.HasPrefix(r.states[i], "ready") {
				state = s.paint(colorGreen, state)
			}
			painted += fmt.Sprintf("  %s %s", step, state)
		}
		if short := shorten(plain, columns); short != plain {
			painted = short
		}
		b.WriteString(painted + "\n")
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
