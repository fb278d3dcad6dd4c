// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inject

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// operation is one of JSON Patch (RFC 6902).
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	From  string `json:"from,omitempty"`
	Value any    `json:"value,omitempty"`
}

// MarshalJSON writes the value of an operation that needs one, also if it is empty.
func (o operation) MarshalJSON() ([]byte, error) {
	fields := map[string]any{"op": o.Op, "path": o.Path}
	switch o.Op {
	case "add", "replace":
		fields["value"] = o.Value
	case "move":
		fields["from"] = o.From
	}
	return json.Marshal(fields)
}

// patcher carries the difference of two typed objects over to an object as it was received: fields
// that the types do not know stay.
type patcher struct{ operations []operation }

// Patch returns the JSON patch that turns an object into one with the changes between before and
// after, and the changed object. before is the object with the fields that its type knows.
func Patch(object map[string]any, before, after any) (patch []byte, changed map[string]any, err error) {
	from, err := toMap(before)
	if err != nil {
		return nil, nil, err
	}
	to, err := toMap(after)
	if err != nil {
		return nil, nil, err
	}
	p := &patcher{operations: []operation{}}
	p.object("", object, from, to)
	patch, err = json.Marshal(p.operations)
	return patch, object, err
}

func (p *patcher) add(o operation) { p.operations = append(p.operations, o) }

// escape returns a key as a pointer has it (RFC 6901).
var escape = strings.NewReplacer("~", "~0", "/", "~1")

// object changes the fields of raw that differ.
func (p *patcher) object(path string, raw, before, after map[string]any) {
	for _, key := range slices.Sorted(maps.Keys(before)) {
		if _, stays := after[key]; stays {
			continue
		}
		if _, ok := raw[key]; ok {
			p.add(operation{Op: "remove", Path: path + "/" + escape.Replace(key)})
			delete(raw, key)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(after)) {
		from, had := before[key]
		if to := after[key]; !had || !reflect.DeepEqual(from, to) {
			raw[key] = p.value(path+"/"+escape.Replace(key), raw, key, from, to)
		}
	}
}

// value changes one field and returns what it is then.
func (p *patcher) value(path string, parent map[string]any, key string, before, after any) any {
	raw, exists := parent[key]
	switch to := after.(type) {
	case map[string]any:
		now, isMap := raw.(map[string]any)
		from, _ := before.(map[string]any)
		if isMap {
			p.object(path, now, from, to)
			return now
		}
	case []any:
		now, isList := raw.([]any)
		from, _ := before.([]any)
		if isList && named(now) && named(from) && named(to) && len(now) == len(from) {
			return p.list(path, now, from, to)
		}
	}
	op := "add"
	if exists {
		op = "replace"
	}
	p.add(operation{Op: op, Path: path, Value: after})
	return after
}

// named reports whether a list consists of objects with different names.
func named(list []any) bool {
	seen := map[string]bool{}
	for _, item := range list {
		name := nameOf(item)
		if name == "" || seen[name] {
			return false
		}
		seen[name] = true
	}
	return true
}

func nameOf(item any) string {
	fields, ok := item.(map[string]any)
	if !ok {
		return ""
	}
	name, _ := fields["name"].(string)
	return name
}

// list changes a list of named objects item by item.
func (p *patcher) list(path string, raw, before, after []any) []any {
	index := func(list []any, name string) int {
		return slices.IndexFunc(list, func(item any) bool { return nameOf(item) == name })
	}
	for i := len(raw) - 1; i >= 0; i-- {
		if index(after, nameOf(raw[i])) < 0 {
			p.add(operation{Op: "remove", Path: path + "/" + strconv.Itoa(i)})
			raw = slices.Delete(raw, i, i+1)
		}
	}
	for i, item := range after {
		at := path + "/" + strconv.Itoa(i)
		name := nameOf(item)
		found := index(raw, name)
		if found < 0 {
			p.add(operation{Op: "add", Path: at, Value: item})
			raw = slices.Insert(raw, i, item)
			continue
		}
		if found != i {
			p.add(operation{Op: "move", From: path + "/" + strconv.Itoa(found), Path: at})
			moved := raw[found]
			raw = slices.Insert(slices.Delete(raw, found, found+1), i, moved)
		}
		now, _ := raw[i].(map[string]any)
		to, _ := item.(map[string]any)
		from := map[string]any{}
		if k := index(before, name); k >= 0 {
			from, _ = before[k].(map[string]any)
		}
		p.object(at, now, from, to)
	}
	return raw
}
