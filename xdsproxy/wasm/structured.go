// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package wasm

import (
	"fmt"
	"math"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/outrigger-mesh/outrigger/xdsproxy/wire"
)

// structured is the encoding of a plugin as a google.protobuf.Struct, which
// udpa.type.v1.TypedStruct and xds.type.v3.TypedStruct contain. The Struct is edited in place, so
// that unknown fields are preserved.
type structured struct{}

// Fields of google.protobuf.Struct and google.protobuf.Value.
const (
	structFields = 1

	valueNull   = 1
	valueNumber = 2
	valueString = 3
	valueBool   = 4
	valueStruct = 5
	valueList   = 6
)

// structEntry is one member of a Struct.
type structEntry struct {
	key  string
	data []byte // google.protobuf.Value
	raw  []byte // the complete field
}

// eachEntry calls fn for every member of a Struct, and other for its unknown fields.
func eachEntry(b []byte, fn func(structEntry) error, other func(raw []byte)) error {
	return eachField(b, func(f wire.Field) error {
		if f.Number != structFields || f.Type != protowire.BytesType {
			other(f.Raw)
			return nil
		}
		key, err := text(f.Data, wire.EntryKey)
		if err != nil {
			return err
		}
		data, _, err := message(f.Data, wire.EntryValue)
		if err != nil {
			return err
		}
		return fn(structEntry{key: key, data: data, raw: f.Raw})
	})
}

func (m member) named(key string) bool { return key == m.snake || key == m.camel }

func (structured) get(b []byte, m member) (value, error) {
	var v value
	seen := ""
	err := eachEntry(b, func(e structEntry) error {
		if !m.named(e.key) {
			return nil
		}
		if seen != "" && seen != e.key {
			return fmt.Errorf("%s and %s are both set: %w", m.snake, m.camel, errMalformed)
		}
		seen = e.key
		var err error
		v, err = openValue(e.data) // the last of duplicate keys wins, as in a map
		return err
	}, func([]byte) {})
	return v, err
}

// openValue decodes a Value. A JSON null means no value.
func openValue(b []byte) (value, error) {
	var v value
	var j joined
	err := eachField(b, func(f wire.Field) error {
		switch {
		case f.Number == valueNull && f.Type == protowire.VarintType:
			v = value{}
		case f.Number == valueNumber && f.Type == protowire.Fixed64Type:
			v = value{ok: true, number: math.Float64frombits(f.Bits)}
		case f.Number == valueString && f.Type == protowire.BytesType:
			v = value{ok: true, text: string(f.Data)}
		case f.Number == valueBool && f.Type == protowire.VarintType:
			v = value{ok: true, truth: f.Bits != 0}
		case f.Number == valueStruct && f.Type == protowire.BytesType:
			j.add(f.Data)
			v = value{ok: true, message: j.data}
			return nil
		case f.Number == valueList:
			v = value{ok: true}
		}
		j = joined{} // replaced by a value of another kind
		return nil
	})
	return v, err
}

func (structured) set(b []byte, m member, data []byte, text bool) ([]byte, error) {
	out := make([]byte, 0, len(b)+len(data)+16)
	key := m.snake
	err := eachEntry(b, func(e structEntry) error {
		if m.named(e.key) {
			key = e.key // keep the name that the author used
		} else {
			out = append(out, e.raw...)
		}
		return nil
	}, func(raw []byte) { out = append(out, raw...) })
	if err != nil || data == nil {
		return out, err
	}
	kind := protowire.Number(valueStruct)
	if text {
		kind = valueString
	}
	entry := wire.Append(nil, wire.EntryKey, key)
	entry = wire.Append(entry, wire.EntryValue, wire.Append(nil, kind, data))
	return wire.Append(out, structFields, entry), nil
}

// duration parses the JSON form of a Duration: decimal seconds followed by "s".
func (structured) duration(v value) (time.Duration, error) {
	if !v.ok {
		return 0, nil
	}
	seconds, ok := strings.CutSuffix(v.text, "s")
	if !ok || strings.Trim(seconds, "0123456789.") != "" {
		return 0, fmt.Errorf("timeout %q is not a duration such as 30s", v.text)
	}
	d, err := time.ParseDuration(v.text)
	if err != nil {
		return 0, fmt.Errorf("timeout %q is not a duration such as 30s", v.text)
	}
	return d, nil
}

func (enc structured) pairs(b []byte, m member, prefix string) (rest []byte, taken map[string]string, left int, err error) {
	taken = map[string]string{}
	all, err := enc.get(b, m)
	if err != nil {
		return nil, nil, 0, err
	}
	kept := []byte{}
	err = eachEntry(all.message, func(e structEntry) error {
		if !strings.HasPrefix(e.key, prefix) {
			kept = append(kept, e.raw...)
			left++
			return nil
		}
		v, err := openValue(e.data)
		taken[e.key] = v.text
		return err
	}, func(raw []byte) { kept = append(kept, raw...) })
	if err != nil {
		return nil, nil, 0, err
	}
	if left == 0 {
		kept = nil // omit an empty map
	}
	if rest, err = enc.set(b, m, kept, false); err != nil {
		return nil, nil, 0, err
	}
	err = eachEntry(rest, func(e structEntry) error {
		if !m.named(e.key) {
			left++ // host_env_keys
		}
		return nil
	}, func([]byte) {})
	return rest, taken, left, err
}
