// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mesh

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
)

const (
	maxLine    = 16 << 10 // bytes; a longer line is split
	maxLogFile = 16 << 20 // bytes; then the file is rotated to .1
	keptLines  = 20       // number of last lines shown when a start fails
)

// output processes the output of one part. All lines are written to the part's log file; lines that
// concern the user are also shown.
type output struct {
	path string
	// quiet hides lines of a level below warning.
	quiet bool
	// muted is true during shutdown: what agents and Envoys report about their own shutdown is not
	// shown.
	muted atomic.Bool
	show  func(level level, text string)
	// translate rewrites lines that concern the user, even if quiet is set. Optional.
	translate func(line string) (level level, text string, ok bool)

	mu      sync.Mutex // guards the fields below
	partial []byte
	last    []string // since the last start, the newest at the end
	file    *os.File
	written int64
}

// level is the level of a log line.
type level int

const (
	levelNone level = iota // the line has no level
	levelInfo
	levelWarning
	levelError
)

// logSuffix ends the names of log files.
const logSuffix = ".log"

// logName returns the name of the log file of a part with a label.
func logName(label string) string { return strings.ReplaceAll(label, " ", "-") + logSuffix }

func newOutput(path string) (*output, error) {
	if err := os.MkdirAll(filepath.Dir(path), stateDirMode); err != nil {
		return nil, fmt.Errorf("make the directory of logs: %w", err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, fileMode)
	if err != nil {
		return nil, fmt.Errorf("open a log file: %w", err)
	}
	return &output{path: path, file: f}, nil
}

// begin discards the lines of the previous run.
func (o *output) begin() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last = nil
}

// Write processes output in chunks of any size.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.partial = append(o.partial, p...)
	for {
		i := bytes.IndexByte(o.partial[:min(len(o.partial), maxLine)], '\n')
		if i < 0 && len(o.partial) < maxLine {
			return len(p), nil
		}
		if i < 0 {
			i = maxLine - 1
		}
		o.line(string(bytes.TrimRight(o.partial[:i+1], "\r\n")))
		o.partial = append(o.partial[:0], o.partial[i+1:]...)
	}
}

// flush completes a line without a line end.
func (o *output) flush() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.partial) > 0 {
		o.line(string(o.partial))
		o.partial = nil
	}
}

func (o *output) line(text string) {
	o.last = append(o.last, text)
	if len(o.last) > keptLines {
		o.last = o.last[1:]
	}
	o.log(text)
	l, short := classify(text)
	if o.translate != nil {
		if l, text, ok := o.translate(text); ok {
			o.show(l, text)
			return
		}
	}
	switch {
	case o.quiet && o.muted.Load():
	case !o.quiet:
		o.show(l, text)
	case l != levelInfo:
		o.show(l, short)
	}
}

// log writes to the log file. If the disk is full, only logging stops.
func (o *output) log(text string) {
	if o.file == nil {
		return
	}
	n, err := o.file.WriteString(text + "\n")
	o.written += int64(n)
	if err != nil || o.written < maxLogFile {
		return
	}
	_ = o.file.Close()
	o.file, o.written = nil, 0
	if err := os.Rename(o.path, o.path+".1"); err == nil {
		o.file, _ = os.OpenFile(o.path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, fileMode)
	}
}

func (o *output) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.file != nil {
		_ = o.file.Close() // nothing depends on the log
		o.file = nil
	}
}

// lastLines returns the end of the output since the last start, for a message.
func (o *output) lastLines() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var b strings.Builder
	for _, l := range o.last {
		b.WriteString("\n    | " + l)
	}
	return b.String()
}

// reason returns the last error since the last start. Without one, it returns the last line of a
// process that exited by itself, unless that is a log line of a lower level.
func (o *output) reason(e exit) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	reason := ""
	for i, text := range o.last {
		l, short := classify(text)
		if l == levelError || (l == levelNone && i == len(o.last)-1 && reason == "" && e.signal == 0) {
			reason = short
		}
	}
	return strings.TrimPrefix(reason, "outrigger-agent: ")
}

var (
	slogText  = regexp.MustCompile(`^time=\S+ level=([A-Z]+)\S* `)
	slogJSON  = regexp.MustCompile(`^\{"time":"[^"]*","level":"([A-Z]+)[^"]*",`)
	istioLine = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\S+\t([a-z]+)\t`)
	envoyLine = regexp.MustCompile(`^\[[^\]]*\]\[\d+\]\[([a-z]+)\](?:\[[^\]]*\])? ?`)
)

// classify returns the level of a log line of an agent, an Envoy or a control plane, and the line
// without time and level.
func classify(line string) (level, string) {
	if m := slogText.FindStringSubmatch(line); m != nil {
		return levelOf(m[1]), strings.TrimPrefix(line, m[0])
	}
	if m := slogJSON.FindStringSubmatch(line); m != nil {
		return levelOf(m[1]), "{" + strings.TrimPrefix(line, m[0])
	}
	if m := istioLine.FindStringSubmatch(line); m != nil {
		return levelOf(strings.ToUpper(m[1])), strings.ReplaceAll(strings.TrimPrefix(line, m[0]), "\t", " ")
	}
	if m := envoyLine.FindStringSubmatch(line); m != nil {
		return levelOf(strings.ToUpper(m[1])), "Envoy: " + strings.TrimPrefix(line, m[0])
	}
	return levelNone, line
}

func levelOf(name string) level {
	switch name {
	case "WARN", "WARNING":
		return levelWarning
	case "ERROR", "CRITICAL", "FATAL":
		return levelError
	}
	return levelInfo
}
