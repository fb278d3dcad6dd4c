// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/internal/columns"
	"github.com/outrigger-mesh/outrigger/internal/output"
	"github.com/outrigger-mesh/outrigger/mesh"
)

const (
	// defaultWatch is how often a command asks again.
	defaultWatch = 2 * time.Second
	// watchIdle is how many times longer than an answer took a command waits at least: one that watches
	// costs a control plane at most a tenth of a processor.
	watchIdle = 9
	// mostBackOff limits how long a command waits for a control plane that is too busy.
	mostBackOff = 30 * time.Second
)

// watchFlags are the flags of commands that can print again what changes.
type watchFlags struct {
	watch    bool
	interval time.Duration
}

// addWatch adds the flags to a command.
func (f *watchFlags) addWatch(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&f.watch, "watch", "w", false, "print again what changes, until Ctrl-C")
	cmd.Flags().DurationVar(&f.interval, "interval", defaultWatch, "with --watch: how often to ask, from "+minInterval.String()+" to "+maxInterval.String()+"; less often if an answer takes long")
}

// checkInterval checks the interval.
func (f *watchFlags) checkInterval() error {
	if f.interval < minInterval || f.interval > maxInterval {
		return fmt.Errorf("--interval %s must be from %s to %s", f.interval, minInterval, maxInterval)
	}
	return nil
}

// frame is what a command prints at one moment.
type frame struct {
	// page prints everything.
	page func(v view) error
	// same is equal for frames that differ in nothing but ages.
	same string
	// changes prints what changed since the last frame; nil if that is the page.
	changes func(v view) error
	// failed is true if the exit code is 1.
	failed bool
	// troubles are sentences above the page on a terminal, which may have no space for its end.
	troubles []string
}

// watcher prints frames until the context of its command ends: on a terminal each in place of the
// last one, elsewhere what changed.
type watcher struct {
	name       string // of the command
	flags      *askFlags
	every      watchFlags
	terminal   bool // repaint
	out, notes io.Writer
	begun      bool
	last       frame
	lost       links
	again      time.Duration // the last back-off, without its random part
}

// newWatcher returns a watcher, and makes its flags know the last answers. If appends is true, frames only
// append to what was printed.
func newWatcher(cmd *cobra.Command, flags *askFlags, every watchFlags, appends bool) *watcher {
	flags.memory = newMemory()
	w := &watcher{name: cmd.CommandPath(), flags: flags, every: every, out: cmd.OutOrStdout(), notes: cmd.ErrOrStderr(), lost: links{}}
	w.terminal = mesh.NewDisplay(mesh.Host{Out: w.out, Dumb: flags.cfg.Dumb}).Terminal && !appends && flags.forReaders()
	return w
}

// forReaders reports whether the output is text for readers.
func (f *askFlags) forReaders() bool { return output.ForReaders(f.output) }

// run prints the frames that look returns. An error of the first look ends it; later ones are printed
// instead of a frame.
func (w *watcher) run(ctx context.Context, look func(context.Context) (frame, error)) error {
	for {
		begun := time.Now()
		next, err := look(ctx)
		switch {
		case ctx.Err() != nil: // the answer is not complete
			return w.end()
		case err != nil && w.begun:
			err = w.show(w.last, err)
			w.last.failed = true
		case err == nil:
			err = w.show(next, nil)
			w.last, w.begun = next, true
		}
		if err != nil {
			return err
		}
		wait := time.NewTimer(max(w.every.interval, watchIdle*time.Since(begun), w.backOff()))
		select {
		case <-ctx.Done():
			wait.Stop()
			return w.end()
		case <-wait.C:
		}
	}
}

// backOff returns how long to wait because a control plane is too busy: twice as long each time, and not
// as long as others that watch.
func (w *watcher) backOff() time.Duration {
	after := w.flags.memory.busy()
	if after == 0 {
		w.again = 0
		return 0
	}
	w.again = min(max(after, 2*w.again), mostBackOff)
	return w.again/2 + rand.N(w.again)
}

// show prints what look returns once, or with --watch what changes.
func (f *askFlags) show(cmd *cobra.Command, every watchFlags, look func(context.Context, *watcher) (frame, error)) error {
	if err := every.checkInterval(); err != nil {
		return f.cfg.Exit(exitUsage, err)
	}
	if every.watch {
		w := newWatcher(cmd, f, every, false)
		return w.run(cmd.Context(), func(ctx context.Context) (frame, error) { return look(ctx, w) })
	}
	one, err := look(cmd.Context(), nil)
	if err == nil {
		err = one.page(view{out: cmd.OutOrStdout(), now: time.Now(), flags: f})
	}
	for _, text := range one.troubles {
		_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "error: %s\n", oneLine(text)) // the terminal may be closed
	}
	if err == nil && one.failed {
		return f.cfg.Exit(exitFailed, nil)
	}
	return err
}

// frameOf returns the frame of an answer, which page prints for readers.
func (f *askFlags) frameOf(answer any, page func(view) error) (frame, error) {
	if !f.forReaders() {
		same, err := json.Marshal(answer)
		return frame{same: string(same), page: func(v view) error { return f.write(v.out, answer) }}, err
	}
	var same bytes.Buffer
	err := page(view{out: &same, flags: f}) // without a clock there are no ages
	return frame{same: same.String(), page: page}, err
}

// missing adds the control planes that do not answer to a frame. A watcher, which may be nil, says it.
func missing[T any](next *frame, w *watcher, answers []answer[T]) {
	for _, a := range answers {
		what := "control plane " + a.address
		if w != nil {
			w.note(what, a.err, time.Now())
		}
		if a.err != nil {
			next.failed, next.troubles = true, append(next.troubles, what+": "+a.err.Error())
		}
	}
}

// nobody returns the error of a command that no control plane answers. A watcher that has printed a frame
// goes on.
func nobody[T any](f *askFlags, cmd *cobra.Command, w *watcher, answers []answer[T]) error {
	if w != nil && w.begun {
		return noAnswer(answers[0].address, answers[0].err)
	}
	complain(cmd.ErrOrStderr(), answers)
	return f.cfg.Exit(exitFailed, nil)
}

// end returns the exit code of the last frame.
func (w *watcher) end() error {
	if w.last.failed {
		return w.flags.cfg.Exit(exitFailed, nil)
	}
	return nil
}

// show prints a frame, or the last one again with the reason why there is no newer one.
func (w *watcher) show(next frame, trouble error) error {
	v := view{out: w.out, now: time.Now(), flags: w.flags}
	w.note(w.name, trouble, v.now)
	if w.terminal {
		w.flags.cfg.Width = mesh.NewDisplay(mesh.Host{Out: w.out, Dumb: w.flags.cfg.Dumb}).Width // it may have changed
		var page bytes.Buffer
		v.out = &page
		v.say("Every %s, %s. Ctrl-C ends.\n", w.every.interval, v.now.Format(time.TimeOnly))
		if trouble != nil {
			v.say("error: %s. This was before:\n", trouble.Error())
		}
		for _, text := range next.troubles {
			v.say("error: %s.\n", text)
		}
		v.say("\n")
		if err := next.page(v); err != nil {
			return err
		}
		return repaint(w.out, page.String(), w.flags.cfg.Dumb)
	}
	switch {
	case !w.begun:
		return next.page(v)
	case trouble != nil || next.same == w.last.same:
		return nil
	case next.changes != nil:
		return next.changes(v)
	case w.flags.output == outYAML:
		v.say("---\n")
	case w.flags.output != outJSON:
		v.say("\n")
	}
	return next.page(v)
}

// note prints whether something does not answer, or answers again, where the output has no page that
// contains this.
func (w *watcher) note(what string, err error, now time.Time) {
	if text := w.lost.note(what, err, now); text != "" && !w.terminal {
		_, _ = fmt.Fprintln(w.notes, oneLine(text)) // the terminal may be closed
	}
}

// repaint replaces what is on a terminal by the lines of a page that it has space for.
func repaint(out io.Writer, page string, dumb bool) error {
	d := mesh.NewDisplay(mesh.Host{Out: out, Dumb: dumb})
	_, err := io.WriteString(columns.Raw(out), painting(page, d.Height, d.Width))
	return err
}

// painting returns the text that replaces what is on a terminal of some lines and columns. It leaves the
// last line of the terminal empty.
func painting(page string, height, width int) string {
	var b strings.Builder
	b.WriteString("\x1b[H")
	if width > 0 {
		page = columns.Wrap(page, width)
	}
	lines := strings.Split(strings.TrimSuffix(page, "\n"), "\n")
	for i, line := range lines {
		rows := 1
		if n := utf8.RuneCountInString(line); width > 0 && n > width {
			rows = (n + width - 1) / width
		}
		const last = 2 // lines for what follows, and for the cursor
		if height -= rows; height < last && height+rows >= last && i < len(lines)-1 {
			fmt.Fprintf(&b, "… and %d more lines\x1b[K\n", len(lines)-i)
			break
		}
		b.WriteString(line + "\x1b[K\n")
	}
	b.WriteString("\x1b[J")
	return b.String()
}

// links knows what does not answer, and since when.
type links map[string]time.Time

// note records whether something answers, and returns a sentence if that changes.
func (l links) note(what string, err error, now time.Time) string {
	since, lost := l[what]
	switch {
	case err != nil && !lost:
		l[what] = now
		return fmt.Sprintf("error: %s: %v; asking again", what, err)
	case err == nil && lost:
		delete(l, what)
		return fmt.Sprintf("%s answers again, after %s", what, age(since, now))
	}
	return ""
}
