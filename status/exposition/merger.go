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
	// maxLine is the maximum length of a line of metrics. It is also the size of the buffer for a
	// source in text format.
	maxLine = 64 << 10
	// maxNames is the maximum number of families that are tracked per response. Comments of further
	// families may be repeated, which parsers tolerate.
	maxNames = 1 << 15
)

var (
	// ErrGone means that the scraper has closed the connection; the sources are not the cause.
	ErrGone = errors.New("the scraper has disconnected")
	// ErrTorn means that a source failed in the middle of data that had already been written. The
	// response is unusable and must be aborted.
	ErrTorn = errors.New("the response is incomplete")
)

// Merger writes one response. It is not safe for concurrent use.
type Merger struct {
	out    *bufio.Writer
	format Format
	seed   maphash.Seed
	names  map[uint64]struct{} // families whose comments have been written
	chunk  chunk               // for protobuf: text that has not been converted yet
	istio  bool                // the source is Envoy
	buf    []byte
}

// NewMerger returns a Merger that writes to w in the format.
func NewMerger(w io.Writer, format Format) *Merger {
	return &Merger{out: bufio.NewWriterSize(w, maxLine), format: format, seed: maphash.MakeSeed(), names: map[uint64]struct{}{}}
}

// Copy copies the metrics of a source whose response has the given media type. If it returns an
// error, everything written so far is complete, unless the error wraps ErrTorn. If an earlier
// source had the same family, only its samples are copied, because a second type would be invalid.
func (m *Merger) Copy(src io.Reader, contentType string) error {
	from, err := kindOf(contentType)
	if err != nil {
		return err
	}
	if from == protobuf {
		return m.copyMessages(src)
	}
	if m.istio {
		src = newIstio(src)
	}
	defer func() { m.chunk = chunk{lines: m.chunk.lines[:0]} }()
	if err := m.copyLines(src, from); err != nil {
		return err
	}
	return m.flushChunk()
}

// CopyEnvoy is Copy for Envoy, whose metrics contain Istio's standard metrics under other names and
// without some labels. The copies have the names and labels that they have with Istio.
func (m *Merger) CopyEnvoy(src io.Reader, contentType string) error {
	m.istio = true
	defer func() { m.istio = false }()
	return m.Copy(src, contentType)
}

// Families writes the given metrics.
func (m *Merger) Families(families []*dto.MetricFamily) error {
	for _, f := range families {
		if err := m.message(f); err != nil {
			return err
		}
	}
	return nil
}

// Close completes the response.
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

// copyLines copies a source in one of the two text formats.
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

// block copies the samples at the front of the buffer at once and unchanged: most input needs no
// conversion. It validates the first and the last line, so that a source that responds with a text
// page, or ends with an error message, does not corrupt the response of the other sources.
func (m *Merger) block(in *bufio.Reader, f *family, from kind) error {
	if m.format.kind != from {
		return nil
	}
	b, _ := in.Peek(in.Buffered()) // returns what is buffered
	if len(b) == 0 || b[0] == '#' {
		return nil
	}
	b = samples(b)
	// Input that some parsers reject is processed line by line: other line ends, and empty lines,
	// which OpenMetrics does not allow.
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

// samples returns the text up to the first comment, or up to the end of the last complete line. It
// searches for rare characters: line ends are frequent.
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

// comment stores a comment until the first sample.
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
