// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package config

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// TestGatewayTables holds the tables of the Gateway API to the definitions:
// what each field has to be, which fields must be there, and the defaults.
func TestGatewayTables(t *testing.T) {
	t.Parallel()
	defined := definitions(t, "experimental")
	for _, s := range schemas {
		if s.Group != groupGateway {
			continue
		}
		d := defined[s.Name]
		if d == nil {
			t.Errorf("there is no definition of %s", s.Name)
			continue
		}
		compareTables(t, reflect.TypeOf(s.spec).Elem(), d.schema, s.Name)
	}
}

func compareTables(t *testing.T, owner reflect.Type, schema map[string]any, path string) {
	t.Helper()
	properties := at(schema, "properties")
	required, _ := schema["required"].([]any)
	for _, f := range structFields(owner) {
		where := path + "." + f.name
		field := at(properties, f.name)
		if field == nil {
			t.Errorf("%s is not in the definition", where)
			continue
		}
		delete(properties, f.name)
		if want := slices.Contains(required, any(f.name)); requiredField(f) != want {
			t.Errorf("%s: required is %t, want %t", where, requiredField(f), want)
		}
		compareDefault(t, f, field, where)
		compareField(t, f, field, where)
	}
	for name := range properties {
		t.Errorf("%s.%s has no field", path, name)
	}
}

func compareDefault(t *testing.T, f structField, field map[string]any, where string) {
	t.Helper()
	got, want := "", ""
	if preset, ok := defaultValues[f.key()]; ok {
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

// compareField compares one field, and goes on with what is in it.
func compareField(t *testing.T, f structField, field map[string]any, where string) {
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
		rule := numberRules[f.key()]
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

func compareText(t *testing.T, f structField, field map[string]any, where string) {
	t.Helper()
	rule := textRules[f.Type]
	if own, ok := fieldTexts[f.key()]; ok {
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
		want = "" // of the experimental channel only
	}
	want = strings.ReplaceAll(want, `\x60`, "`")
	if pattern != want || rule.least != number0(field["minLength"]) || rule.most != number0(field["maxLength"]) || !slices.Equal(got, values) {
		t.Errorf("%s: the rule is %s %d..%d %v, want %v", where, pattern, rule.least, rule.most, got, field)
	}
}

// TestGatewayVerdicts changes good objects in every place and in many ways,
// and compares the verdict of Decode with that of the definitions: of the
// experimental channel, which knows every field, and of the standard channel
// as far as it knows the fields.
func TestGatewayVerdicts(t *testing.T) {
	t.Parallel()
	standard, experimental := definitions(t, "standard"), definitions(t, "experimental")
	good, bad := 0, 0
	for _, path := range validationFiles(t, "good", "bad") {
		object := readObject(t, path)
		d, s := experimental[object.Kind], standard[object.Kind]
		if d == nil || !strings.HasPrefix(object.APIVersion, groupGateway+"/") {
			continue
		}
		m := &mutator{random: rand.New(rand.NewPCG(1, uint64(len(path))))}
		if filepath.Base(filepath.Dir(path)) == "good" {
			m.all(object.Spec)
		}
		for _, spec := range append(m.trees, object.Spec) {
			object.Spec = spec
			raw, err := json.Marshal(object)
			if err != nil {
				t.Fatal(err)
			}
			_, problems := Decode("x", raw)
			problems = slices.DeleteFunc(problems, func(p model.Problem) bool { return p.Warning })
			faults := d.judge(copyJSON(spec))
			if (len(problems) == 0) != (len(faults) == 0) && !differs(string(raw), faults) {
				t.Errorf("%s\n  we say:         %v\n  definition says: %v", raw, problems, faults)
			}
			if len(faults) == 0 {
				good++
				continue
			}
			bad++
			if faults := s.judge(copyJSON(spec)); len(faults) == 0 && len(problems) > 0 {
				t.Errorf("%s\n  we say: %v\n  the standard channel accepts it", raw, problems)
			}
		}
	}
	t.Logf("%d accepted, %d refused", good, bad)
	if good < 100 || bad < 1000 {
		t.Errorf("only %d accepted and %d refused objects were tried", good, bad)
	}
}

// differs names the objects for which the verdicts differ on purpose.
func differs(raw string, faults []string) bool {
	// What only the experimental channel refuses is a warning.
	if len(faults) > 0 && !slices.ContainsFunc(faults, func(f string) bool {
		return !strings.HasSuffix(f, "does not match ^[!-~]+([\\t ]?[!-~]+)*$") && !strings.Contains(f, "Rule name must be unique")
	}) {
		return true
	}
	for _, text := range []string{
		// The definition has no bounds; the field's type is uint16.
		`"maxSize":-1`, `"maxSize":65536`, `"maxSize":1000001`,
		// The struct cannot tell this from an address without value, which is fine.
		`{"type":"Hostname","value":""}`,
	} {
		if strings.Contains(raw, text) {
			return true
		}
	}
	return false
}

// TestDefaultsAreThoseOfTheDefinitions compares what Decode fills in with what
// the API server would.
func TestDefaultsAreThoseOfTheDefinitions(t *testing.T) {
	t.Parallel()
	defined := definitions(t, "experimental")
	for _, path := range validationFiles(t, "good") {
		object := readObject(t, path)
		d := defined[object.Kind]
		if d == nil || !strings.HasPrefix(object.APIVersion, groupGateway+"/") {
			continue
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		objects, problems := Decode(path, raw)
		if len(objects) != 1 {
			t.Errorf("%v", problems)
			continue
		}
		got, err := json.Marshal(objects[0].Spec)
		if err != nil {
			t.Fatal(err)
		}
		spec := copyJSON(object.Spec)
		setDefaults(d.schema, spec)
		var tree any
		if err := yaml.Unmarshal(got, &tree); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(spec, copyJSON(tree)); diff != "" {
			t.Errorf("%s (-API server +Decode):\n%s", path, diff)
		}
	}
}

// plainObject is an object as a tree.
type plainObject struct {
	APIVersion string         `json:"apiVersion" yaml:"apiVersion"`
	Kind       string         `json:"kind"`
	Metadata   map[string]any `json:"metadata"`
	Spec       any            `json:"spec"`
}

func readObject(t *testing.T, path string) plainObject {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var o plainObject
	if err := yaml.Unmarshal(data, &o); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	o.Spec = copyJSON(o.Spec)
	return o
}

func validationFiles(t *testing.T, folders ...string) (paths []string) {
	t.Helper()
	for _, folder := range folders {
		found, err := filepath.Glob(filepath.Join("testdata/validation", folder, "*.yaml"))
		if err != nil || len(found) == 0 {
			t.Fatalf("no files in %s: %v", folder, err)
		}
		paths = append(paths, found...)
	}
	return paths
}

// mutator gives changed copies of a tree.
type mutator struct {
	random *rand.Rand
	root   any
	trees  []any
}

func (m *mutator) all(root any) {
	m.root = root
	m.visit(root, func(v any) { m.root = v })
}

// try keeps a copy of the tree with another value in one place. It leaves out
// one of three, which keeps the test short.
func (m *mutator) try(set func(any), now any, values ...any) {
	for _, v := range values {
		if m.random.IntN(3) == 0 {
			continue
		}
		set(v)
		m.trees = append(m.trees, copyJSON(m.root))
	}
	set(now)
}

func (m *mutator) visit(v any, set func(any)) {
	switch v := v.(type) {
	case map[string]any:
		m.try(set, v, map[string]any{}, []any{}, "text", nil)
		for k, field := range sorted(v) {
			delete(v, k)
			m.trees = append(m.trees, copyJSON(m.root))
			v[k] = field
			m.visit(field, func(x any) { v[k] = x })
		}
		v["unheardOf"] = "x"
		m.trees = append(m.trees, copyJSON(m.root))
		delete(v, "unheardOf")
	case []any:
		long := make([]any, 0, 70)
		for range 70 {
			if len(v) > 0 {
				long = append(long, copyJSON(v[0]))
			}
		}
		m.try(set, v, []any{}, append(slices.Clone(v), v...), long, map[string]any{}, "text")
		for i, item := range v {
			m.visit(item, func(x any) { v[i] = x })
		}
	case string:
		m.try(set, v, "", "x", v+"x", strings.ToUpper(v), strings.ToLower(v), "*", "*.a", "a b", "/", "/a//b", "//", "/../a", "/a/..", "/%2F", "1.2.3.4",
			"é", "-a", "a-", strings.Repeat("a", 64), strings.Repeat("a", 300), strings.Repeat("a", 5000), "Exact", "RegularExpression", "Gateway",
			"Service", "Secret", "http", "HTTP", "TCP", "10s", "0s", "1h", "System", "Hostname", "URI", "Terminate", "Selector", "None",
			[]string{"CORS", "URLRewrite", "RequestRedirect", "ExtensionRef", "RequestMirror"}[m.random.IntN(5)], int64(1), true, nil)
	case int64:
		m.try(set, v, int64(0), int64(1), int64(-1), int64(99), int64(101), int64(302), int64(500), int64(65535), int64(65536), int64(1_000_001), "80", nil)
	case bool:
		m.try(set, v, !v, "true")
	}
}
