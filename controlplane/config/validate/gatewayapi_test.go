// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package validate

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
)

// TestGatewayTables compares the tables of the Gateway API with its definitions: constraints,
// required fields and defaults.
func TestGatewayTables(t *testing.T) {
	t.Parallel()
	defined := definitions(t, "experimental")
	for _, s := range schema.All() {
		if s.Group != schema.GroupGateway {
			continue
		}
		d := defined[s.Name]
		if d == nil {
			t.Errorf("the module has no definition of %s", s.Name)
			continue
		}
		compareTables(t, reflect.TypeOf(s.NewSpec()).Elem(), d.schema, s.Name)
	}
}

func compareTables(t *testing.T, owner reflect.Type, sch map[string]any, path string) {
	t.Helper()
	properties := at(sch, "properties")
	required, _ := sch["required"].([]any)
	for _, f := range schema.StructFields(owner) {
		where := path + "." + f.JSONName
		field := at(properties, f.JSONName)
		if field == nil {
			t.Errorf("%s is missing from the definition", where)
			continue
		}
		delete(properties, f.JSONName)
		if want := slices.Contains(required, any(f.JSONName)); requiredField(f) != want {
			t.Errorf("%s: required is %t, want %t", where, requiredField(f), want)
		}
		compareDefault(t, f, field, where)
		compareField(t, f, field, where)
	}
	for name := range properties {
		t.Errorf("%s.%s is missing from the struct", path, name)
	}
}

func compareDefault(t *testing.T, f schema.StructField, field map[string]any, where string) {
	t.Helper()
	got, want := "", ""
	if preset, ok := defaultValues[f.Key()]; ok {
		v := reflect.New(reflect.StructOf([]reflect.StructField{{Name: "X", Type: reflect.TypeOf(preset()), Tag: `json:"x"`}})).Elem()
		v.Field(0).Set(reflect.ValueOf(preset()))
		defaultValue(v.Field(0))
		raw, err := json.Marshal(v.Field(0).Interface())
		if err != nil {
			t.Fatal(err)
		}
		got = string(raw)
	}
	if preset, ok := field["default"]; ok {
		raw, err := json.Marshal(preset)
		if err != nil {
			t.Fatal(err)
		}
		want = string(raw)
	}
	if got != want {
		t.Errorf("%s: the default is %s, want %s", where, got, want)
	}
}

// compareField compares one field, and recursively the fields in it.
func compareField(t *testing.T, f schema.StructField, field map[string]any, where string) {
	t.Helper()
	typ := f.Type
	for typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	switch typ.Kind() {
	case reflect.Slice, reflect.Map:
		items := schemaItems(field)
		keys, _ := field["x-kubernetes-list-map-keys"].([]any)
		want := limits{least: number0(field["minItems"]), most: number0(field["maxItems"])}
		switch {
		case len(keys) == 1:
			want.unique = fmt.Sprint(keys[0])
		case field["x-kubernetes-list-type"] == "set":
			want.unique = wholeItem
		}
		if typ.Kind() == reflect.Map {
			items, want.most = at(field, "additionalProperties"), number0(field["maxProperties"])
		}
		if got := limitsOf(f); got != want {
			t.Errorf("%s: the limits are %+v, want %+v", where, got, want)
		}
		f.Type = typ.Elem()
		compareField(t, f, items, where+"[]")
	case reflect.Struct:
		if typ.PkgPath() == gatewayPackage {
			compareTables(t, typ, field, where)
		}
	case reflect.String:
		f.Type = typ
		compareText(t, f, field, where)
	case reflect.Int, reflect.Int32:
		values, _ := field["enum"].([]any)
		rule := numberRules[f.Key()]
		_, low := field["minimum"]
		_, high := field["maximum"]
		want := numberRule{bounded: low || high, least: int64(number0(field["minimum"])), most: int64(number0(field["maximum"]))}
		for _, v := range values {
			want.values = append(want.values, int64(number0(v)))
		}
		if diff := cmp.Diff(want, rule, cmp.AllowUnexported(numberRule{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", where, diff)
		}
	}
}

func number0(v any) int {
	n, _ := v.(int)
	return n
}

func compareText(t *testing.T, f schema.StructField, field map[string]any, where string) {
	t.Helper()
	rule := textRules[f.Type]
	if own, ok := fieldTexts[f.Key()]; ok {
		rule = own
	}
	pattern := ""
	if rule.pattern != nil {
		pattern = rule.pattern.String()
	}
	var values []string
	list, _ := field["enum"].([]any)
	for _, v := range list {
		values = append(values, fmt.Sprint(v))
	}
	got := append([]string(nil), rule.values...)
	slices.Sort(got)
	slices.Sort(values)
	want, _ := field["pattern"].(string)
	if want == `^[!-~]+([\t ]?[!-~]+)*$` {
		want = "" // a pattern only of the experimental channel
	}
	want = strings.ReplaceAll(want, `\x60`, "`")
	if pattern != want || rule.least != number0(field["minLength"]) || rule.most != number0(field["maxLength"]) || !slices.Equal(got, values) {
		t.Errorf("%s: the rule is %s %d..%d %v, want %v", where, pattern, rule.least, rule.most, got, field)
	}
}
