// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package wasm

import (
	"errors"
	"slices"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/outrigger-mesh/outrigger/xdsproxy/wire"
)

// errMalformed is the error for bytes that are not a valid message.
var errMalformed = errors.New("the bytes are not such a protobuf message")

// eachField calls fn for every field of a message, in order.
func eachField(b []byte, fn func(wire.Field) error) error { return wire.Each(b, errMalformed, fn) }

// message returns the embedded message with number num. Several occurrences are merged by
// concatenation, as protobuf defines.
func message(b []byte, num protowire.Number) (sub []byte, ok bool, err error) {
	var j joined
	err = eachField(b, func(f wire.Field) error {
		if f.Number == num && f.Type == protowire.BytesType {
			j.add(f.Data)
			ok = true
		}
		return nil
	})
	return j.data, ok, err
}

// joined accumulates occurrences of a message. It copies only if there are several.
type joined struct {
	data   []byte
	copied bool
}

func (j *joined) add(b []byte) {
	switch {
	case j.data == nil:
		j.data = b
	case !j.copied:
		j.data = append(slices.Clone(j.data), b...)
		j.copied = true
	default:
		j.data = append(j.data, b...)
	}
}

// text returns the string field num; the last occurrence wins.
func text(b []byte, num protowire.Number) (string, error) {
	var last []byte
	err := eachField(b, func(f wire.Field) error {
		if f.Number == num && f.Type == protowire.BytesType {
			last = f.Data
		}
		return nil
	})
	if err == nil && !utf8.Valid(last) {
		err = errMalformed
	}
	return string(last), err
}

// replace returns the message with sub as its only embedded message num, at the position of the
// first one. It preserves all other fields. A nil sub removes the field.
func replace(b []byte, num protowire.Number, sub []byte) ([]byte, error) {
	out := make([]byte, 0, len(b)+len(sub)+8)
	done := sub == nil
	err := eachField(b, func(f wire.Field) error {
		switch {
		case f.Number != num || f.Type != protowire.BytesType:
			out = append(out, f.Raw...)
		case !done:
			out = wire.Append(out, num, sub)
			done = true
		}
		return nil
	})
	if !done {
		out = wire.Append(out, num, sub)
	}
	return out, err
}

// openAny returns the type name of an Any, without the part before the slash, and its value.
func openAny(b []byte) (typeName string, value []byte, err error) {
	url, err := text(b, wire.AnyTypeURL)
	if err != nil {
		return "", nil, err
	}
	value, _, err = message(b, wire.AnyValue)
	return messageName(url), value, err
}

// messageName returns the message name of a type URL.
func messageName(url string) string { return url[strings.LastIndexByte(url, '/')+1:] }

// newAny returns an Any with a type and a value.
func newAny(typeName string, value []byte) []byte {
	b := wire.Append(nil, wire.AnyTypeURL, "type.googleapis.com/"+typeName)
	if len(value) > 0 {
		b = wire.Append(b, wire.AnyValue, value)
	}
	return b
}
