// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package patch

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
)

// typed replaces each TypedStruct in a message by the message that it describes, as Envoy does, so
// that they merge with others and all rules apply to them. One of an unknown type, or with a field
// that only a newer Envoy may know, stays as it is, but not as the settings of a transport socket,
// which the deny list has to find.
func typed(value proto.Message) error {
	_, err := replaceStructs(value.ProtoReflect(), "", 0, false)
	return err
}

// replaceStructs reports whether something in a message was replaced. In a socket, m is the
// configuration of a transport socket.
func replaceStructs(m protoreflect.Message, path string, depth int, socket bool) (changed bool, err error) {
	if depth > maxDepth {
		return false, nil // checkValue refuses it
	}
	if a, ok := m.Interface().(*anypb.Any); ok {
		return replaceStruct(a, path, depth, socket)
	}
	socket = m.Descriptor().FullName() == "envoy.config.core.v3.TransportSocket"
	inner := func(m protoreflect.Message, at string) bool {
		var is bool
		is, err = replaceStructs(m, at, depth+1, socket)
		changed = changed || is
		return err == nil
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		at := path + "." + string(f.Name())
		switch {
		case f.IsMap():
			if f.MapValue().Message() == nil {
				return true
			}
			v.Map().Range(func(key protoreflect.MapKey, item protoreflect.Value) bool {
				return inner(item.Message(), at+"["+field.Clip(key.String(), field.MaxKeyText)+"]")
			})
		case f.Message() == nil:
		case f.IsList():
			for i := range v.List().Len() {
				if !inner(v.List().Get(i).Message(), field.Index(at, i)) {
					break
				}
			}
		default:
			inner(v.Message(), at)
		}
		return err == nil
	})
	return changed, err
}

func replaceStruct(a *anypb.Any, path string, depth int, socket bool) (changed bool, err error) {
	m, err := a.UnmarshalNew()
	if err != nil {
		return false, nil // checkValue refuses it
	}
	switch m.ProtoReflect().Descriptor().FullName() {
	case "udpa.type.v1.TypedStruct", "xds.type.v3.TypedStruct":
		described, err := describedBy(m.ProtoReflect())
		switch {
		case err != nil && socket && described != nil:
			return false, fmt.Errorf("%s.value is not the configuration of a transport socket: %w", path, err)
		case err != nil:
			return false, nil
		}
		m, changed = described, true
	}
	inner, err := replaceStructs(m.ProtoReflect(), path, depth+1, false)
	if err != nil || !changed && !inner {
		return false, err
	}
	return true, anypb.MarshalFrom(a, m, proto.MarshalOptions{Deterministic: true})
}

// describedBy returns the message that a TypedStruct describes, nil if its type is unknown.
func describedBy(m protoreflect.Message) (proto.Message, error) {
	get := func(name protoreflect.Name) protoreflect.Value { return m.Get(m.Descriptor().Fields().ByName(name)) }
	out, err := (&anypb.Any{TypeUrl: get("type_url").String()}).UnmarshalNew()
	if err != nil {
		return nil, err // it is unknown
	}
	text, err := protojson.Marshal(get("value").Message().Interface())
	if err != nil {
		return out, err
	}
	return out, protojson.Unmarshal(text, out)
}
