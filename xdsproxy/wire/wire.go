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
		if tag < 0 {
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
