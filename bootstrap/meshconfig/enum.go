// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package meshconfig

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// checkEnums rejects unknown enum values. The decoder ignores unknown fields and would silently
// drop such a value.
func checkEnums(field protoreflect.FieldDescriptor, value any, path string) error {
	switch v := value.(type) {
	case []any:
		for i, item := range v {
			if err := checkEnums(field, item, fmt.Sprintf("%s[%d]", path, i)); err != nil {
				return err
			}
		}
		return nil
	case map[string]any:
		message := field.Message()
		if field.IsMap() {
			field = field.MapValue()
			for _, key := range slices.Sorted(maps.Keys(v)) {
				if err := checkEnums(field, v[key], path+"."+key); err != nil {
					return err
				}
			}
			return nil
		}
		if message == nil || strings.HasPrefix(string(message.FullName()), "google.protobuf.") {
			return nil
		}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if sub := fieldOf(message, key); sub != nil {
				if err := checkEnums(sub, v[key], path+"."+key); err != nil {
					return err
				}
			}
		}
		return nil
	case string:
		if enum := field.Enum(); enum != nil && enum.Values().ByName(protoreflect.Name(v)) == nil {
			names := make([]string, enum.Values().Len())
			for i := range names {
				names[i] = string(enum.Values().Get(i).Name())
			}
			return fmt.Errorf("field %s is %q, it must be one of %s", path, v, strings.Join(names, ", "))
		}
	}
	return nil
}

// fieldOf returns the field with the given JSON or proto name, or nil if there is none.
func fieldOf(message protoreflect.MessageDescriptor, key string) protoreflect.FieldDescriptor {
	if field := message.Fields().ByJSONName(key); field != nil {
		return field
	}
	return message.Fields().ByName(protoreflect.Name(key))
}
