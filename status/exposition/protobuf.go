// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package exposition

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/proto"
)

const (
	// maxMessage is the maximum size of a family that must be decoded, which takes a multiple of
	// its size. It applies to sources that respond in protobuf although it was not requested.
	maxMessage = 4 << 20
	// maxIstio is the maximum size of one of Istio's standard metrics in protobuf: they have many
	// labels, and only one metric is decoded at a time.
	maxIstio = 16 << 20
	// maxWhole is the maximum size of a message that is buffered completely before it is written,
	// so that a truncated message causes no harm. Larger messages are streamed.
	maxWhole = 1 << 20
	// maxPassed is the maximum size of any message.
	maxPassed = 1 << 30

	// chunkSize is the amount of text of one family that is converted at a time. A histogram is not
	// split within one set of labels, up to maxChunk.
	chunkSize = 64 << 10
	maxChunk  = 1 << 20
)

// copyMessages copies a source in protobuf.
func (m *Merger) copyMessages(src io.Reader) error {
	in := bufio.NewReaderSize(src, maxLine)
	for {
		size, err := binary.ReadUvarint(in)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("read its metrics: %w", err)
		}
		istio := m.istio && startsIstioFamily(in)
		decode := m.format.kind != protobuf || istio
		most := uint64(maxPassed)
		switch {
		case istio && m.format.kind == protobuf:
			most = maxIstio
		case decode:
			most = maxMessage
		}
		if size > most {
			return fmt.Errorf("a family of its metrics has %d bytes, which is too large", size)
		}
		if size > maxWhole && !decode {
			if err := m.pass(in, size); err != nil {
				return err
			}
			continue
		}
		m.buf = slices.Grow(m.buf[:0], int(size))[:size]
		if _, err := io.ReadFull(in, m.buf); err != nil {
			return fmt.Errorf("read its metrics: %w", err)
		}
		message := m.buf
		if istio {
			if message, err = istioFamily(m.buf); err != nil {
				return err
			}
		}
		if m.format.kind == protobuf {
			err = m.pass(bytes.NewReader(message), uint64(len(message)))
		} else {
			family := &dto.MetricFamily{}
			if err := proto.Unmarshal(message, family); err != nil {
				return fmt.Errorf("one of its families cannot be read: %w", err)
			}
			err = m.message(family)
		}
		if err != nil {
			return err
		}
	}
}

// pass copies one message unchanged.
func (m *Merger) pass(src io.Reader, size uint64) error {
	if err := m.write(binary.AppendUvarint(nil, size)); err != nil {
		return err
	}
	n, err := io.CopyN(struct{ io.Writer }{m.out}, src, int64(size)) // hide ReadFrom, which would report an error of src as an error of out
	switch {
	case err == nil:
		return nil
	case m.out.Flush() != nil:
		return fmt.Errorf("%w: %w", ErrGone, err)
	}
	return fmt.Errorf("%w: a family broke off after %d of %d bytes: %w", ErrTorn, n, size, err)
}

// message writes one decoded family.
func (m *Merger) message(f *dto.MetricFamily) error {
	if m.format.kind == protobuf {
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(f)
		if err != nil {
			return fmt.Errorf("write a family in protobuf: %w", err)
		}
		return m.pass(bytes.NewReader(b), uint64(len(b)))
	}
	if len(f.GetMetric()) == 0 {
		return nil
	}
	var b bytes.Buffer
	var err error
	if m.format.kind == openMetrics {
		_, err = expfmt.MetricFamilyToOpenMetrics(&b, f)
	} else {
		_, err = expfmt.MetricFamilyToText(&b, f)
	}
	if err != nil {
		return fmt.Errorf("write a family as text: %w", err)
	}
	return m.copyLines(&b, m.format.kind)
}

// chunk is the text of one family, or of several without comments, to be converted to protobuf.
type chunk struct {
	header []byte // the comments, which are repeated in each part
	groups bool   // several lines form one metric
	lines  []byte
}

func (c *chunk) begin(f *family) {
	kind := f.textKind()
	c.header, c.groups = f.text(c.header[:0]), kind == "histogram" || kind == "summary"
}

// add appends a line and reports whether the chunk should be converted now.
func (c *chunk) add(line, name []byte) (full bool) {
	c.lines = append(c.lines, line...)
	size := len(c.lines)
	return size > maxChunk || size > chunkSize && (!c.groups || bytes.HasSuffix(name, []byte("_count")))
}

// flushChunk converts the collected text.
func (m *Merger) flushChunk() error {
	if len(m.chunk.lines) == 0 {
		m.chunk.header = m.chunk.header[:0]
		return nil
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(io.MultiReader(bytes.NewReader(m.chunk.header), bytes.NewReader(m.chunk.lines)))
	m.chunk.lines = m.chunk.lines[:0]
	if err != nil {
		return fmt.Errorf("its metrics cannot be read as text: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(families)) {
		if _, err := protodelim.MarshalTo(m.out, families[name]); err != nil {
			return fmt.Errorf("%w: %w", ErrGone, err)
		}
	}
	return nil
}
