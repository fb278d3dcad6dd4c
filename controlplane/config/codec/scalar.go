// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package codec

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
		b.errorf(n, "%s is %s: it must be true or false", path, shape(n))
		return none, false
	case protoreflect.EnumKind:
		return b.enum(n, fd.Enum(), path)
	case protoreflect.BytesKind:
		if n.Kind == yaml.ScalarNode {
			if raw, err := decodeBase64(n.Value); err == nil {
				return protoreflect.ValueOfBytes(raw), true
			}
		}
		b.errorf(n, "%s is %s: it must be bytes in base64", path, shape(n))
		return none, false
	case protoreflect.DoubleKind, protoreflect.FloatKind:
		f, ok := number(n)
		if !ok || math.IsNaN(f) || math.IsInf(f, 0) {
			b.errorf(n, "%s is %s: it must be a number", path, shape(n))
			return none, false
		}
		if fd.Kind() == protoreflect.FloatKind {
			if math.Abs(f) > math.MaxFloat32 {
				b.errorf(n, "%s is %s: it is too large", path, shape(n))
				return none, false
			}
			return protoreflect.ValueOfFloat32(float32(f)), true
		}
		return protoreflect.ValueOfFloat64(f), true
	}
	return b.integer(n, fd.Kind(), path)
}

// decodeBase64 takes the four forms that JSON for protobuf allows: standard
// or for URLs, with padding or without.
func decodeBase64(s string) ([]byte, error) {
	s = strings.TrimRight(s, "=")
	if strings.ContainsAny(s, "-_") {
		return base64.RawURLEncoding.DecodeString(s)
	}
	return base64.RawStdEncoding.DecodeString(s)
}

// integer reads whole numbers.
func (b *builder) integer(n *yaml.Node, kind protoreflect.Kind, path string) (protoreflect.Value, bool) {
	var low int64
	high := uint64(math.MaxUint64)
	switch kind {
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		low, high = math.MinInt32, math.MaxInt32
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		high = math.MaxUint32
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		low, high = math.MinInt64, math.MaxInt64
	}
	v, negative, ok := magnitude(n)
	if !ok {
		b.errorf(n, "%s is %s: it must be a whole number", path, shape(n))
		return protoreflect.Value{}, false
	}
	// Of negative numbers v holds the distance from zero.
	if negative && v > -uint64(low) || !negative && v > high {
		sign := ""
		if negative {
			sign = "-"
		}
		b.errorf(n, "%s is %s%d: it must be between %d and %d", path, sign, v, low, high)
		return protoreflect.Value{}, false
	}
	if negative {
		v = -v
	}
	switch kind {
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return protoreflect.ValueOfInt32(int32(v)), true
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(uint32(v)), true
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(v), true
	}
	return protoreflect.ValueOfInt64(int64(v)), true
}

// wholeNumber returns a number of the range of int64.
func wholeNumber(n *yaml.Node) (int64, bool) {
	v, negative, ok := magnitude(n)
	if !ok || !negative && v > math.MaxInt64 {
		return 0, false
	}
	if negative {
		return int64(-v), true
	}
	return int64(v), true
}

// magnitude accepts 80, 0x50, "80" and 8e1, as JSON for protobuf does, and
// returns the distance from zero and on which side.
func magnitude(n *yaml.Node) (v uint64, negative, ok bool) {
	if n.Kind != yaml.ScalarNode {
		return 0, false, false
	}
	split := func(i int64) (uint64, bool, bool) {
		if i < 0 {
			return -uint64(i), true, true
		}
		return uint64(i), false, true
	}
	switch n.ShortTag() {
	case "!!int":
		var i int64
		if err := n.Decode(&i); err == nil {
			return split(i)
		}
		err := n.Decode(&v)
		return v, false, err == nil
	case "!!str", "!!float":
		if i, err := strconv.ParseInt(n.Value, 10, 64); err == nil {
			return split(i)
		}
		if v, err := strconv.ParseUint(n.Value, 10, 64); err == nil {
			return v, false, true
		}
		f, ok := number(n)
		if ok && f == math.Trunc(f) && math.Abs(f) < 1<<53 {
			return split(int64(f))
		}
	}
	return 0, false, false
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
	b.errorf(n, "%s is %s: it must be one of %s", path, shape(n), strings.Join(names, ", "))
	return protoreflect.Value{}, false
}
