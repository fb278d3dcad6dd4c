// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package wire

import "google.golang.org/protobuf/encoding/protowire"

// Field is one field as it is in a message. The slices are parts of the
// message.
type Field struct {
	Number protowire.Number
	Type   protowire.Type
	Raw    []byte // tag and value
	Data   []byte // the content, of a length-delimited field
	Bits   uint64 // the value, of a varint or fixed64 field
}

// Each calls fn for every field of a message, in order, until it returns an
// error. malformed is what bytes that are no message give.
func Each(b []byte, malformed error, fn func(Field) error) error {
	for len(b) > 0 {
		num, typ, tag := protowire.ConsumeTag(b)
		if tag < 0 || num > protowire.MaxValidNumber {
			return malformed
		}
		size := protowire.ConsumeFieldValue(num, typ, b[tag:])
		if size < 0 {
			return malformed
		}
		f := Field{Number: num, Type: typ, Raw: b[:tag+size]}
		switch typ {
		case protowire.BytesType:
			f.Data, _ = protowire.ConsumeBytes(b[tag:]) // its size is known to be right, as are the next ones
		case protowire.VarintType:
			f.Bits, _ = protowire.ConsumeVarint(b[tag:])
		case protowire.Fixed64Type:
			f.Bits, _ = protowire.ConsumeFixed64(b[tag:])
		}
		if err := fn(f); err != nil {
			return err
		}
		b = b[tag+size:]
	}
	return nil
}

// EachBytes is Each for the length-delimited fields only.
func EachBytes(b []byte, malformed error, fn func(protowire.Number, []byte) error) error {
	return Each(b, malformed, func(f Field) error {
		if f.Type != protowire.BytesType {
			return nil
		}
		return fn(f.Number, f.Data)
	})
}

// Append appends a length-delimited field.
func Append[T ~string | ~[]byte](b []byte, n protowire.Number, v T) []byte {
	b = protowire.AppendVarint(protowire.AppendTag(b, n, protowire.BytesType), uint64(len(v)))
	return append(b, v...)
}

// AppendVarint appends a field that is a number.
func AppendVarint(b []byte, n protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, n, protowire.VarintType), v)
}
