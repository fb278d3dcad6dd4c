// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package logging

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"
)

// handler writes lines in the format of Istio's programs: time, level, component,
// caller, message and attributes, separated by tabs, or the same as JSON, where the
// component has the key "scope". The rules decide whether a line has caller and stack.
type handler struct {
	mu        *sync.Mutex // guards out
	out       io.Writer
	rules     rules
	component string
	rule      rule // of the component
	attrs     []slog.Attr
	json      slog.Handler // nil for text
}

func newHandler(out io.Writer, rules rules, asJSON bool) *handler {
	h := &handler{mu: &sync.Mutex{}, out: out, rules: rules, rule: rules.of(defaultComponent)}
	if asJSON {
		// The lowest level is that of the rules.
		h.json = slog.NewJSONHandler(out, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: jsonAttr})
	}
	return h
}

// jsonAttr renames keys and values of slog to those of Istio.
func jsonAttr(_ []string, a slog.Attr) slog.Attr {
	switch {
	case a.Key == "component":
		a.Key = "scope"
	case a.Key == slog.LevelKey:
		a.Value = slog.StringValue(strings.ToLower(a.Value.String()))
	case a.Key == slog.TimeKey && a.Value.Kind() == slog.KindTime:
		a.Value = slog.StringValue(timestamp(a.Value.Time()))
	case a.Value.Kind() == slog.KindDuration:
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	return a
}

// Enabled implements slog.Handler.
func (h *handler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= h.rules.levels.of(h.component)
}

// Handle implements slog.Handler.
func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	var callers []slog.Attr
	if h.rule.caller {
		callers = append(callers, slog.String("caller", caller(r.PC)))
	}
	withStack := r.Level >= h.rule.stacks
	if h.json != nil {
		r = r.Clone()
		r.AddAttrs(callers...)
		if withStack {
			r.AddAttrs(slog.String("stack", stack(r.PC, "\n\t", "\n")))
		}
		return h.json.Handle(ctx, r)
	}
	var line strings.Builder
	line.WriteString(timestamp(r.Time))
	word := func(s string) {
		line.WriteByte('\t')
		line.WriteString(s)
	}
	word(strings.ToLower(r.Level.String()))
	if h.component != "" {
		word(h.component)
	}
	for _, a := range callers {
		word(a.Value.String())
	}
	word(OneLine(r.Message))
	add := func(a slog.Attr) bool {
		word(a.Key)
		line.WriteByte('=')
		line.WriteString(OneLine(a.Value.Resolve().String()))
		return true
	}
	for _, a := range h.attrs {
		add(a)
	}
	r.Attrs(add)
	if withStack {
		add(slog.String("stack", stack(r.PC, " ", " < ")))
	}
	line.WriteByte('\n')
	h.mu.Lock()
	defer h.mu.Unlock()
	_, err := io.WriteString(h.out, line.String())
	return err
}

// WithAttrs implements slog.Handler.
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	derived := *h
	derived.attrs = slices.Clone(h.attrs)
	for _, a := range attrs {
		if a.Key == "component" {
			derived.component = a.Value.String()
			derived.rule = h.rules.of(derived.component)
		} else {
			derived.attrs = append(derived.attrs, a)
		}
	}
	if h.json != nil {
		derived.json = h.json.WithAttrs(attrs)
	}
	return &derived
}

// WithGroup implements slog.Handler. Groups are not used.
func (h *handler) WithGroup(string) slog.Handler { return h }

func timestamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000000Z") }

// caller returns the source location of a line: folder, file and line.
func caller(pc uintptr) string {
	frame, _ := runtime.CallersFrames([]uintptr{pc}).Next()
	return place(frame)
}

func place(f runtime.Frame) string {
	return path.Join(path.Base(path.Dir(f.File)), path.Base(f.File)) + ":" + strconv.Itoa(f.Line)
}

// maxFrames is the maximum number of frames that are shown of a stack.
const maxFrames = 32

// stack returns the call stack, starting with the function that logged. between
// separates a function from its location, next two functions.
func stack(pc uintptr, between, next string) string {
	pcs := make([]uintptr, maxFrames+8)
	pcs = pcs[:runtime.Callers(1, pcs)]
	// The frames above the call of the logger belong to the logger.
	if i := slices.Index(pcs, pc); i > 0 {
		pcs = pcs[i:]
	}
	frames := runtime.CallersFrames(pcs[:min(len(pcs), maxFrames)])
	var lines []string
	for {
		frame, more := frames.Next()
		if frame.Function != "" && frame.Function != "runtime.goexit" {
			lines = append(lines, frame.Function+between+place(frame))
		}
		if !more {
			return strings.Join(lines, next)
		}
	}
}

// OneLine escapes characters by which a value could forge a line or a field of the
// log, or control the terminal.
func OneLine(s string) string {
	if utf8.ValidString(s) && strings.IndexFunc(s, breaks) < 0 {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteByte(' ')
		case breaks(r):
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteString(s[:size])
		}
		s = s[size:]
	}
	return b.String()
}

func breaks(r rune) bool { return unicode.IsControl(r) || r == '\u2028' || r == '\u2029' }
