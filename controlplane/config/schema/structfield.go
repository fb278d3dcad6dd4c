// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package schema

import (
	"reflect"
	"strings"
)

// StructField is one field of a struct as YAML has it.
type StructField struct {
	JSONName string
	Owner    reflect.Type
	reflect.StructField
}

// StructFields lists the fields of a struct with those of the structs that
// are inlined in it.
func StructFields(t reflect.Type) (fields []StructField) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			fields = append(fields, StructFields(f.Type)...)
		case name != "" && name != "-" && f.IsExported():
			fields = append(fields, StructField{JSONName: name, Owner: t, StructField: f})
		}
	}
	return fields
}

// Optional reports whether the field may be left out.
func (f StructField) Optional() bool {
	_, options, _ := strings.Cut(f.Tag.Get("json"), ",")
	return strings.Contains(options, "omitempty") || strings.Contains(options, "omitzero")
}

// Key names a field in the tables.
func (f StructField) Key() string { return f.Owner.Name() + "." + f.JSONName }
