// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package patch

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
)

// into merges a value into a message of the same type, as Istio does: fields are set, messages
// merged, lists appended, or replaced if lists is true, and entries of maps and durations replaced.
// Unlike in Istio, wrapped values are replaced too, so that one can be set to false or 0.
func into(dst, src proto.Message, lists bool) {
	src = proto.Clone(src) // what is set below belongs to dst
	mergeMessages(dst.ProtoReflect(), src.ProtoReflect(), lists)
}

func mergeMessages(dst, src protoreflect.Message, lists bool) {
	src.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsList():
			to := dst.Mutable(f).List()
			if lists {
				to.Truncate(0)
			}
			for i := range v.List().Len() {
				to.Append(v.List().Get(i))
			}
		case f.IsMap():
			to := dst.Mutable(f).Map()
			v.Map().Range(func(key protoreflect.MapKey, item protoreflect.Value) bool {
				to.Set(key, item)
				return true
			})
		case f.Message() != nil && !whole(f.Message()) && dst.Has(f):
			mergeMessages(dst.Mutable(f).Message(), v.Message(), lists)
		default:
			dst.Set(f, v)
		}
		return true
	})
}

// whole reports whether a message is replaced as a whole: durations, wrapped values, and
// configurations of extensions, whose bytes cannot be merged.
func whole(m protoreflect.MessageDescriptor) bool {
	const duration, wrappers = "google.protobuf.Duration", "google/protobuf/wrappers.proto"
	return m.FullName() == duration || m.FullName() == "google.protobuf.Any" || m.ParentFile().Path() == wrappers
}

// mergeAny returns the configuration of an extension with that of a patch merged into it. It returns
// an error if their types differ.
func mergeAny(dst, src *anypb.Any, lists bool) (*anypb.Any, error) {
	to, err := dst.UnmarshalNew()
	if err != nil {
		return nil, fmt.Errorf("its configuration cannot be read: %w", err)
	}
	from, err := src.UnmarshalNew()
	if err != nil {
		return nil, fmt.Errorf("the value cannot be read: %w", err)
	}
	if want, got := to.ProtoReflect().Descriptor().FullName(), from.ProtoReflect().Descriptor().FullName(); want != got {
		return nil, fmt.Errorf("the value has the type %s, and what it is merged into has %s: write that type, or use REPLACE", got, want)
	}
	into(to, from, lists)
	out := &anypb.Any{}
	if err := anypb.MarshalFrom(out, to, proto.MarshalOptions{Deterministic: true}); err != nil {
		return nil, err
	}
	return out, nil
}
