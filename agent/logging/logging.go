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

// Flags are the flags of Istio's programs about their log.
type Flags struct {
	targets                     []string
	JSON                        bool
	levels, stacks, callers     string
	rotate                      string
	maxAge, maxSize, maxBackups int
	verbosity                   int // accepted, without effect
}

// Add defines the flags.
func (f *Flags) Add(fs *pflag.FlagSet) {
	fs.SortFlags = false
	fs.StringVar(&f.levels, "log_output_level", "default:info", "lowest level of the log: debug, info, warn, error, fatal or none; scope:level for a part, all:level for everything")
	fs.BoolVar(&f.JSON, "log_as_json", false, "write the log as JSON, Envoy's too")
	fs.StringArrayVar(&f.targets, "log_target", []string{"stdout"}, "where the log goes: stdout, stderr or a file; can be given again")
	fs.StringVar(&f.rotate, "log_rotate", "", "file that the log goes to as well, and that is rotated")
	fs.IntVar(&f.maxAge, "log_rotate_max_age", 30, "days until a rotated file is removed; 0 for never")
	fs.IntVar(&f.maxSize, "log_rotate_max_size", 104857600, "size at which the file is rotated: in megabytes up to 65536, in bytes above that; 0 for 100 megabytes")
	fs.IntVar(&f.maxBackups, "log_rotate_max_backups", 1000, "how many rotated files are kept; 0 for all")
	fs.StringVar(&f.stacks, "log_stacktrace_level", "default:none", "lowest level of lines that show the stack of calls; scope:level for a part")
	fs.StringVar(&f.callers, "log_caller", "", "scopes whose lines show where in the source they come from, with commas between; all for everything")
	fs.IntVar(&f.verbosity, "vklog", 0, "accepted, without effect: nothing here logs through klog")
}

// Logger opens the targets and makes the log that the flags ask for. Its first
// line names the scopes that do not exist, if there are any.
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
		log.Warn("the flags of the log name scopes that do not exist here; they are ignored", "name", strings.Join(unknown, ","))
	}
	return log, nil
}

// What peers, Envoy and the control plane can have the agent log. Each line of the
// agent concerns one proxy, so that few of a kind say it all.
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

// Report writes the error that ends the agent to a log that is not read as
// plain text of the terminal: one of JSON, which must hold nothing else, or a
// file, which tells the whole story.
func (f *Flags) Report(log *slog.Logger, err error) error {
	if err == nil || !f.JSON && slices.Equal(f.targets, []string{"stdout"}) {
		return err
	}
	log.Error("the agent ends", "err", Sentence(err))
	if f.JSON {
		return Logged{err}
	}
	return err
}

// rules reads what the flags say of scopes.
func (f *Flags) rules() (rules rules, unknown []string, err error) {
	var more []string
	if rules.levels, unknown, err = parseLevels("--log_output_level", f.levels, slog.LevelInfo); err != nil {
		return rules, nil, err
	}
	if rules.stacks, more, err = parseLevels("--log_stacktrace_level", f.stacks, levelNone); err != nil {
		return rules, nil, err
	}
	unknown = append(unknown, more...)
	rules.callers, more = parseScopes(f.callers)
	unknown = append(unknown, more...)
	slices.Sort(unknown)
	return rules, slices.Compact(unknown), nil
}

// open opens everything that the log is written to.
func (f *Flags) open() (outs writers, err error) {
	for _, target := range f.targets {
		switch target {
		case "":
			return nil, errors.New("--log_target is empty, it must be stdout, stderr or a file")
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
			return nil, fmt.Errorf("--log_rotate_%s is %d, it must be 0 or more", name, n)
		}
	}
	// What is no file, such as a directory, would be moved away.
	if info, err := os.Stat(f.rotate); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("--log_rotate is %q, it must be a file", f.rotate)
	}
	file := &lumberjack.Logger{Filename: f.rotate, MaxSize: megabytes(f.maxSize), MaxAge: f.maxAge, MaxBackups: f.maxBackups}
	if _, err := file.Write(nil); err != nil { // which opens it
		return nil, fmt.Errorf("--log_rotate: %w", err)
	}
	return append(outs, file), nil
}

// maxMegabytes is the largest size that is read as megabytes.
const maxMegabytes = 1 << 16

// megabytes reads the size of a rotated file. Istio's programs call it
// megabytes and have a default in bytes: nobody means a hundred terabytes.
func megabytes(size int) int {
	if size <= maxMegabytes {
		return size
	}
	const megabyte = 1 << 20
	return (size + megabyte - 1) / megabyte
}

// writers is written to as one. A target that fails, such as a full disk, does
// not silence the others.
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

// Sentence returns an error as one line, whatever libraries say; semicolons
// separate several errors.
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
