// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inject

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// enum is the value of an enum. Templates write it, or its field String.
type enum struct{ String string }

// Format implements fmt.Formatter.
func (e enum) Format(s fmt.State, _ rune) { _, _ = fmt.Fprint(s, e.String) }

// viewOf returns a message as templates see it: each field by the name of its Go field and by that
// of its Go getter. An unset message is an empty map.
func viewOf(m protoreflect.Message) map[string]any {
	out := map[string]any{}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		if field.ContainingOneof() != nil && !m.Has(field) {
			continue
		}
		name := goName(string(field.Name()))
		value := viewOfField(m, field)
		out[name], out["Get"+name] = value, value
	}
	return out
}

func viewOfField(m protoreflect.Message, field protoreflect.FieldDescriptor) any {
	value := m.Get(field)
	switch {
	case field.IsMap() && field.MapValue().Kind() == protoreflect.StringKind:
		texts := map[string]string{}
		value.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
			texts[k.String()] = v.String()
			return true
		})
		return texts
	case field.IsMap():
		entries := map[string]any{}
		value.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
			entries[k.String()] = viewOfValue(field.MapValue(), v)
			return true
		})
		return entries
	case field.IsList():
		list := make([]any, value.List().Len())
		for i := range list {
			list[i] = viewOfValue(field, value.List().Get(i))
		}
		return list
	case field.Message() != nil && !m.Has(field):
		return map[string]any(nil)
	}
	return viewOfValue(field, value)
}

func viewOfValue(field protoreflect.FieldDescriptor, value protoreflect.Value) any {
	switch {
	case field.Message() != nil:
		return viewOf(value.Message())
	case field.Enum() != nil:
		if v := field.Enum().Values().ByNumber(value.Enum()); v != nil {
			return enum{string(v.Name())}
		}
		return enum{fmt.Sprint(value.Enum())}
	}
	return value.Interface()
}

// goName returns the name of a field in Go.
func goName(name string) string {
	var b strings.Builder
	for part := range strings.SplitSeq(name, "_") {
		if part != "" {
			b.WriteString(strings.ToUpper(part[:1]) + part[1:])
		}
	}
	return b.String()
}
