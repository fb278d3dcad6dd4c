// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package wire

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// pieces splits bytes into buffers of the given size, after an empty one.
func pieces(b []byte, size int) mem.BufferSlice {
	out := mem.BufferSlice{mem.SliceBuffer(nil)}
	for chunk := range slices.Chunk(b, size) {
		out = append(out, mem.SliceBuffer(chunk))
	}
	return out
}

// read returns the fields that a cursor finds.
func read(c Cursor) (fields []string, ok bool) {
	ok = c.Each(func(n protowire.Number, v Cursor) {
		fields = append(fields, fmt.Sprintf("%d %d %s", n, v.Len(), v.Bytes(v.Len())))
	})
	return fields, ok
}

func TestCursor(t *testing.T) {
	t.Parallel()
	b := Append(nil, 1, "first")
	b = AppendVarint(b, 2, 1<<40)
	b = protowire.AppendFixed32(protowire.AppendTag(b, 3, protowire.Fixed32Type), 9)
	b = protowire.AppendFixed64(protowire.AppendTag(b, 4, protowire.Fixed64Type), 9)
	b = Append(b, 5, "")
	b = Append(b, 300, []byte(strings.Repeat("x", 200)))
	want := []string{"1 5 first", "5 0 ", "300 200 " + strings.Repeat("x", 200)}
	if got, ok := read(CursorOf(b)); !ok || !slices.Equal(got, want) {
		t.Errorf("in one piece: %q, %t", got, ok)
	}
	for size := 1; size <= len(b); size++ {
		if got, ok := read(NewCursor(pieces(b, size))); !ok || !slices.Equal(got, want) {
			t.Errorf("in pieces of %d: %q, %t", size, got, ok)
		}
	}
	for n := range len(b) {
		got, ok := read(NewCursor(pieces(b[:n], 3)))
		if err := Each(b[:n], errTest, func(Field) error { return nil }); ok != (err == nil) || len(got) > len(want) {
			t.Errorf("the first %d bytes: %q, %t; Each returns %v", n, got, ok, err)
		}
	}
}

func TestCursorText(t *testing.T) {
	t.Parallel()
	for _, size := range []int{1, 3, 100} {
		c := NewCursor(pieces([]byte("abcdefgh"), size))
		if s, whole := c.Text(8); s != "abcdefgh" || !whole {
			t.Errorf("%q, %t", s, whole)
		}
		if s, whole := c.Text(7); s != "abcdefg" || whole {
			t.Errorf("%q, %t", s, whole)
		}
	}
}

// TestCursorGroups checks that a million groups are skipped in linear time, and that fields in
// groups are ignored.
func TestCursorGroups(t *testing.T) {
	t.Parallel()
	group := protowire.AppendTag(nil, 100, protowire.StartGroupType)
	group = protowire.AppendTag(Append(group, 4, "inner"), 100, protowire.EndGroupType)
	b := append(Append(nil, 4, "outer"), bytes.Repeat(group, 1<<20)...)
	if got, ok := read(NewCursor(pieces(b, 16<<10))); !ok || !slices.Equal(got, []string{"4 5 outer"}) {
		t.Errorf("read %.100q, %t", got, ok)
	}
	for name, bad := range map[string][]byte{
		"no end":        protowire.AppendTag(nil, 100, protowire.StartGroupType),
		"no begin":      protowire.AppendTag(nil, 100, protowire.EndGroupType),
		"end of others": protowire.AppendTag(protowire.AppendTag(nil, 100, protowire.StartGroupType), 101, protowire.EndGroupType),
		"too deep":      bytes.Repeat(protowire.AppendTag(nil, 100, protowire.StartGroupType), maxGroups+1),
	} {
		if _, ok := read(CursorOf(bad)); ok {
			t.Errorf("%s: it was accepted as a message", name)
		}
	}
}
