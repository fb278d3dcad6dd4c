// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package controlplane_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// growthCase is one field of one kind, and one way in which it grows.
type growthCase struct {
	name string
	kind model.Kind
	// grow returns an object of about n bytes.
	grow func(n int) []byte
}

// fieldType is the type of a field, from a protobuf descriptor or a Go type.
type fieldType struct {
	list, dict bool
	// fields are the fields of a message, in order; nil for a scalar or free-form value.
	fields []field
	// of is the name of the message.
	of     string
	number bool
}

type field struct {
	name string
	typ  func() fieldType
}

func messageType(md protoreflect.MessageDescriptor) fieldType {
	t := fieldType{of: string(md.FullName())}
	if strings.HasPrefix(t.of, "google.protobuf.") {
		return t
	}
	for i := range md.Fields().Len() {
		fd := md.Fields().Get(i)
		t.fields = append(t.fields, field{fd.JSONName(), func() fieldType { return protoField(fd) }})
	}
	return t
}

func protoField(fd protoreflect.FieldDescriptor) (t fieldType) {
	value := fd
	if fd.IsMap() {
		value = fd.MapValue()
	}
	switch value.Kind() {
	case protoreflect.MessageKind:
		t = messageType(value.Message())
		t.dict = t.of == "google.protobuf.Struct"
	case protoreflect.StringKind, protoreflect.BytesKind:
	default:
		t.number = true
	}
	t.list, t.dict = fd.IsList(), fd.IsMap() || t.dict
	return t
}

func goType(rt reflect.Type) (t fieldType) {
	switch rt.Kind() {
	case reflect.Pointer:
		return goType(rt.Elem())
	case reflect.Slice:
		t = goType(rt.Elem())
		t.list = rt.Elem().Kind() != reflect.Uint8
	case reflect.Map:
		t = goType(rt.Elem())
		t.dict = true
	case reflect.Struct:
		t.of = rt.String()
		for i := range rt.NumField() {
			f := rt.Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			switch {
			case f.Anonymous && name == "":
				t.fields = append(t.fields, goType(f.Type).fields...)
			case name != "" && name != "-":
				t.fields = append(t.fields, field{name, func() fieldType { return goType(f.Type) }})
			}
		}
	case reflect.String:
	default:
		t.number = true
	}
	return t
}

// growthCases returns the metadata and every list, map and text field of every kind, once for each
// message that contains it.
func growthCases(t testing.TB) (cases []growthCase) {
	t.Helper()
	for _, sch := range schema.All() {
		base := map[string]any{}
		if err := yaml.Unmarshal([]byte(growthBases[sch.Kind]), &base); err != nil || len(base) == 0 {
			t.Fatalf("%s: no base object: %v", sch.Kind, err)
		}
		root := fieldType{}
		if m, ok := sch.NewSpec().(proto.Message); ok {
			root = messageType(m.ProtoReflect().Descriptor())
		} else {
			root = goType(reflect.TypeOf(sch.NewSpec()))
		}
		w := &walk{schema: sch, base: base, seen: map[string]bool{}}
		w.message(root, nil)
		for _, name := range []string{"labels", "annotations"} {
			w.add("metadata."+name, fieldType{dict: true}, nil, func(doc map[string]any, value any) {
				doc["metadata"].(map[string]any)[name] = value
			})
		}
		cases = append(cases, w.cases...)
	}
	return cases
}

// walk visits the fields of one kind.
type walk struct {
	schema schema.Schema
	base   map[string]any
	seen   map[string]bool
	cases  []growthCase
}

func (w *walk) message(t fieldType, path []field) {
	for _, f := range t.fields {
		ft, at := f.typ(), append(path[:len(path):len(path)], f)
		if key := t.of + "." + f.name; !w.seen[key] {
			w.seen[key] = true
			names := make([]string, len(at))
			for i, f := range at {
				names[i] = f.name
			}
			name := "spec." + strings.Join(names, ".")
			sample := sampleOf(w.lookup(at))
			w.add(name, ft, sample, func(doc map[string]any, value any) { place(doc["spec"].(map[string]any), at, value) })
			w.message(ft, at)
		}
	}
}

// lookup returns the value of the base object at a path.
func (w *walk) lookup(path []field) any {
	var at any = w.base
	for _, f := range path {
		m, ok := sampleOf(at).(map[string]any)
		if !ok {
			return nil
		}
		at = m[f.name]
	}
	return at
}

// sampleOf returns the first item of a list, and any other value unchanged.
func sampleOf(v any) any {
	if list, ok := v.([]any); ok && len(list) > 0 {
		return list[0]
	}
	return v
}

// place sets a value at a path and creates the missing parents.
func place(m map[string]any, path []field, value any) {
	for ; len(path) > 1; path = path[1:] {
		t := path[0].typ()
		next := map[string]any{}
		switch had := m[path[0].name].(type) {
		case map[string]any:
			next = had
			if t.dict {
				next = map[string]any{}
				had["key"] = next
			}
		case []any:
			next, _ = had[0].(map[string]any)
		default:
			switch {
			case t.list:
				m[path[0].name] = []any{next}
			case t.dict:
				m[path[0].name] = map[string]any{"key": next}
			default:
				m[path[0].name] = next
			}
		}
		m = next
	}
	m[path[0].name] = value
}

// add adds a case for each way in which a field can grow.
func (w *walk) add(name string, t fieldType, sample any, set func(doc map[string]any, value any)) {
	variant := func(how string, value func(n int) any) {
		w.cases = append(w.cases, growthCase{
			name: fmt.Sprintf("%s %s: %s", w.schema.Kind, name, how), kind: w.schema.Kind,
			grow: func(n int) []byte {
				doc := map[string]any{
					"apiVersion": w.schema.APIVersion(), "kind": w.schema.Name, "metadata": map[string]any{"name": "big"},
					"spec": clone(w.base),
				}
				set(doc, value(n))
				raw, err := json.Marshal(doc)
				if err != nil {
					panic(err)
				}
				return raw
			},
		})
	}
	items := func(item func(i int) any) func(n int) any {
		return func(n int) any {
			raw, _ := json.Marshal(item(1 << 20))
			list := make([]any, 1+n/(len(raw)+1))
			for i := range list {
				list[i] = item(i)
			}
			return list
		}
	}
	entries := func(item func(i int) any) func(n int) any {
		return func(n int) any {
			raw, _ := json.Marshal(item(1 << 20))
			m := map[string]any{}
			for i := range 1 + n/(len(raw)+12) {
				m[fmt.Sprintf("key-%d", i)] = item(i)
			}
			return m
		}
	}
	switch {
	case t.dict:
		variant("entries", entries(func(i int) any { return element(t, sample, i) }))
		variant("one long key", func(n int) any { return map[string]any{strings.Repeat("k", n): element(t, sample, 0)} })
	case t.list && len(t.fields) > 0:
		variant("different items", items(func(i int) any { return element(t, sample, i) }))
		variant("equal items", items(func(int) any { return element(t, sample, 0) }))
		variant("empty items", items(func(int) any { return map[string]any{} }))
	case t.list && t.number:
		variant("numbers", items(func(i int) any { return i }))
	case t.list:
		variant("hosts", items(func(i int) any { return fmt.Sprintf("h%d.example.com", i) }))
		variant("equal texts", items(func(int) any { return "same.example.com" }))
		variant("wildcards", items(func(i int) any { return "*." + strings.Repeat("a.", i%100) + fmt.Sprintf("h%d.com", i/100) }))
		variant("addresses", items(func(i int) any { return fmt.Sprintf("10.%d.%d.%d", i>>16&255, i>>8&255, i&255) }))
		if text, ok := sample.(string); ok {
			variant("like the sample", items(func(i int) any { return vary("", text, i) }))
		}
	case len(t.fields) == 0 && !t.number:
		texts := []string{"a.", "/a", "{*}/", "a,", "(a?)"}
		for _, part := range []string{"a", texts[len(w.cases)%len(texts)]} {
			variant(fmt.Sprintf("a long text of %q", part), func(n int) any { return strings.Repeat(part, n/len(part)) })
		}
	}
}

// element returns item i of a list or map.
func element(t fieldType, sample any, i int) any {
	if sample == nil {
		return blank(t, i)
	}
	if m, ok := sample.(map[string]any); ok && t.dict && len(t.fields) == 0 {
		for k := range m {
			return vary(k, m[k], i)
		}
	}
	return vary("", sample, i)
}

// blank returns a message of which only scalar fields are set.
func blank(t fieldType, i int) any {
	switch {
	case t.number:
		return i
	case len(t.fields) == 0:
		return fmt.Sprintf("h%d.example.com", i)
	}
	m := map[string]any{}
	for _, f := range t.fields {
		if ft := f.typ(); len(ft.fields) == 0 && ft.of == "" && !ft.number && !ft.list && !ft.dict {
			m[f.name] = fmt.Sprintf("h%d", i)
		}
	}
	return m
}

// vary returns a copy of a sample with the names, hosts, paths, addresses and ports of item i.
func vary(name string, v any, i int) any {
	switch v := v.(type) {
	case map[string]any:
		m := make(map[string]any, len(v))
		for k, of := range v {
			m[k] = vary(k, of, i)
		}
		return m
	case []any:
		list := make([]any, len(v))
		for j := range v {
			list[j] = vary(name, v[j], i)
		}
		return list
	case float64:
		if name == "number" || name == "port" {
			return float64(1 + i%65535)
		}
	case string:
		switch {
		case strings.HasPrefix(v, "10."):
			return fmt.Sprintf("10.%d.%d.%d", i>>16&255, i>>8&255, i&255) + strings.TrimLeft(v, "0123456789.")
		case strings.HasPrefix(v, "/"):
			return fmt.Sprintf("%s-%d", v, i)
		case strings.HasSuffix(v, ".example.com"):
			return fmt.Sprintf("h%d.%s", i, strings.TrimPrefix(v, "*."))
		case name == "name" || name == "from":
			return fmt.Sprintf("%s-%d", v, i)
		}
	}
	return v
}

func clone(v any) any { return vary("", v, 0) }
