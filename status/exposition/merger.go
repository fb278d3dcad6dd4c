// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package exposition

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"hash/maphash"
	"io"

	dto "github.com/prometheus/client_model/go"
)

const (
	// maxLine is how long one line of metrics may be. It is all that is held
	// of a source in text.
	maxLine = 64 << 10
	// maxNames bounds what is remembered of one answer. Comments of families
	// beyond it may come twice, which parsers forgive.
	maxNames = 1 << 15
)

var (
	// ErrGone says that the scraper takes nothing more; no source is to blame.
	ErrGone = errors.New("the scraper has gone")
	// ErrTorn says that a source broke off in the middle of something that was
	// already handed on: the answer is of no use any more and must be cut.
	ErrTorn = errors.New("the answer is torn")
)

// Merger writes one answer. It is not safe for concurrent use.
type Merger struct {
	out    *bufio.Writer
	format Format
	seed   maphash.Seed
	names  map[uint64]struct{} // the families whose comments were written
	chunk  chunk               // for protobuf: text that is not translated yet
	buf    []byte
}

// NewMerger returns a Merger that writes to w in the format.
func NewMerger(w io.Writer, format Format) *Merger {
	return &Merger{out: bufio.NewWriterSize(w, maxLine), format: format, seed: maphash.MakeSeed(), names: map[uint64]struct{}{}}
}

// Copy hands on the metrics of a source that answered with the given media
// type. What was handed on before an error is whole, unless the error wraps
// ErrTorn. Of a family that an earlier source had too, only the samples are
// handed on: a second type would not be valid.
func (m *Merger) Copy(src io.Reader, contentType string) error {
	from, err := kindOf(contentType)
	if err != nil {
		return err
	}
	if from == protobuf {
		return m.copyMessages(src)
	}
	defer func() { m.chunk = chunk{lines: m.chunk.lines[:0]} }()
	if err := m.copyLines(src, from); err != nil {
		return err
	}
	return m.flushChunk()
}

// Families writes metrics that are at hand.
func (m *Merger) Families(families []*dto.MetricFamily) error {
	for _, f := range families {
		if err := m.message(f); err != nil {
			return err
		}
	}
	return nil
}

// Close ends the answer.
func (m *Merger) Close() error {
	if m.format.kind == openMetrics {
		if err := m.write([]byte("# EOF\n")); err != nil {
			return err
		}
	}
	if err := m.out.Flush(); err != nil {
		return fmt.Errorf("%w: %w", ErrGone, err)
	}
	return nil
}

func (m *Merger) write(b []byte) error {
	if _, err := m.out.Write(b); err != nil {
		return fmt.Errorf("%w: %w", ErrGone, err)
	}
	return nil
}

// copyLines reads a source in one of the two text formats.
func (m *Merger) copyLines(src io.Reader, from kind) error {
	in := bufio.NewReaderSize(src, maxLine)
	var f family
	for {
		if err := m.block(in, &f, from); err != nil {
			return err
		}
		line, err := in.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			return fmt.Errorf("a line of its metrics is longer than %d bytes", maxLine)
		case err != nil && !errors.Is(err, io.EOF):
			return fmt.Errorf("read its metrics: %w", err)
		}
		last := err != nil
		line = bytes.TrimRight(line, "\r\n")
		switch {
		case len(line) == 0:
		case line[0] == '#':
			if from == openMetrics && string(line) == "# EOF" {
				return m.begin(&f)
			}
			err = m.comment(&f, line, from)
		default:
			if f.open {
				err = m.begin(&f)
			}
			if err == nil || last {
				err = m.sample(line, from)
			}
		}
		switch {
		case last && (err == nil || errors.Is(err, io.EOF)):
			return m.begin(&f)
		case err != nil:
			return err
		}
	}
}

// block hands on the samples at the front of what has been read, as they are
// and all at once: most of what comes is as it should go out. Its first and its
// last line are looked at: a source that answers with a page of text, or ends
// with the words of an error, must not spoil the answer for the others.
func (m *Merger) block(in *bufio.Reader, f *family, from kind) error {
	if m.format.kind != from {
		return nil
	}
	b, _ := in.Peek(in.Buffered()) // there is so much
	if len(b) == 0 || b[0] == '#' {
		return nil
	}
	b = samples(b)
	// Line by line goes what not every parser takes: other ends of lines, and
	// empty lines, which OpenMetrics does not know.
	if len(b) == 0 || b[0] == '\n' || bytes.IndexByte(b, '\r') >= 0 || from == openMetrics && bytes.Contains(b, []byte("\n\n")) {
		return nil
	}
	first, _, _ := bytes.Cut(b, []byte("\n"))
	last := bytes.TrimRight(b, "\n")
	if !valid(first) || !valid(last[bytes.LastIndexByte(last, '\n')+1:]) {
		return errSample
	}
	if err := m.begin(f); err != nil {
		return err
	}
	if err := m.write(b[:len(bytes.TrimRight(b, "\n"))+1]); err != nil {
		return err
	}
	_, err := in.Discard(len(b))
	return err
}

// samples cuts text off at the first comment, or behind the last whole line.
// It looks for what is rare: ends of lines are not.
func samples(b []byte) []byte {
	for i := 0; ; i++ {
		next := bytes.IndexByte(b[i:], '#')
		if next < 0 {
			return b[:bytes.LastIndexByte(b, '\n')+1]
		}
		if i += next; i > 0 && b[i-1] == '\n' {
			return b[:i]
		}
	}
}

// comment keeps what a comment says until the first sample.
func (m *Merger) comment(f *family, line []byte, from kind) error {
	word, name, rest := comment(line)
	if word == "" {
		return nil
	}
	if f.open && !bytes.Equal(f.name, name) {
		if err := m.begin(f); err != nil {
			return err
		}
	}
	if !f.open {
		f.reset(name, from)
	}
	switch word {
	case "TYPE":
		f.kind = append(f.kind[:0], bytes.TrimSpace(rest)...)
	case "HELP":
		f.help, f.hasHelp = append(f.help[:0], rest...), true
	case "UNIT":
		f.unit = append(f.unit[:0], bytes.TrimSpace(rest)...)
	}
	return nil
}

// begin writes the comments of a family, if it is new.
func (m *Merger) begin(f *family) error {
	if !f.open {
		return nil
	}
	f.open = false
	if m.format.kind == protobuf {
		if err := m.flushChunk(); err != nil {
			return err
		}
		m.chunk.begin(f)
		return nil
	}
	key := maphash.Bytes(m.seed, f.textName())
	if _, seen := m.names[key]; seen {
		return nil
	}
	if len(m.names) < maxNames {
		m.names[key] = struct{}{}
	}
	if m.format.kind == openMetrics {
		m.buf = f.openMetrics(m.buf[:0])
	} else {
		m.buf = f.text(m.buf[:0])
	}
	return m.write(m.buf)
}

// sample writes one line with a value.
func (m *Merger) sample(line []byte, from kind) error {
	if m.format.kind == from {
		if !valid(line) {
			return errSample
		}
		if err := m.write(line); err != nil {
			return err
		}
		if err := m.out.WriteByte('\n'); err != nil {
			return fmt.Errorf("%w: %w", ErrGone, err)
		}
		return nil
	}
	s, err := splitSample(line)
	if err != nil {
		return err
	}
	switch {
	case from == text && m.format.kind == openMetrics:
		s.exemplar = nil
		s.time, err = seconds(s.time)
	case from == openMetrics:
		s.exemplar = nil
		s.time, err = milliseconds(s.time)
	}
	if err != nil {
		return err
	}
	m.buf = s.write(m.buf[:0])
	if m.format.kind != protobuf {
		return m.write(m.buf)
	}
	if m.chunk.add(m.buf, s.name) {
		return m.flushChunk()
	}
	return nil
}
