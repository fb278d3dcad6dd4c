// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package install

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
)

// parseValues reads a file of values; name is its name in errors.
func parseValues(name string, doc []byte) (map[string]any, error) {
	var values map[string]any
	if err := yaml.UnmarshalStrict(doc, &values); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if values == nil {
		values = map[string]any{}
	}
	return whole(values).(map[string]any), nil
}

// whole makes integers of numbers without a fraction, so that templates do not print them with an
// exponent.
func whole(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			v[key] = whole(value)
		}
	case []any:
		for i, value := range v {
			v[i] = whole(value)
		}
	case float64:
		if v == math.Trunc(v) && math.Abs(v) < 1<<53 {
			return int64(v)
		}
	}
	return v
}

// merge is overlay, and then a null removes a value, such as a default of the chart.
func merge(base, over map[string]any) map[string]any {
	return withoutNulls(overlay(base, over))
}

// overlay returns the values of both; of two with one name, the second counts.
func overlay(base, over map[string]any) map[string]any {
	out := maps.Clone(base)
	for key, value := range over {
		inner, isMap := value.(map[string]any)
		outer, wasMap := out[key].(map[string]any)
		if isMap && wasMap {
			value = overlay(outer, inner)
		}
		out[key] = value
	}
	return out
}

func withoutNulls(values map[string]any) map[string]any {
	out := map[string]any{}
	for key, value := range values {
		if inner, ok := value.(map[string]any); ok {
			value = withoutNulls(inner)
		}
		if value != nil {
			out[key] = value
		}
	}
	return out
}

// maxIndex bounds the index of a list in --set.
const maxIndex = 1000

// set applies what --set says: path=value, with commas between several. A path has names with dots
// between them and [n] for an entry of a list; a value in braces is a list. A backslash takes the
// meaning from the next character.
func set(values map[string]any, text string) error {
	for _, assignment := range split(text, ',') {
		path, value, ok := strings.Cut(assignment, "=")
		if !ok || path == "" {
			return fmt.Errorf("--set %s: it must be path=value, such as image.tag=v1", field.Quote(assignment))
		}
		if err := assign(values, split(path, '.'), parseValue(value)); err != nil {
			return fmt.Errorf("--set %s: %w", field.Quote(assignment), err)
		}
	}
	return nil
}

// split cuts a text at a separator that is neither in braces nor after a backslash.
func split(text string, separator byte) []string {
	var parts []string
	start, depth := 0, 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '{':
			depth++
		case '}':
			depth--
		case separator:
			if depth <= 0 {
				parts = append(parts, text[start:i])
				start = i + 1
			}
		}
	}
	return append(parts, text[start:])
}

// plain returns a text without its backslashes.
func plain(text string) string {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' && i+1 < len(text) {
			i++
		}
		b.WriteByte(text[i])
	}
	return b.String()
}

// parseValue returns a value with the type that its text has.
func parseValue(text string) any {
	if inner, ok := strings.CutPrefix(text, "{"); ok && strings.HasSuffix(inner, "}") {
		list := []any{}
		if inner = strings.TrimSuffix(inner, "}"); inner != "" {
			for _, item := range split(inner, ',') {
				list = append(list, parseValue(item))
			}
		}
		return list
	}
	switch text {
	case "null":
		return nil
	case "true":
		return true
	case "false":
		return false
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && (text == "0" || text[0] != '0') {
		return n
	}
	return plain(text)
}

// assign sets the value at a path; maps on the way are made.
func assign(values map[string]any, path []string, value any) error {
	name, index, err := step(path[0])
	if err != nil {
		return err
	}
	if index < 0 {
		if len(path) == 1 {
			values[name] = value
			return nil
		}
		return assign(child(values, name), path[1:], value)
	}
	list, _ := values[name].([]any)
	if index > len(list) {
		return fmt.Errorf("%s has %d entries; set the one at [%d] first", name, len(list), len(list))
	}
	if index == len(list) {
		list = append(list, nil)
	}
	values[name] = list
	if len(path) == 1 {
		list[index] = value
		return nil
	}
	entry, ok := list[index].(map[string]any)
	if !ok {
		entry = map[string]any{}
		list[index] = entry
	}
	return assign(entry, path[1:], value)
}

// step reads one step of a path. The index is negative if there is none.
func step(text string) (name string, index int, err error) {
	name, number, indexed := strings.Cut(text, "[")
	if name = plain(name); name == "" {
		return "", 0, fmt.Errorf("a name of the path is empty")
	}
	if !indexed {
		return name, -1, nil
	}
	index, err = strconv.Atoi(strings.TrimSuffix(number, "]"))
	if err != nil || index < 0 || index > maxIndex || !strings.HasSuffix(number, "]") {
		return "", 0, fmt.Errorf("%s is not an index: write a number from 0 to %d in brackets", field.Quote(text), maxIndex)
	}
	return name, index, nil
}

// child returns the map with a name; another value there is replaced.
func child(values map[string]any, name string) map[string]any {
	inner, ok := values[name].(map[string]any)
	if !ok {
		inner = map[string]any{}
		values[name] = inner
	}
	return inner
}

// show returns a value as messages show it.
func show(v any) string {
	doc, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return field.Clip(string(doc), 80)
}
