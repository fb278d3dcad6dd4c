// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package meshconfig

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
)

// canonical returns the value of a field in the form that protojson decodes: it rewrites durations
// such as 1m30s, which Istio accepts, as seconds. It rejects unknown enum values, which protojson
// would drop together with unknown fields. It changes lists and mappings in place.
func canonical(field protoreflect.FieldDescriptor, value any, path string) (any, error) {
	if list, ok := value.([]any); ok {
		for i := range list {
			item, err := canonical(field, list[i], fmt.Sprintf("%s[%d]", path, i))
			if err != nil {
				return nil, err
			}
			list[i] = item
		}
		return list, nil
	}
	if isDuration(field) && value != nil {
		return canonicalDuration(value, path)
	}
	switch v := value.(type) {
	case map[string]any:
		return v, canonicalFields(field, v, path)
	case string:
		if enum := field.Enum(); enum != nil && enum.Values().ByName(protoreflect.Name(v)) == nil {
			names := make([]string, enum.Values().Len())
			for i := range names {
				names[i] = string(enum.Values().Get(i).Name())
			}
			return nil, fmt.Errorf("field %s is %q; it must be one of %s", path, v, strings.Join(names, ", "))
		}
	}
	return value, nil
}

// canonicalFields applies canonical to the entries of a map field or to the fields of a message. It
// skips well-known types of protobuf, which have their own JSON form.
func canonicalFields(field protoreflect.FieldDescriptor, values map[string]any, path string) error {
	message := field.Message()
	if !field.IsMap() && (message == nil || strings.HasPrefix(string(message.FullName()), "google.protobuf.")) {
		return nil
	}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		var sub protoreflect.FieldDescriptor
		if field.IsMap() {
			sub = field.MapValue()
		} else if sub = fieldOf(message, key); sub == nil {
			continue
		}
		item, err := canonical(sub, values[key], path+"."+key)
		if err != nil {
			return err
		}
		values[key] = item
	}
	return nil
}

// isDuration reports whether the values of a field are durations.
func isDuration(field protoreflect.FieldDescriptor) bool {
	return field.Message() != nil && field.Message().FullName() == (*durationpb.Duration)(nil).ProtoReflect().Descriptor().FullName()
}

// canonicalDuration reads a duration as Istio does, with one or more units from ns to h, and returns
// it in the form of protojson.
func canonicalDuration(value any, path string) (any, error) {
	text, ok := value.(string)
	d, err := time.ParseDuration(text)
	if !ok || err != nil {
		shown, _ := json.Marshal(value) // values of decoded YAML
		return nil, fmt.Errorf("field %s is %s; it must be a duration with its unit, such as 5s, 1m30s or 500ms", path, shown)
	}
	doc, err := protojson.Marshal(durationpb.New(d))
	return json.RawMessage(doc), err
}

// fieldOf returns the field with the given JSON or proto name, or nil if there is none.
func fieldOf(message protoreflect.MessageDescriptor, key string) protoreflect.FieldDescriptor {
	if field := message.Fields().ByJSONName(key); field != nil {
		return field
	}
	return message.Fields().ByName(protoreflect.Name(key))
}
