// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package wire

import (
	"bytes"
	"errors"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
)

var errTest = errors.New("no message")

func TestEach(t *testing.T) {
	t.Parallel()
	var b []byte
	b = protowire.AppendVarint(protowire.AppendTag(b, 1, protowire.VarintType), 300)
	b = protowire.AppendFixed64(protowire.AppendTag(b, 2, protowire.Fixed64Type), 7)
	b = protowire.AppendFixed32(protowire.AppendTag(b, 3, protowire.Fixed32Type), 9)
	b = protowire.AppendString(protowire.AppendTag(b, 4, protowire.BytesType), "text")
	var raw []byte
	var fields []Field
	if err := Each(b, errTest, func(f Field) error {
		raw, fields = append(raw, f.Raw...), append(fields, f)
		return nil
	}); err != nil || !bytes.Equal(raw, b) || len(fields) != 4 {
		t.Fatalf("%v, %d fields", err, len(fields))
	}
	if fields[0].Bits != 300 || fields[1].Bits != 7 || string(fields[3].Data) != "text" {
		t.Errorf("%+v", fields)
	}
	var numbers []protowire.Number
	if err := EachBytes(b, errTest, func(n protowire.Number, _ []byte) error {
		numbers = append(numbers, n)
		return nil
	}); err != nil || len(numbers) != 1 || numbers[0] != 4 {
		t.Errorf("%v, %v", numbers, err)
	}
	for n := 1; n < len(b); n++ {
		err := Each(b[:n], errTest, func(Field) error { return nil })
		if whole := n == 3 || n == 12 || n == 17; (err == nil) != whole || !whole && !errors.Is(err, errTest) {
			t.Errorf("%d bytes of it: %v", n, err)
		}
	}
	stop := errors.New("stop")
	if err := EachBytes(b, errTest, func(protowire.Number, []byte) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("stopped: %v", err)
	}
}
