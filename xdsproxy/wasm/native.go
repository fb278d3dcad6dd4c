// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package wasm

import (
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/outrigger-mesh/outrigger/xdsproxy/wire"
)

// native is the encoding of a plugin as its own message type.
type native struct{}

func (native) get(b []byte, m member) (value, error) {
	var v value
	var j joined
	var last []byte
	err := eachField(b, func(f wire.Field) error {
		if f.Number != m.num {
			return nil
		}
		switch f.Type {
		case protowire.BytesType:
			j.add(f.Data)
			v.ok, last = true, f.Data
		case protowire.VarintType:
			v.ok, v.truth, v.number = true, f.Bits != 0, float64(f.Bits)
		}
		return nil
	})
	v.message, v.text = j.data, string(last)
	return v, err
}

func (native) set(b []byte, m member, data []byte, _ bool) ([]byte, error) {
	return replace(b, m.num, data)
}

// duration decodes a google.protobuf.Duration.
func (native) duration(v value) (time.Duration, error) {
	var seconds, nanos int64
	err := eachField(v.message, func(f wire.Field) error {
		if f.Type == protowire.VarintType {
			switch f.Number {
			case 1:
				seconds = int64(f.Bits)
			case 2:
				nanos = int64(int32(f.Bits))
			}
		}
		return nil
	})
	if seconds < 0 || nanos < 0 || seconds > math.MaxInt64/int64(time.Second)-1 {
		return 0, err
	}
	return time.Duration(seconds)*time.Second + time.Duration(nanos), err
}

func (native) pairs(b []byte, m member, prefix string) (rest []byte, taken map[string]string, left int, err error) {
	taken = map[string]string{}
	err = eachField(b, func(f wire.Field) error {
		if f.Number != m.num || f.Type != protowire.BytesType {
			left++
			rest = append(rest, f.Raw...)
			return nil
		}
		key, err := text(f.Data, wire.EntryKey)
		if err != nil {
			return err
		}
		if !strings.HasPrefix(key, prefix) {
			left++
			rest = append(rest, f.Raw...)
			return nil
		}
		data, _, err := message(f.Data, wire.EntryValue)
		if err != nil || !utf8.Valid(data) {
			return errMalformed
		}
		taken[key] = string(data)
		return nil
	})
	return rest, taken, left, err
}
