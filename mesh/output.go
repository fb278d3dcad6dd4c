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
	maxLine    = 16 << 10 // bytes; a longer line is cut into several
	maxLogFile = 16 << 20 // bytes; then the file becomes the .1 file
	keptLines  = 20       // the last lines, shown when a start fails
)

// output takes what one part says: every line goes to the part's log file,
// and the lines that a person should see to show.
type output struct {
	path string
	// quiet leaves out lines of a level below warning.
	quiet bool
	// muted is true from the begin of the end: what agents and Envoys say of
	// their own end is no news.
	muted atomic.Bool
	show  func(level level, text string)
	// translate, when not nil, gives lines that are for the user, however
	// quiet, a form for the user.
	translate func(line string) (level level, text string, ok bool)

	mu      sync.Mutex // guards what follows
	partial []byte
	last    []string // of this life, the newest at the end
	file    *os.File
	written int64
}

// level is the level of a log line.
type level int

const (
	levelNone level = iota // the line names none
	levelInfo
	levelWarning
	levelError
)

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

// begin forgets the lines of the life before.
func (o *output) begin() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last = nil
}

// Write takes a piece of output, in whatever pieces it comes.
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

// flush ends a line that has no line end.
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

// log writes to the log file. A full disk stops the log, nothing else.
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

// lastLines returns the end of this life's output, for a message.
func (o *output) lastLines() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var b strings.Builder
	for _, l := range o.last {
		b.WriteString("\n    | " + l)
	}
	return b.String()
}

// reason returns the last error of this life. Without one, a process that ended
// by itself had the last word if that is no log line of a lower level.
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

// classify reads the level of a line of an agent, an Envoy or a control
// plane, and returns the line without time and level.
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
