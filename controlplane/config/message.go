// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package config

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// builder fills messages from YAML nodes as JSON for protobuf says, and a
// little like Istio: durations may be written "1h" or "10ms". It is strict,
// and it goes on after a fault, so that a person hears of all of them.
type builder struct {
	faults []fault
}

func (b *builder) errorf(n *yaml.Node, format string, args ...any) {
	b.faults = append(b.faults, fault{line: n.Line, text: fmt.Sprintf(format, args...)})
}

// message fills m from a mapping.
func (b *builder) message(n *yaml.Node, m protoreflect.Message, path string) {
	switch m.Descriptor().FullName() {
	case "google.protobuf.Duration":
		b.duration(n, m, path)
		return
	case "google.protobuf.BoolValue", "google.protobuf.UInt32Value", "google.protobuf.DoubleValue":
		b.singular(n, m, m.Descriptor().Fields().ByName("value"), path)
		return
	}
	if n.Kind != yaml.MappingNode {
		b.errorf(n, "%s is %s: it has to be a mapping", path, shape(n))
		return
	}
	fields := m.Descriptor().Fields()
	seen := map[protoreflect.FieldNumber]string{}
	pairs(n, func(key, value *yaml.Node) {
		fd := fields.ByJSONName(key.Value)
		if fd == nil {
			fd = fields.ByTextName(key.Value)
		}
		if fd == nil {
			b.errorf(key, "unknown field %s in %s%s", quote(key.Value), path, didYouMean(key.Value, jsonNames(fields)))
			return
		}
		if isNull(value) {
			return
		}
		if first, ok := seen[fd.Number()]; ok {
			b.errorf(key, "%s and %s in %s are the same field: remove one", first, key.Value, path)
			return
		}
		seen[fd.Number()] = key.Value
		if one := fd.ContainingOneof(); one != nil && m.WhichOneof(one) != nil {
			b.errorf(key, "%s and %s in %s exclude each other: remove one", m.WhichOneof(one).JSONName(), key.Value, path)
			return
		}
		b.field(value, m, fd, path+"."+fd.JSONName())
	})
}

func jsonNames(fields protoreflect.FieldDescriptors) []string {
	names := make([]string, fields.Len())
	for i := range names {
		names[i] = fields.Get(i).JSONName()
	}
	return names
}

// field sets one field of m.
func (b *builder) field(n *yaml.Node, m protoreflect.Message, fd protoreflect.FieldDescriptor, path string) {
	switch {
	case fd.IsList():
		if n.Kind != yaml.SequenceNode {
			b.errorf(n, "%s is %s: it has to be a list (each item begins with \"- \")", path, shape(n))
			return
		}
		list := m.Mutable(fd).List()
		for i, item := range n.Content {
			at := fmt.Sprintf("%s[%d]", path, i)
			if isNull(item) {
				b.errorf(item, "%s is empty: write it or remove the \"-\"", at)
				continue
			}
			if fd.Message() != nil {
				b.message(item, list.AppendMutable().Message(), at)
			} else if v, ok := b.scalar(item, fd, at); ok {
				list.Append(v)
			}
		}
	case fd.IsMap():
		b.mapField(n, m, fd, path)
	default:
		b.singular(n, m, fd, path)
	}
}

func (b *builder) singular(n *yaml.Node, m protoreflect.Message, fd protoreflect.FieldDescriptor, path string) {
	if fd.Message() != nil {
		b.message(n, m.Mutable(fd).Message(), path)
	} else if v, ok := b.scalar(n, fd, path); ok {
		m.Set(fd, v)
	}
}

func (b *builder) mapField(n *yaml.Node, m protoreflect.Message, fd protoreflect.FieldDescriptor, path string) {
	if n.Kind != yaml.MappingNode {
		b.errorf(n, "%s is %s: it has to be a mapping", path, shape(n))
		return
	}
	entries := m.Mutable(fd).Map()
	pairs(n, func(key, value *yaml.Node) {
		at := path + "[" + key.Value + "]"
		k := protoreflect.ValueOfString(key.Value).MapKey()
		if fd.MapKey().Kind() != protoreflect.StringKind {
			v, ok := b.scalar(key, fd.MapKey(), "the key "+quote(key.Value)+" of "+path)
			if !ok {
				return
			}
			k = v.MapKey()
		}
		switch {
		case isNull(value):
			b.errorf(value, "%s is empty: write a value, or \"\" for an empty text", at)
		case fd.MapValue().Message() != nil:
			v := entries.NewValue()
			b.message(value, v.Message(), at)
			entries.Set(k, v)
		default:
			if v, ok := b.scalar(value, fd.MapValue(), at); ok {
				entries.Set(k, v)
			}
		}
	})
}

// duration reads "1.5s", "1h30m" and so on.
func (b *builder) duration(n *yaml.Node, m protoreflect.Message, path string) {
	if n.Kind != yaml.ScalarNode {
		b.errorf(n, "%s is %s: it has to be a duration, for example 5s", path, shape(n))
		return
	}
	d, err := time.ParseDuration(n.Value)
	if err != nil || (n.ShortTag() != "!!str" && n.Value != "0") {
		b.errorf(n, "%s is %s: it has to be a duration with its unit, for example 5s or 250ms", path, shape(n))
		return
	}
	fields := m.Descriptor().Fields()
	m.Set(fields.ByName("seconds"), protoreflect.ValueOfInt64(int64(d/time.Second)))
	m.Set(fields.ByName("nanos"), protoreflect.ValueOfInt32(int32(d%time.Second)))
}

// stringMap reads metadata such as labels.
func (b *builder) stringMap(n *yaml.Node, path string) map[string]string {
	if isNull(n) {
		return nil
	}
	if n.Kind != yaml.MappingNode {
		b.errorf(n, "%s is %s: it has to be a mapping", path, shape(n))
		return nil
	}
	m := make(map[string]string, len(n.Content)/2)
	pairs(n, func(key, value *yaml.Node) {
		if s, ok := b.text(value, path+"["+key.Value+"]"); ok {
			m[key.Value] = s
		}
	})
	return m
}

// text reads a string.
func (b *builder) text(n *yaml.Node, path string) (string, bool) {
	if n.Kind == yaml.ScalarNode {
		switch n.ShortTag() {
		case "!!str", "!!timestamp", "!!merge":
			return n.Value, true
		case "!!int", "!!float", "!!bool":
			b.errorf(n, "%s is %s: it has to be text; put it in quotes: \"%s\"", path, shape(n), n.Value)
			return "", false
		}
	}
	b.errorf(n, "%s is %s: it has to be text", path, shape(n))
	return "", false
}

// nearest name within this many edits is offered to the person.
const mostEdits = 2

// didYouMean gives ": did you mean …?" for the nearest name, or the list of
// names when none is near and the list is short.
func didYouMean(got string, names []string) string {
	best, most := "", min(mostEdits, len(got)/2)+1
	for _, name := range names {
		if strings.EqualFold(got, name) {
			best = name
			break
		}
		if d := edits(got, name); d < most {
			best, most = name, d
		}
	}
	switch {
	case best != "":
		return ": did you mean " + strconv.Quote(best) + "?"
	case len(names) > 0 && len(names) <= 8:
		return ": it knows " + strings.Join(names, ", ")
	}
	return ""
}

// edits is the number of insertions, deletions, replacements and swaps of
// neighbours between two short words; bytes are enough for field names.
func edits(a, b string) int {
	const far = 1 << 10
	if len(a) > 64 || len(b) > 64 {
		return far
	}
	before, prev, cur := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], before[j-2]+1)
			}
		}
		before, prev, cur = prev, cur, before
	}
	return prev[len(b)]
}
