// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package config

import (
	"encoding/base64"
	"math"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// scalar reads one value of the field's type.
func (b *builder) scalar(n *yaml.Node, fd protoreflect.FieldDescriptor, path string) (protoreflect.Value, bool) {
	var none protoreflect.Value
	switch fd.Kind() {
	case protoreflect.StringKind:
		s, ok := b.text(n, path)
		return protoreflect.ValueOfString(s), ok
	case protoreflect.BoolKind:
		if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!bool" {
			return protoreflect.ValueOfBool(strings.EqualFold(n.Value, "true")), true
		}
		b.errorf(n, "%s is %s: it has to be true or false", path, shape(n))
		return none, false
	case protoreflect.EnumKind:
		return b.enum(n, fd.Enum(), path)
	case protoreflect.BytesKind:
		if n.Kind == yaml.ScalarNode {
			if raw, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(n.Value), "")); err == nil {
				return protoreflect.ValueOfBytes(raw), true
			}
		}
		b.errorf(n, "%s is %s: it has to be bytes in base64", path, shape(n))
		return none, false
	case protoreflect.DoubleKind, protoreflect.FloatKind:
		f, ok := number(n)
		if !ok || math.IsNaN(f) || math.IsInf(f, 0) {
			b.errorf(n, "%s is %s: it has to be a number", path, shape(n))
			return none, false
		}
		if fd.Kind() == protoreflect.FloatKind {
			return protoreflect.ValueOfFloat32(float32(f)), true
		}
		return protoreflect.ValueOfFloat64(f), true
	}
	return b.integer(n, fd.Kind(), path)
}

// integer reads whole numbers. The range of 64 bit types is that of int64:
// no field of a served kind needs more.
func (b *builder) integer(n *yaml.Node, kind protoreflect.Kind, path string) (protoreflect.Value, bool) {
	low, high := int64(math.MinInt64), int64(math.MaxInt64)
	switch kind {
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		low, high = math.MinInt32, math.MaxInt32
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		low, high = 0, math.MaxUint32
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		low = 0
	}
	v, ok := wholeNumber(n)
	if !ok {
		b.errorf(n, "%s is %s: it has to be a whole number", path, shape(n))
		return protoreflect.Value{}, false
	}
	if v < low || v > high {
		b.errorf(n, "%s is %d: it has to be between %d and %d", path, v, low, high)
		return protoreflect.Value{}, false
	}
	switch kind {
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return protoreflect.ValueOfInt32(int32(v)), true
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(uint32(v)), true
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(uint64(v)), true
	}
	return protoreflect.ValueOfInt64(v), true
}

// wholeNumber accepts 80, 0x50, "80" and 8e1, as JSON for protobuf does.
func wholeNumber(n *yaml.Node) (int64, bool) {
	if n.Kind != yaml.ScalarNode {
		return 0, false
	}
	switch n.ShortTag() {
	case "!!int":
		var v int64
		err := n.Decode(&v)
		return v, err == nil
	case "!!str", "!!float":
		if v, err := strconv.ParseInt(n.Value, 10, 64); err == nil {
			return v, true
		}
		f, ok := number(n)
		if ok && f == math.Trunc(f) && math.Abs(f) < 1<<53 {
			return int64(f), true
		}
	}
	return 0, false
}

func number(n *yaml.Node) (float64, bool) {
	if n.Kind != yaml.ScalarNode {
		return 0, false
	}
	switch n.ShortTag() {
	case "!!int", "!!float":
		var f float64
		err := n.Decode(&f)
		return f, err == nil
	case "!!str":
		f, err := strconv.ParseFloat(n.Value, 64)
		return f, err == nil
	}
	return 0, false
}

// enum reads the name or the number of an enum value.
func (b *builder) enum(n *yaml.Node, ed protoreflect.EnumDescriptor, path string) (protoreflect.Value, bool) {
	var names []string
	for i := range ed.Values().Len() {
		names = append(names, string(ed.Values().Get(i).Name()))
	}
	if n.Kind == yaml.ScalarNode {
		if v := ed.Values().ByName(protoreflect.Name(n.Value)); v != nil {
			return protoreflect.ValueOfEnum(v.Number()), true
		}
		if i, ok := wholeNumber(n); ok && i >= 0 && i <= math.MaxInt32 {
			if v := ed.Values().ByNumber(protoreflect.EnumNumber(i)); v != nil {
				return protoreflect.ValueOfEnum(v.Number()), true
			}
		}
	}
	b.errorf(n, "%s is %s: it has to be one of %s", path, shape(n), strings.Join(names, ", "))
	return protoreflect.Value{}, false
}
