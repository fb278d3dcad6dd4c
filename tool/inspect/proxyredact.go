// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	udpaannotations "github.com/cncf/xds/go/udpa/annotations"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/outrigger-mesh/outrigger/internal/redact"
)

// redactMessage removes from a message what Envoy's admin port does not show: the fields that Envoy's API
// marks as sensitive, also in packed messages. All of a secret message is secret.
func redactMessage(m protoreflect.Message, secret bool) {
	if packed, ok := m.Interface().(*anypb.Any); ok {
		redactPacked(packed, secret)
		return
	}
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		hidden := secret
		if marked, ok := proto.GetExtension(field.Options(), udpaannotations.E_Sensitive).(bool); ok && marked {
			hidden = true
		}
		switch {
		case field.IsMap():
			value.Map().Range(func(key protoreflect.MapKey, v protoreflect.Value) bool {
				if v, shown := redactedValue(field.MapValue(), v, hidden); shown {
					value.Map().Set(key, v)
				}
				return true
			})
		case field.IsList():
			list := value.List()
			for i := range list.Len() {
				if v, shown := redactedValue(field, list.Get(i), hidden); shown {
					list.Set(i, v)
				}
			}
		default:
			if v, shown := redactedValue(field, value, hidden); shown {
				m.Set(field, v)
			} else {
				m.Clear(field)
			}
		}
		return true
	})
}

// redactedValue returns what Envoy shows of a value, and false if it shows nothing.
func redactedValue(field protoreflect.FieldDescriptor, v protoreflect.Value, secret bool) (protoreflect.Value, bool) {
	switch kind := field.Kind(); {
	case field.Message() != nil:
		redactMessage(v.Message(), secret)
	case !secret:
	case kind == protoreflect.StringKind:
		return protoreflect.ValueOfString(redact.Mark), true
	case kind == protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte(redact.Mark)), true
	default:
		return v, false
	}
	return v, true
}

// redactPacked redacts a packed message. One of an unknown type stays.
func redactPacked(packed *anypb.Any, secret bool) {
	m, err := packed.UnmarshalNew()
	if err != nil {
		return
	}
	redactMessage(m.ProtoReflect(), secret)
	if raw, err := (proto.MarshalOptions{AllowPartial: true, Deterministic: true}).Marshal(m); err == nil {
		packed.Value = raw
	}
}
