// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package wire

import (
	"encoding/binary"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// maxGroups is how deep groups are nested at most, as with Envoy.
const maxGroups = 100

// Cursor reads a message, or a field of one, that lies in several buffers. A
// copy of it reads on independently.
type Cursor struct {
	buffers mem.BufferSlice // after current
	current []byte
	left    int // bytes to the part's end
}

// NewCursor returns a cursor at the start of a message. It keeps data.
func NewCursor(data mem.BufferSlice) Cursor { return Cursor{buffers: data, left: data.Len()} }

// CursorOf returns a cursor at the start of a message in one piece.
func CursorOf(message []byte) Cursor { return Cursor{current: message, left: len(message)} }

// Len returns how many bytes are left.
func (c Cursor) Len() int { return c.left }

// chunk is what can be read at once; it is not empty while something is left.
func (c *Cursor) chunk() []byte {
	for len(c.current) == 0 && len(c.buffers) > 0 {
		c.current, c.buffers = c.buffers[0].ReadOnlyData(), c.buffers[1:]
	}
	return c.current[:min(len(c.current), c.left)]
}

func (c *Cursor) skip(n int) bool {
	if n < 0 || n > c.left {
		return false
	}
	for n > 0 {
		step := min(n, len(c.chunk()))
		c.current = c.current[step:]
		c.left -= step
		n -= step
	}
	return true
}

// Bytes returns a copy of up to limit bytes of what is left.
func (c Cursor) Bytes(limit int) []byte {
	b := make([]byte, 0, min(c.left, limit))
	for len(b) < cap(b) {
		chunk := c.chunk()
		chunk = chunk[:min(len(chunk), cap(b)-len(b))]
		b = append(b, chunk...)
		c.skip(len(chunk))
	}
	return b
}

func (c *Cursor) varint() (uint64, bool) {
	v, n := protowire.ConsumeVarint(c.chunk())
	if n < 0 { // it may end in the next buffer
		if v, n = protowire.ConsumeVarint(c.Bytes(binary.MaxVarintLen64)); n < 0 {
			return 0, false
		}
	}
	return v, c.skip(n)
}

// Each calls fn for every length-delimited field, in order, and reports whether
// the bytes are a message. It calls fn for the fields before the first
// malformed byte, too. It skips groups and what is in them.
func (c Cursor) Each(fn func(protowire.Number, Cursor)) bool {
	var groups []protowire.Number // that are open
	for c.left > 0 {
		tag, ok := c.varint()
		num, typ := protowire.DecodeTag(tag)
		if !ok || num < protowire.MinValidNumber {
			return false
		}
		switch typ {
		case protowire.VarintType:
			_, ok = c.varint()
		case protowire.Fixed32Type:
			ok = c.skip(4)
		case protowire.Fixed64Type:
			ok = c.skip(8)
		case protowire.BytesType:
			var n uint64
			if n, ok = c.varint(); !ok || n > uint64(c.left) {
				return false
			}
			field := c
			field.left = int(n)
			if len(groups) == 0 {
				fn(num, field)
			}
			c.skip(int(n))
		case protowire.StartGroupType:
			groups = append(groups, num)
			ok = len(groups) <= maxGroups
		case protowire.EndGroupType:
			last := len(groups) - 1
			if ok = last >= 0 && groups[last] == num; ok {
				groups = groups[:last]
			}
		default:
			ok = false
		}
		if !ok {
			return false
		}
	}
	return len(groups) == 0
}

// Text returns the content as a string. Of one that is longer than limit it
// returns the first limit bytes and false.
func (c Cursor) Text(limit int) (string, bool) {
	if chunk := c.chunk(); len(chunk) == c.left {
		return string(chunk[:min(c.left, limit)]), c.left <= limit
	}
	return string(c.Bytes(limit)), c.left <= limit
}
