// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package codec

import (
	"bytes"
	"encoding/json"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// wholeNumbers returns the JSON of a message with numbers where the JSON mapping
// of protobuf writes strings: in fields of 64 bits. The definitions of
// Kubernetes take numbers only, and who reads protobuf takes both.
func wholeNumbers(m protoreflect.Message, raw []byte) ([]byte, error) {
	if !hasWide(m) {
		return raw, nil
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var object map[string]any
	if err := dec.Decode(&object); err != nil {
		return nil, err
	}
	writeNumbers(m, object)
	return json.Marshal(object)
}

// wide tells whether values of a field have 64 bits.
func wide(fd protoreflect.FieldDescriptor) bool {
	switch fd.Kind() {
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind, protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return true
	case protoreflect.MessageKind:
		name := fd.Message().FullName()
		return name == "google.protobuf.Int64Value" || name == "google.protobuf.UInt64Value"
	}
	return false
}

// messages visits the messages in the fields of a message, with the JSON of
// each where that is an object, until visit gives true. The JSON may be nil.
func messages(m protoreflect.Message, object map[string]any, visit func(protoreflect.Message, map[string]any) bool) {
	next := func(v protoreflect.Value, raw any) bool {
		of, _ := raw.(map[string]any) // other messages are no objects
		return visit(v.Message(), of)
	}
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		raw := object[fd.JSONName()]
		switch {
		case fd.IsMap():
			if fd.MapValue().Message() == nil {
				return true
			}
			items, _ := raw.(map[string]any)
			found := false
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				found = next(v, items[k.String()])
				return !found
			})
			return !found
		case fd.Message() == nil:
			return true
		case fd.IsList():
			items, _ := raw.([]any)
			for i := range v.List().Len() {
				var item any
				if i < len(items) {
					item = items[i]
				}
				if next(v.List().Get(i), item) {
					return false
				}
			}
			return true
		}
		return !next(v, raw)
	})
}

// hasWide reports whether a field of 64 bits is set in a message or below it.
func hasWide(m protoreflect.Message) (found bool) {
	m.Range(func(fd protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		found = wide(fd) || fd.IsMap() && wide(fd.MapValue())
		return !found
	})
	if !found && !isWellKnown(m) {
		messages(m, nil, func(of protoreflect.Message, _ map[string]any) bool {
			found = hasWide(of)
			return found
		})
	}
	return found && !isWellKnown(m)
}

// isWellKnown tells the messages that JSON writes in a form of their own.
func isWellKnown(m protoreflect.Message) bool {
	return m.Descriptor().FullName().Parent() == "google.protobuf"
}

// writeNumbers writes the fields of 64 bits as numbers into the JSON of a
// message.
func writeNumbers(m protoreflect.Message, object map[string]any) {
	if object == nil || isWellKnown(m) {
		return
	}
	number := func(v any) any {
		if s, ok := v.(string); ok {
			return json.Number(s)
		}
		return v
	}
	m.Range(func(fd protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		name := fd.JSONName()
		switch {
		case fd.IsMap() && wide(fd.MapValue()):
			if items, ok := object[name].(map[string]any); ok {
				for k, v := range items {
					items[k] = number(v)
				}
			}
		case fd.IsMap():
		case wide(fd) && fd.IsList():
			if items, ok := object[name].([]any); ok {
				for i, v := range items {
					items[i] = number(v)
				}
			}
		case wide(fd):
			object[name] = number(object[name])
		}
		return true
	})
	messages(m, object, func(of protoreflect.Message, raw map[string]any) bool {
		writeNumbers(of, raw)
		return false
	})
}
