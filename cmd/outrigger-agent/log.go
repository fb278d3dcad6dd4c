// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"
)

// logFlags are the flags of Istio's programs about their log.
type logFlags struct {
	targets []string
	asJSON  bool
	levels  string
	// The others are accepted, without effect.
	rotate, stacktrace, caller  string
	maxAge, maxSize, maxBackups int
	verbosity                   int
}

func (f *logFlags) add(fs *pflag.FlagSet) {
	fs.SortFlags = false
	fs.StringVar(&f.levels, "log_output_level", "default:info", "lowest level of the log: debug, info, warn, error or none; scope:level for a part")
	fs.BoolVar(&f.asJSON, "log_as_json", false, "write the log as JSON, Envoy's too")
	fs.StringArrayVar(&f.targets, "log_target", []string{"stdout"}, "where the log goes: stdout, stderr or a file; can be given again")
	fs.StringVar(&f.rotate, "log_rotate", "", "accepted, without effect")
	fs.IntVar(&f.maxAge, "log_rotate_max_age", 30, "accepted, without effect")
	fs.IntVar(&f.maxSize, "log_rotate_max_size", 104857600, "accepted, without effect")
	fs.IntVar(&f.maxBackups, "log_rotate_max_backups", 1000, "accepted, without effect")
	fs.StringVar(&f.stacktrace, "log_stacktrace_level", "default:none", "accepted, without effect")
	fs.StringVar(&f.caller, "log_caller", "", "accepted, without effect")
	fs.IntVar(&f.verbosity, "vklog", 0, "accepted, without effect")
}

// logger opens the targets and makes the log that the flags ask for.
func (f *logFlags) logger() (*slog.Logger, error) {
	levels, err := parseLevels(f.levels)
	if err != nil {
		return nil, err
	}
	var outs []io.Writer
	for _, target := range f.targets {
		switch target {
		case "stdout":
			outs = append(outs, os.Stdout)
		case "stderr":
			outs = append(outs, os.Stderr)
		default:
			file, err := os.OpenFile(target, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
			if err != nil {
				return nil, fmt.Errorf("--log_target: %w", err)
			}
			outs = append(outs, file)
		}
	}
	return slog.New(newLogHandler(io.MultiWriter(outs...), levels, f.asJSON)), nil
}

// levelNone is above every level that is logged.
const levelNone = slog.LevelError + 4

// parseLevels reads "default:info,xdsproxy:debug". The level of all scopes
// without one of their own is under "default".
func parseLevels(list string) (map[string]slog.Level, error) {
	named := map[string]slog.Level{
		"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError, "fatal": levelNone, "none": levelNone,
	}
	levels := map[string]slog.Level{"default": slog.LevelInfo}
	for item := range strings.SplitSeq(list, ",") {
		scope, name, found := strings.Cut(strings.TrimSpace(item), ":")
		if !found {
			scope, name = "default", scope
		}
		level, ok := named[name]
		if !ok {
			return nil, fmt.Errorf("--log_output_level %q: the level %q must be debug, info, warn, error or none", list, name)
		}
		if scope == "all" {
			return map[string]slog.Level{"default": level}, nil
		}
		levels[scope] = level
	}
	return levels, nil
}

// logHandler writes lines as Istio's programs do: time, level, scope, message
// and attributes, with tabs between, or the same as JSON. The attribute
// "component" of a logger is its scope.
type logHandler struct {
	mu     *sync.Mutex // guards out
	out    io.Writer
	levels map[string]slog.Level
	scope  string
	attrs  []slog.Attr
	json   slog.Handler // nil for text
}

func newLogHandler(out io.Writer, levels map[string]slog.Level, asJSON bool) *logHandler {
	h := &logHandler{mu: &sync.Mutex{}, out: out, levels: levels}
	if asJSON {
		h.json = slog.NewJSONHandler(out, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			switch a.Key {
			case "component":
				a.Key = "scope"
			case slog.LevelKey:
				a.Value = slog.StringValue(strings.ToLower(a.Value.String()))
			case slog.TimeKey:
				a.Value = slog.StringValue(timestamp(a.Value.Time()))
			}
			return a
		}})
	}
	return h
}

// Enabled implements slog.Handler.
func (h *logHandler) Enabled(_ context.Context, level slog.Level) bool {
	lowest, ok := h.levels[h.scope]
	if !ok {
		lowest = h.levels["default"]
	}
	return level >= lowest
}

// Handle implements slog.Handler.
func (h *logHandler) Handle(ctx context.Context, r slog.Record) error {
	if h.json != nil {
		return h.json.Handle(ctx, r)
	}
	var line strings.Builder
	line.WriteString(timestamp(r.Time))
	line.WriteByte('\t')
	line.WriteString(strings.ToLower(r.Level.String()))
	line.WriteByte('\t')
	if h.scope != "" {
		line.WriteString(h.scope)
		line.WriteByte('\t')
	}
	line.WriteString(oneLine(r.Message))
	add := func(a slog.Attr) bool {
		line.WriteByte('\t')
		line.WriteString(a.Key)
		line.WriteByte('=')
		line.WriteString(oneLine(a.Value.Resolve().String()))
		return true
	}
	for _, a := range h.attrs {
		add(a)
	}
	r.Attrs(add)
	line.WriteByte('\n')
	h.mu.Lock()
	defer h.mu.Unlock()
	_, err := io.WriteString(h.out, line.String())
	return err
}

// WithAttrs implements slog.Handler.
func (h *logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	derived := *h
	derived.attrs = slices.Clone(h.attrs)
	for _, a := range attrs {
		if a.Key == "component" {
			derived.scope = a.Value.String()
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
func (h *logHandler) WithGroup(string) slog.Handler { return h }

func timestamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000000Z") }

// oneLine keeps a value from faking a line of the log.
func oneLine(s string) string {
	return strings.NewReplacer("\n", `\n`, "\r", `\r`, "\t", " ").Replace(s)
}
