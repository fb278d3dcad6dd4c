// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package validate

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	"go.yaml.in/yaml/v3"
)

// definition is the schema of a CustomResourceDefinition. It validates JSON like the API server, as
// far as the definitions of the Gateway API require.
type definition struct {
	rules  rules
	schema map[string]any
}

// definitions returns the definitions of one channel of the Gateway API, by kind.
func definitions(t *testing.T, channel string) map[string]*definition {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/gateway-api").Output()
	if err != nil {
		t.Fatal(err)
	}
	paths, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(out)), "config/crd", channel, "gateway.networking.k8s.io_*s.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]*definition{}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var crd struct {
			Spec struct {
				Names    struct{ Kind string }
				Versions []struct {
					Storage bool
					Schema  struct {
						OpenAPIV3Schema map[string]any `yaml:"openAPIV3Schema"`
					}
				}
			}
		}
		if err := yaml.Unmarshal(data, &crd); err != nil {
			t.Fatal(err)
		}
		for _, v := range crd.Spec.Versions {
			if v.Storage {
				found[crd.Spec.Names.Kind] = &definition{schema: at(v.Schema.OpenAPIV3Schema, "properties", "spec"), rules: newRules(t)}
			}
		}
	}
	if len(found) < 9 {
		t.Fatalf("%d definitions in the module, want at least 9", len(found))
	}
	return found
}

// at returns the mapping at a path of keys, or nil if a key is missing.
func at(tree map[string]any, keys ...string) map[string]any {
	for _, k := range keys {
		tree, _ = tree[k].(map[string]any)
	}
	return tree
}

// judge sets the defaults of a spec and returns the reasons why the API server would reject it.
func (d *definition) judge(spec any) []string {
	setDefaults(d.schema, spec)
	if faults := judge(d.schema, spec, "spec"); len(faults) > 0 {
		return faults
	}
	return d.rules.judge(d.schema, spec, "spec")
}

// setDefaults sets the defaults of a schema and removes nulls. The API server also removes the
// nulls of free-form mappings; Decode rejects them.
func setDefaults(schema map[string]any, v any) {
	switch v := v.(type) {
	case map[string]any:
		for k, member := range v {
			if member == nil && at(schema, "properties", k) != nil {
				delete(v, k)
			}
		}
		for name := range at(schema, "properties") {
			member := at(schema, "properties", name)
			if preset, ok := member["default"]; ok && v[name] == nil {
				v[name] = copyJSON(preset)
			}
			if v[name] != nil {
				setDefaults(member, v[name])
			}
		}
	case []any:
		for _, item := range v {
			setDefaults(at(schema, "items"), item)
		}
	}
}

// copyJSON returns a copy of a tree with integers as int64.
func copyJSON(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, member := range v {
			out[k] = copyJSON(member)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, item := range v {
			out[i] = copyJSON(item)
		}
		return out
	case int:
		return int64(v)
	}
	return v
}

// judge validates types and the constraints of single values.
func judge(schema map[string]any, v any, path string) (faults []string) {
	fail := func(format string, args ...any) {
		faults = append(faults, path+" "+fmt.Sprintf(format, args...))
	}
	bound := func(key string) (int64, bool) {
		n, ok := schema[key].(int)
		return int64(n), ok
	}
	between := func(n int64, least, most string) {
		if low, ok := bound(least); ok && n < low {
			fail("%s %d", least, low)
		}
		if high, ok := bound(most); ok && n > high {
			fail("%s %d", most, high)
		}
	}
	if values, ok := schema["enum"].([]any); ok && !slices.ContainsFunc(values, func(x any) bool { return fmt.Sprint(x) == fmt.Sprint(v) }) {
		fail("is none of %v", values)
	}
	kind, _ := schema["type"].(string)
	switch v := v.(type) {
	case map[string]any:
		if kind != "object" {
			fail("is an object, not %s", kind)
			return faults
		}
		between(int64(len(v)), "minProperties", "maxProperties")
		return append(faults, judgeObject(schema, v, path)...)
	case []any:
		if kind != "array" {
			fail("is a list, not %s", kind)
			return faults
		}
		between(int64(len(v)), "minItems", "maxItems")
		return append(faults, judgeList(schema, v, path)...)
	case string:
		if kind != "string" {
			fail("is a text, not %s", kind)
			return faults
		}
		between(int64(utf8.RuneCountInString(v)), "minLength", "maxLength")
		if p, ok := schema["pattern"].(string); ok && !regexp.MustCompile(p).MatchString(v) {
			fail("does not match %s", p)
		}
	case int64:
		if kind != "integer" {
			fail("is a number, not %s", kind)
			return faults
		}
		between(v, "minimum", "maximum")
	case bool:
		if kind != "boolean" {
			fail("is a boolean, not %s", kind)
		}
	default:
		fail("is %T", v)
	}
	return faults
}

func judgeObject(schema, v map[string]any, path string) (faults []string) {
	fields := at(schema, "properties")
	for k, member := range v {
		switch extra := at(schema, "additionalProperties"); {
		case fields[k] != nil:
			faults = append(faults, judge(at(fields, k), member, path+"."+k)...)
		case extra != nil:
			faults = append(faults, judge(extra, member, path+"."+k)...)
		default:
			faults = append(faults, path+"."+k+" is unknown")
		}
	}
	required, _ := schema["required"].([]any)
	for _, name := range required {
		if k, ok := name.(string); ok && v[k] == nil {
			faults = append(faults, path+"."+k+" is required")
		}
	}
	return faults
}

func judgeList(schema map[string]any, v []any, path string) (faults []string) {
	seen := map[string]bool{}
	keys, _ := schema["x-kubernetes-list-map-keys"].([]any)
	for i, item := range v {
		at := field.Index(path, i)
		faults = append(faults, judge(schemaItems(schema), item, at)...)
		var id any
		switch object, _ := item.(map[string]any); {
		case schema["x-kubernetes-list-type"] == "set":
			id = item
		case len(keys) == 1 && object != nil:
			name, _ := keys[0].(string)
			id = object[name]
		default:
			continue
		}
		raw, _ := json.Marshal(id) // cannot fail for JSON values
		if seen[string(raw)] {
			faults = append(faults, at+" is there twice")
		}
		seen[string(raw)] = true
	}
	return faults
}

func schemaItems(schema map[string]any) map[string]any { return at(schema, "items") }
