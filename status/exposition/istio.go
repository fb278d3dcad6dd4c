// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package exposition

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// istioPrefix is what Envoy puts in front of the names of Istio's standard metrics.
var istioPrefix = []byte("envoy_istiocustom_")

// newIstio returns a reader of Envoy's metrics in the text format in which Istio's standard metrics
// have the names and the labels that they have with Istio: Envoy puts a prefix in front of the names,
// and leaves labels empty whose value it does not know. Other metrics are unchanged.
func newIstio(src io.Reader) io.Reader { return &istio{src: src, buf: make([]byte, maxLine)} }

type istio struct {
	src  io.Reader
	err  error
	buf  []byte // read, but not changed yet: the beginning of a line
	held int
	out  []byte // changed, but not read yet, in made
	made []byte
}

// Read implements io.Reader.
func (r *istio) Read(p []byte) (int, error) {
	for len(r.out) == 0 {
		if r.err != nil {
			return 0, r.err
		}
		r.fill()
	}
	n := copy(p, r.out)
	r.out = r.out[n:]
	return n, nil
}

// fill reads more and changes the lines that are complete.
func (r *istio) fill() {
	var n int
	n, r.err = r.src.Read(r.buf[r.held:])
	r.held += n
	whole := bytes.LastIndexByte(r.buf[:r.held], '\n') + 1
	// Envoy writes no line that exceeds the buffer. The last line may lack a newline.
	if whole == 0 && r.held == len(r.buf) || errors.Is(r.err, io.EOF) {
		whole = r.held
	}
	r.made = appendIstio(r.made[:0], r.buf[:whole])
	r.out = r.made
	r.held = copy(r.buf, r.buf[whole:r.held])
}

// appendIstio appends whole lines.
func appendIstio(out, lines []byte) []byte {
	for {
		at := bytes.Index(lines, istioPrefix)
		if at < 0 {
			return append(out, lines...)
		}
		start := bytes.LastIndexByte(lines[:at], '\n') + 1
		end := len(lines)
		if i := bytes.IndexByte(lines[at:], '\n'); i >= 0 {
			end = at + i + 1
		}
		out = append(out, lines[:start]...)
		switch line := lines[start:end]; {
		case at == start:
			out = appendLabels(out, line[len(istioPrefix):])
		case lines[start] == '#':
			out = append(append(out, lines[start:at]...), lines[at+len(istioPrefix):end]...)
		default: // in a label
			out = append(out, line...)
		}
		lines = lines[end:]
	}
}

// appendLabels appends a sample, with a value for each label that has none. The namespace of a
// workload is then that of its principal, which Envoy writes before it.
func appendLabels(out, line []byte) []byte {
	var principal []byte
	for {
		quote := bytes.IndexByte(line, '"')
		end := -1
		if quote > 0 {
			end = closingQuote(line[quote:])
		}
		if end < 0 {
			return append(out, line...)
		}
		out = append(out, line[:quote+1]...)
		value := line[quote+1 : quote+end]
		name := line[:quote-1]
		if i := bytes.LastIndexAny(name, "{,"); i >= 0 {
			name = name[i+1:]
		}
		value, principal = known(name, value, principal)
		out = append(append(out, value...), '"')
		line = line[quote+end+1:]
	}
}

// known returns the value of a label, and the principal of the labels so far.
func known(name, value, principal []byte) (_, _ []byte) {
	switch {
	case bytes.HasSuffix(name, []byte("_principal")):
		principal = value
	case len(value) == 0 && bytes.HasSuffix(name, []byte("_workload_namespace")):
		value = namespaceOf(principal)
	}
	if len(value) == 0 || string(value) == "-" {
		value = otherwise(name, value)
	}
	return value, principal
}

// The fields of a MetricFamily.
const (
	familyName   = 1
	familyMetric = 4
)

// startsIstioFamily reports whether a family in protobuf, of which only the beginning is read, is one
// of Istio's standard metrics. Envoy writes the name first.
func startsIstioFamily(in *bufio.Reader) bool {
	beginning, _ := in.Peek(4 + len(istioPrefix)) // a shorter family is another one
	return bytes.Contains(beginning, istioPrefix)
}

// istioFamily returns a family in protobuf with the name and the labels that it has with Istio. It
// decodes one metric at a time.
func istioFamily(family []byte) (out []byte, err error) {
	out = make([]byte, 0, len(family))
	for len(family) > 0 {
		number, kind, size := protowire.ConsumeField(family)
		if size < 0 {
			return nil, fmt.Errorf("one of its families cannot be read: %w", protowire.ParseError(size))
		}
		field := family[:size]
		family = family[size:]
		if kind != protowire.BytesType || number != familyName && number != familyMetric {
			out = append(out, field...)
			continue
		}
		_, _, tag := protowire.ConsumeTag(field)
		content, _ := protowire.ConsumeBytes(field[tag:])
		if number == familyName {
			content = bytes.TrimPrefix(content, istioPrefix)
		} else if content, err = istioMetric(content); err != nil {
			return nil, err
		}
		out = protowire.AppendBytes(protowire.AppendTag(out, number, kind), content)
	}
	return out, nil
}

func istioMetric(content []byte) ([]byte, error) {
	var metric dto.Metric
	if err := proto.Unmarshal(content, &metric); err != nil {
		return nil, fmt.Errorf("one of its metrics cannot be read: %w", err)
	}
	var value, principal []byte
	for _, l := range metric.GetLabel() {
		value, principal = known([]byte(l.GetName()), []byte(l.GetValue()), principal)
		l.Value = proto.String(string(value))
	}
	return proto.Marshal(&metric)
}

// namespaceOf returns the namespace in an identity of the mesh, or nothing:
// spiffe://<trust domain>/ns/<namespace>/sa/<service account>.
func namespaceOf(principal []byte) []byte {
	rest, ok := bytes.CutPrefix(principal, []byte("spiffe://"))
	_, rest, domain := bytes.Cut(rest, []byte("/ns/"))
	namespace, account, found := bytes.Cut(rest, []byte("/sa/"))
	if !ok || !domain || !found || len(account) == 0 || bytes.IndexByte(namespace, '/') >= 0 {
		return nil
	}
	return namespace
}

// otherwise returns the value of a label that Envoy leaves empty, or writes as a hyphen.
func otherwise(label, value []byte) []byte {
	switch string(label) {
	case "response_flags", "grpc_response_status":
		return value // none
	case "request_protocol":
		return []byte("http") // ended before a filter saw it
	case "source_canonical_revision", "destination_canonical_revision":
		return []byte("latest")
	}
	return []byte("unknown")
}
