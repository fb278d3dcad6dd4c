// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xds

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
)

// MapText applies fn to each string in a serialized google.protobuf.Any and returns the result. It
// also decodes nested Anys, but leaves map keys unchanged. It returns b if fn changes nothing.
// complete is false if a message has an unknown type or is malformed; such a message is left
// unchanged.
func MapText(b []byte, fn func(string) string) (out []byte, complete bool) {
	t := textMapper{fn: fn}
	a := &anypb.Any{}
	if proto.Unmarshal(b, a) != nil {
		return b, false
	}
	if !t.any(a) {
		return b, !t.failed
	}
	out, err := proto.MarshalOptions{Deterministic: true}.Marshal(a)
	if err != nil {
		return b, false // fn returned invalid UTF-8
	}
	return out, !t.failed
}

type textMapper struct {
	fn     func(string) string
	failed bool
}

// any maps the message in an Any and reports whether it changed.
func (t *textMapper) any(a *anypb.Any) bool {
	if a.GetTypeUrl() == "" && len(a.GetValue()) == 0 {
		return false
	}
	m, err := a.UnmarshalNew()
	if err != nil {
		t.failed = true
		return false
	}
	if !t.message(m.ProtoReflect()) {
		return false
	}
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		t.failed = true
		return false
	}
	a.Value = value
	return true
}

func (t *textMapper) message(m protoreflect.Message) (changed bool) {
	if a, ok := m.Interface().(*anypb.Any); ok {
		return t.any(a)
	}
	t.failed = t.failed || len(m.GetUnknown()) > 0
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap():
			v.Map().Range(func(key protoreflect.MapKey, item protoreflect.Value) bool {
				changed = t.value(f.MapValue(), item, func(s protoreflect.Value) { v.Map().Set(key, s) }) || changed
				return true
			})
		case f.IsList():
			for i := range v.List().Len() {
				changed = t.value(f, v.List().Get(i), func(s protoreflect.Value) { v.List().Set(i, s) }) || changed
			}
		default:
			changed = t.value(f, v, func(s protoreflect.Value) { m.Set(f, s) }) || changed
		}
		return true
	})
	return changed
}

// value maps one value of a field and reports whether it changed. It calls set to replace a string.
func (t *textMapper) value(f protoreflect.FieldDescriptor, v protoreflect.Value, set func(protoreflect.Value)) bool {
	switch f.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return t.message(v.Message())
	case protoreflect.StringKind:
		old := v.String()
		if s := t.fn(old); s != old {
			set(protoreflect.ValueOfString(s))
			return true
		}
	}
	return false
}
