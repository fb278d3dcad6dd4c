// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package codec

import (
	"fmt"
	"math"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// wellKnown fills the messages that JSON for protobuf writes in a form of
// their own; false means that m is none of them.
// https://protobuf.dev/programming-guides/json/
func (b *builder) wellKnown(n *yaml.Node, m protoreflect.Message, path string) bool {
	switch m.Descriptor().FullName() {
	case "google.protobuf.Duration":
		b.duration(n, m, path)
	case "google.protobuf.Timestamp":
		b.timestamp(n, m, path)
	case "google.protobuf.BoolValue", "google.protobuf.Int32Value", "google.protobuf.Int64Value",
		"google.protobuf.UInt32Value", "google.protobuf.UInt64Value", "google.protobuf.FloatValue",
		"google.protobuf.DoubleValue", "google.protobuf.StringValue", "google.protobuf.BytesValue":
		b.singular(n, m, m.Descriptor().Fields().ByName("value"), path)
	case "google.protobuf.Struct":
		if n.Kind != yaml.MappingNode {
			b.errorf(n, "%s is %s: it must be a mapping", path, shape(n))
			return true
		}
		b.assign(m, b.value(n, path).GetStructValue().ProtoReflect())
	case "google.protobuf.ListValue":
		if n.Kind != yaml.SequenceNode {
			b.errorf(n, "%s is %s: it must be a list (each item begins with \"- \")", path, shape(n))
			return true
		}
		b.assign(m, b.value(n, path).GetListValue().ProtoReflect())
	case "google.protobuf.Value":
		b.assign(m, b.value(n, path).ProtoReflect())
	default:
		return false
	}
	return true
}

// assign sets the fields of m to those of another message of its type.
func (b *builder) assign(m, from protoreflect.Message) {
	from.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		m.Set(fd, v)
		return true
	})
}

// takesNull reports whether null is a value of a field, not its absence.
func takesNull(fd protoreflect.FieldDescriptor) bool {
	return fd.Message() != nil && fd.Message().FullName() == "google.protobuf.Value"
}

// value reads any YAML as free form JSON. It never gives nil.
func (b *builder) value(n *yaml.Node, path string) *structpb.Value {
	switch {
	case isNull(n):
		return structpb.NewNullValue()
	case n.Kind == yaml.MappingNode:
		fields := make(map[string]*structpb.Value, len(n.Content)/2)
		Pairs(n, func(key, value *yaml.Node) {
			fields[key.Value] = b.value(value, path+"."+field.Clip(key.Value, field.MaxKeyText))
		})
		return structpb.NewStructValue(&structpb.Struct{Fields: fields})
	case n.Kind == yaml.SequenceNode:
		list := &structpb.ListValue{}
		for i, item := range n.Content {
			list.Values = append(list.Values, b.value(item, fmt.Sprintf("%s[%d]", path, i)))
		}
		return structpb.NewListValue(list)
	}
	switch n.ShortTag() {
	case "!!bool":
		var v bool
		if err := n.Decode(&v); err == nil {
			return structpb.NewBoolValue(v)
		}
	case "!!int", "!!float":
		if f, ok := number(n); ok && !math.IsNaN(f) && !math.IsInf(f, 0) {
			return structpb.NewNumberValue(f)
		}
		b.errorf(n, "%s is %s: JSON has no such number; put it in quotes, or write another one", path, shape(n))
	}
	return structpb.NewStringValue(n.Value)
}

// duration reads "1.5s", "1h30m" and so on.
func (b *builder) duration(n *yaml.Node, m protoreflect.Message, path string) {
	if n.Kind != yaml.ScalarNode {
		b.errorf(n, "%s is %s: it must be a duration, for example 5s", path, shape(n))
		return
	}
	d, err := time.ParseDuration(n.Value)
	if err != nil || (n.ShortTag() != "!!str" && n.Value != "0") {
		b.errorf(n, "%s is %s: it must be a duration with its unit, for example 5s or 250ms", path, shape(n))
		return
	}
	fields := m.Descriptor().Fields()
	m.Set(fields.ByName("seconds"), protoreflect.ValueOfInt64(int64(d/time.Second)))
	m.Set(fields.ByName("nanos"), protoreflect.ValueOfInt32(int32(d%time.Second)))
}

// timestamp reads RFC 3339.
func (b *builder) timestamp(n *yaml.Node, m protoreflect.Message, path string) {
	if n.Kind == yaml.ScalarNode {
		if t, err := time.Parse(time.RFC3339Nano, n.Value); err == nil && timestamppb.New(t).IsValid() {
			b.assign(m, timestamppb.New(t).ProtoReflect())
			return
		}
	}
	b.errorf(n, "%s is %s: it must be a time such as 2030-01-31T12:00:00Z", path, shape(n))
}
