// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package meshconfig

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Unknown returns the sorted paths of the fields in a document that a message does not have, such
// as "defaultConfig.statusPrt". It returns none for a document that cannot be parsed.
func Unknown(doc []byte, message proto.Message) []string {
	fields, err := decode(doc)
	if err != nil {
		return nil
	}
	var out []string
	unknown(message.ProtoReflect().Descriptor(), fields, "", &out)
	slices.Sort(out)
	return slices.Compact(out)
}

func unknown(message protoreflect.MessageDescriptor, fields map[string]any, path string, out *[]string) {
	for key, value := range fields {
		field := fieldOf(message, key)
		switch {
		case field == nil:
			*out = append(*out, path+key)
		case field.IsMap():
			entries, _ := value.(map[string]any)
			for name, entry := range entries {
				below(field.MapValue(), entry, path+key+"."+name+".", out)
			}
		case field.IsList():
			items, _ := value.([]any)
			for _, item := range items {
				below(field, item, path+key+"[].", out)
			}
		default:
			below(field, value, path+key+".", out)
		}
	}
}

// below descends into a value that may be a message. Well-known types of protobuf, such as
// durations, are skipped because they have their own JSON form.
func below(field protoreflect.FieldDescriptor, value any, path string, out *[]string) {
	fields, ok := value.(map[string]any)
	if message := field.Message(); ok && message != nil && !strings.HasPrefix(string(message.FullName()), "google.protobuf.") {
		unknown(message, fields, path, out)
	}
}
