// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package exposition

import (
	"bytes"
	"errors"
	"math"
	"strconv"
)

// sample is one line with a value. Its fields are slices of the input line.
type sample struct {
	name, labels []byte // labels with their braces, or empty
	value, time  []byte // time as in the source's format, or empty
	exemplar     []byte // the text after "# ", or empty
}

var errSample = errors.New("one of its lines is not a sample: it must be a name, labels and a value")

// splitSample splits a sample without its line end. Only OpenMetrics has exemplars.
func splitSample(line []byte) (s sample, err error) {
	rest := line
	if i := bytes.IndexAny(rest, "{ \t"); i >= 0 {
		s.name, rest = rest[:i], rest[i:]
	} else {
		return s, errSample
	}
	if rest = bytes.TrimLeft(rest, " \t"); len(rest) > 0 && rest[0] == '{' {
		end := closing(rest)
		if end < 0 {
			return s, errSample
		}
		s.labels, rest = rest[:end+1], rest[end+1:]
	}
	if i := bytes.Index(rest, []byte(" # ")); i >= 0 {
		rest, s.exemplar = rest[:i], rest[i+3:]
	}
	s.value, rest = field(rest)
	s.time, rest = field(rest)
	if more, _ := field(rest); len(s.value) == 0 || len(more) > 0 {
		return s, errSample
	}
	return s, nil
}

// valid reports whether a parser accepts the line as a sample.
func valid(line []byte) bool {
	line = bytes.TrimLeft(line, " \t")
	if len(line) > 0 && line[0] == '#' {
		return true // an indented comment
	}
	s, err := splitSample(line)
	if err != nil || len(s.name) == 0 && len(s.labels) < len(`{"a"}`) { // without a name, the labels contain it
		return false
	}
	for i, c := range s.name {
		if c != '_' && c != ':' && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return number(s.value) && (len(s.time) == 0 || number(s.time))
}

// number reports whether the text is a number. Text that looks like one is accepted without
// parsing, which covers most numbers and allocates nothing.
func number(b []byte) bool {
	if bytes.ContainsAny(b, "0123456789") && len(bytes.Trim(b, "0123456789+-.eE")) == 0 {
		return true
	}
	_, err := strconv.ParseFloat(string(b), 64)
	return err == nil || errors.Is(err, strconv.ErrRange)
}

// closing returns the index of the brace that ends the labels, or -1.
func closing(b []byte) int {
	quoted := false
	for i := 1; i < len(b); i++ {
		switch {
		case quoted && b[i] == '\\':
			i++
		case b[i] == '"':
			quoted = !quoted
		case b[i] == '}' && !quoted:
			return i
		}
	}
	return -1
}

// field splits off the first word.
func field(b []byte) (word, rest []byte) {
	b = bytes.TrimLeft(b, " \t")
	if i := bytes.IndexAny(b, " \t"); i >= 0 {
		return b[:i], b[i:]
	}
	return b, nil
}

// write appends the sample in a form that is valid in both text formats.
func (s sample) write(b []byte) []byte {
	b = append(b, s.name...)
	if n := len(s.labels); n > 0 {
		inner := bytes.TrimRight(s.labels[1:n-1], " \t,") // OpenMetrics does not allow a trailing comma
		b = append(b, '{')
		b = append(b, inner...)
		b = append(b, '}')
	}
	b = append(b, ' ')
	b = append(b, s.value...)
	if len(s.time) > 0 {
		b = append(b, ' ')
		b = append(b, s.time...)
	}
	if len(s.exemplar) > 0 {
		b = append(b, " # "...)
		b = append(b, s.exemplar...)
	}
	return append(b, '\n')
}

// seconds converts a timestamp from milliseconds (text format) to seconds (OpenMetrics).
func seconds(ms []byte) ([]byte, error) {
	if len(ms) == 0 {
		return nil, nil
	}
	n, err := strconv.ParseInt(string(ms), 10, 64)
	if err != nil {
		return nil, errSample
	}
	return strconv.AppendFloat(nil, float64(n)/1000, 'f', 3, 64), nil
}

// milliseconds converts a timestamp from seconds to milliseconds.
func milliseconds(s []byte) ([]byte, error) {
	if len(s) == 0 {
		return nil, nil
	}
	t, err := strconv.ParseFloat(string(s), 64)
	if err != nil || math.Abs(t) > 1e15 || math.IsNaN(t) {
		return nil, errSample
	}
	return strconv.AppendInt(nil, int64(math.Round(t*1000)), 10), nil
}

// comment splits "# TYPE name rest". For other comments, word is empty.
func comment(line []byte) (word string, name, rest []byte) {
	first, after := field(bytes.TrimPrefix(line, []byte("#")))
	switch word = string(first); word {
	case "TYPE", "HELP", "UNIT":
	default:
		return "", nil, nil
	}
	after = bytes.TrimLeft(after, " \t")
	if len(after) > 0 && after[0] == '"' { // a quoted name
		if end := closingQuote(after); end > 0 {
			return word, after[:end+1], bytes.TrimLeft(after[end+1:], " \t")
		}
	}
	name, rest = field(after)
	return word, name, bytes.TrimLeft(rest, " \t")
}

func closingQuote(b []byte) int {
	for i := 1; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i
		}
	}
	return -1
}
