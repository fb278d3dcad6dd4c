// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package logging

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"gopkg.in/natefinch/lumberjack.v2"

	"github.com/outrigger-mesh/outrigger/internal/lograte"
	"github.com/outrigger-mesh/outrigger/internal/ratelimit"
)

// Flags are the log flags of Istio's programs.
type Flags struct {
	targets                     []string
	JSON                        bool
	levels, stacks, callers     string
	rotate                      string
	maxAge, maxSize, maxBackups int
	verbosity                   int // accepted, without effect
	inForce                     *Levels
}

// Levels returns the levels of the log that [Flags.Logger] has returned.
func (f *Flags) Levels() *Levels { return f.inForce }

// Add defines the flags.
func (f *Flags) Add(fs *pflag.FlagSet) {
	fs.SortFlags = false
	fs.StringVar(&f.levels, "log_output_level", "default:info", "lowest level of the log: debug, info, warn, error, fatal or none; component:level for one component, all:level for all")
	fs.BoolVar(&f.JSON, "log_as_json", false, "write the log as JSON, Envoy's too")
	fs.StringArrayVar(&f.targets, "log_target", []string{"stdout"}, "target of the log: stdout, stderr or a file; may be repeated")
	fs.StringVar(&f.rotate, "log_rotate", "", "additional log file, which is rotated")
	fs.IntVar(&f.maxAge, "log_rotate_max_age", 30, "days until a rotated file is removed; 0 for never")
	fs.IntVar(&f.maxSize, "log_rotate_max_size", 104857600, "size at which the file is rotated: in megabytes up to 65536, in bytes above that; 0 for 100 megabytes")
	fs.IntVar(&f.maxBackups, "log_rotate_max_backups", 1000, "how many rotated files are kept; 0 for all")
	fs.StringVar(&f.stacks, "log_stacktrace_level", "default:none", "lowest level of lines with a call stack; component:level for one component")
	fs.StringVar(&f.callers, "log_caller", "", "components whose lines show their source location, comma-separated; all for all")
	fs.IntVar(&f.verbosity, "vklog", 0, "accepted, without effect: klog is not used")
}

// Logger opens the targets and returns the logger that the flags describe. If the flags
// name unknown components, it logs a warning.
func (f *Flags) Logger() (*slog.Logger, error) {
	rules, unknown, err := f.rules()
	if err != nil {
		return nil, err
	}
	outs, err := f.open()
	if err != nil {
		return nil, err
	}
	log := slog.New(limitLog(newHandler(outs, rules, f.JSON)))
	if len(unknown) > 0 {
		log.Warn("unknown components in log flags are ignored", "name", strings.Join(unknown, ","))
	}
	return log, nil
}

// Limits of log lines that peers, Envoy and the control plane can cause. All lines of
// the agent concern one proxy, so a few of each kind are enough.
const (
	linesAtOnce    = 100
	linesPerSecond = 1
	maxLogValue    = 4 << 10 // bytes
)

// limitLog limits the lines of each kind, and the length of their values.
func limitLog(next slog.Handler) slog.Handler {
	return lograte.NewHandler(lograte.Config{
		Next: next, PerMessage: ratelimit.Limit{PerSecond: linesPerSecond, Burst: linesAtOnce}, MaxValue: maxLogValue,
	})
}

// Report logs the error that ends the agent if the log is JSON, which must contain no
// plain text, or goes to a file, which must be complete.
func (f *Flags) Report(log *slog.Logger, err error) error {
	if err == nil || !f.JSON && slices.Equal(f.targets, []string{"stdout"}) {
		return err
	}
	log.Error("agent failed", "err", Sentence(err))
	if f.JSON {
		return Logged{err}
	}
	return err
}

// rules parses the flags with components.
func (f *Flags) rules() (rules rules, unknown []string, err error) {
	var more []string
	levels, unknown, err := parseLevels("--log_output_level", f.levels, slog.LevelInfo)
	if err != nil {
		return rules, nil, err
	}
	f.inForce = newLevels(levels)
	rules.levels = f.inForce
	if rules.stacks, more, err = parseLevels("--log_stacktrace_level", f.stacks, levelNone); err != nil {
		return rules, nil, err
	}
	unknown = append(unknown, more...)
	rules.callers, more = parseComponents(f.callers)
	unknown = append(unknown, more...)
	slices.Sort(unknown)
	return rules, slices.Compact(unknown), nil
}

// open opens the targets of the log.
func (f *Flags) open() (outs writers, err error) {
	for _, target := range f.targets {
		switch target {
		case "":
			return nil, errors.New("--log_target is empty; it must be stdout, stderr or a file")
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
	if f.rotate == "" {
		return outs, nil
	}
	for name, n := range map[string]int{"max_age": f.maxAge, "max_size": f.maxSize, "max_backups": f.maxBackups} {
		if n < 0 {
			return nil, fmt.Errorf("--log_rotate_%s is %d; it must be 0 or more", name, n)
		}
	}
	// The rotation would rename anything else, such as a directory.
	if info, err := os.Stat(f.rotate); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("--log_rotate is %q; it must be a file", f.rotate)
	}
	file := &lumberjack.Logger{Filename: f.rotate, MaxSize: megabytes(f.maxSize), MaxAge: f.maxAge, MaxBackups: f.maxBackups}
	if _, err := file.Write(nil); err != nil { // opens it
		return nil, fmt.Errorf("--log_rotate: %w", err)
	}
	return append(outs, file), nil
}

// maxMegabytes is the largest size that is read as megabytes.
const maxMegabytes = 1 << 16

// megabytes converts the size of a rotated file to megabytes. Istio's programs
// document megabytes, but their default is in bytes, so large values are bytes.
func megabytes(size int) int {
	if size <= maxMegabytes {
		return size
	}
	const megabyte = 1 << 20
	return (size + megabyte - 1) / megabyte
}

// writers writes to all of its targets, even if one fails, for example because its
// disk is full.
type writers []io.Writer

// Write implements io.Writer.
func (ws writers) Write(p []byte) (int, error) {
	var errs []error
	for _, w := range ws {
		if _, err := w.Write(p); err != nil {
			errs = append(errs, err)
		}
	}
	return len(p), errors.Join(errs...)
}

// Sentence returns an error as one line; semicolons separate several errors.
func Sentence(err error) string {
	var line strings.Builder
	for part := range strings.FieldsFuncSeq(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' }) {
		part = strings.TrimSpace(part)
		switch {
		case part == "":
			continue
		case strings.HasSuffix(line.String(), ":"):
			line.WriteByte(' ')
		case line.Len() > 0:
			line.WriteString("; ")
		}
		line.WriteString(part)
	}
	return line.String()
}

// Logged is an error that the log has already reported.
type Logged struct{ error }

// Unwrap returns the error itself.
func (e Logged) Unwrap() error { return e.error }
