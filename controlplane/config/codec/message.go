// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package codec

import (
	"fmt"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// builder fills messages from YAML nodes as JSON for protobuf says, and a
// little like Istio: durations may be written "1h" or "10ms". It is strict,
// and it goes on after a fault, so that a person hears of all of them.
type builder struct {
	faults []fault
	// lenient makes unknown fields warnings.
	lenient  bool
	warnings []fault
	// unlisted and unlistedWarnings count what came after MaxListed of each.
	unlisted, unlistedWarnings int
}

func (b *builder) errorf(n *yaml.Node, format string, args ...any) {
	if len(b.faults) >= field.MaxListed {
		b.unlisted++
		return
	}
	b.faults = append(b.faults, fault{line: n.Line, text: fmt.Sprintf(format, args...)})
}

// count returns how many faults there were, listed or not.
func (b *builder) count() int { return len(b.faults) + b.unlisted }

// unknown takes a field that is not known, at path. Names returns the fields
// that are.
func (b *builder) unknown(key *yaml.Node, path string, names func() []string) {
	switch {
	case b.lenient && len(b.warnings) >= field.MaxListed:
		b.unlistedWarnings++
		return
	case !b.lenient && len(b.faults) >= field.MaxListed:
		b.unlisted++
		return
	}
	text := fmt.Sprintf("unknown field %s in %s%s", field.Quote(key.Value), path, field.DidYouMean(key.Value, names()))
	if b.lenient {
		b.warnings = append(b.warnings, fault{line: key.Line, text: text + "; it has no effect"})
		return
	}
	b.faults = append(b.faults, fault{line: key.Line, text: text})
}

// spec fills a spec or a status.
func (b *builder) spec(n *yaml.Node, into any, path string) {
	if m, ok := into.(proto.Message); ok {
		b.message(n, m.ProtoReflect(), path)
		return
	}
	b.structure(n, into, path)
}

// message fills m from a mapping.
func (b *builder) message(n *yaml.Node, m protoreflect.Message, path string) {
	if b.wellKnown(n, m, path) {
		return
	}
	if n.Kind != yaml.MappingNode {
		b.errorf(n, "%s is %s: it must be a mapping", path, shape(n))
		return
	}
	fields := m.Descriptor().Fields()
	seen := map[protoreflect.FieldNumber]string{}
	Pairs(n, func(key, value *yaml.Node) {
		fd := fields.ByJSONName(key.Value)
		if fd == nil {
			fd = fields.ByTextName(key.Value)
		}
		if fd == nil {
			b.unknown(key, path, func() []string { return jsonNames(fields) })
			return
		}
		if isNull(value) && !takesNull(fd) {
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
	b.emptyFault(n, fd, path)
	switch {
	case fd.IsList():
		if n.Kind != yaml.SequenceNode {
			b.errorf(n, "%s is %s: it must be a list (each item begins with \"- \")", path, shape(n))
			return
		}
		list := m.Mutable(fd).List()
		for i, item := range n.Content {
			at := fmt.Sprintf("%s[%d]", path, i)
			if isNull(item) && !takesNull(fd) {
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
		b.errorf(n, "%s is %s: it must be a mapping", path, shape(n))
		return
	}
	entries := m.Mutable(fd).Map()
	Pairs(n, func(key, value *yaml.Node) {
		at := field.Key(path, key.Value)
		k := protoreflect.ValueOfString(key.Value).MapKey()
		if fd.MapKey().Kind() != protoreflect.StringKind {
			v, ok := b.scalar(key, fd.MapKey(), "the key "+field.Quote(key.Value)+" of "+path)
			if !ok {
				return
			}
			k = v.MapKey()
		}
		switch {
		case isNull(value) && !takesNull(fd.MapValue()):
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

// stringMap reads metadata such as labels.
func (b *builder) stringMap(n *yaml.Node, path string) map[string]string {
	if isNull(n) {
		return nil
	}
	if n.Kind != yaml.MappingNode {
		b.errorf(n, "%s is %s: it must be a mapping", path, shape(n))
		return nil
	}
	m := make(map[string]string, len(n.Content)/2)
	Pairs(n, func(key, value *yaml.Node) {
		if s, ok := b.text(value, field.Key(path, key.Value)); ok {
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
			b.errorf(n, "%s is %s: it must be text; put it in quotes: \"%s\"", path, shape(n), field.Clip(n.Value, field.MaxKeyText))
			return "", false
		}
	}
	b.errorf(n, "%s is %s: it must be text", path, shape(n))
	return "", false
}
