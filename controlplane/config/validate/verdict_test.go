// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package validate_test

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/outrigger-mesh/outrigger/controlplane/config/codec"
	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/config/validate"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"go.yaml.in/yaml/v3"
)

// TestGatewayVerdicts modifies valid objects at every path in many ways. It compares the result of
// config.Decode with that of the definitions: those of the experimental channel, which has every
// field, and those of the standard channel as far as it has the fields.
func TestGatewayVerdicts(t *testing.T) {
	t.Parallel()
	standard, experimental := validate.Definitions(t, "standard"), validate.Definitions(t, "experimental")
	good, bad := 0, 0
	for _, path := range validationFiles(t, "good", "bad") {
		object := readObject(t, path)
		d, s := experimental[object.Kind], standard[object.Kind]
		if d == nil || !strings.HasPrefix(object.APIVersion, schema.GroupGateway+"/") {
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
			_, problems := codec.Decode("x", raw)
			problems = slices.DeleteFunc(problems, func(p model.Problem) bool { return p.Warning })
			faults := d.Judge(validate.CopyJSON(spec))
			if (len(problems) == 0) != (len(faults) == 0) && !differs(string(raw), faults) {
				t.Errorf("%s\n  config.Decode: %v\n  definition:    %v", raw, problems, faults)
			}
			if len(faults) == 0 {
				good++
				continue
			}
			bad++
			if faults := s.Judge(validate.CopyJSON(spec)); len(faults) == 0 && len(problems) > 0 {
				t.Errorf("%s\n  config.Decode: %v\n  the standard channel accepts it", raw, problems)
			}
		}
	}
	t.Logf("%d accepted, %d refused", good, bad)
	if good < 100 || bad < 1000 {
		t.Errorf("only %d accepted and %d rejected objects were tested", good, bad)
	}
}

// differs reports whether the results for an object differ on purpose.
func differs(raw string, faults []string) bool {
	// What only the experimental channel rejects is a warning.
	if len(faults) > 0 && !slices.ContainsFunc(faults, func(f string) bool {
		return !strings.HasSuffix(f, "does not match ^[!-~]+([\\t ]?[!-~]+)*$") && !strings.Contains(f, "Rule name must be unique")
	}) {
		return true
	}
	for _, text := range []string{
		// The definition has no bounds; the type of the field is uint16.
		`"maxSize":-1`, `"maxSize":65536`, `"maxSize":1000001`,
		// The struct cannot distinguish this from an address without a value, which is valid.
		`{"type":"Hostname","value":""}`,
	} {
		if strings.Contains(raw, text) {
			return true
		}
	}
	return false
}

// TestDefaultsMatchDefinitions compares the defaults that config.Decode sets with those of
// the API server.
func TestDefaultsMatchDefinitions(t *testing.T) {
	t.Parallel()
	defined := validate.Definitions(t, "experimental")
	for _, path := range validationFiles(t, "good") {
		object := readObject(t, path)
		d := defined[object.Kind]
		if d == nil || !strings.HasPrefix(object.APIVersion, schema.GroupGateway+"/") {
			continue
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		objects, problems := codec.Decode(path, raw)
		if len(objects) != 1 {
			t.Errorf("%s: problems: %v", path, problems)
			continue
		}
		got, err := json.Marshal(objects[0].Spec)
		if err != nil {
			t.Fatal(err)
		}
		spec := validate.CopyJSON(object.Spec)
		validate.SetDefaults(d.Schema(), spec)
		var tree any
		if err := yaml.Unmarshal(got, &tree); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(spec, validate.CopyJSON(tree)); diff != "" {
			t.Errorf("%s (-API server +config.Decode):\n%s", path, diff)
		}
	}
}

// plainObject is an object whose spec is a tree.
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
	o.Spec = validate.CopyJSON(o.Spec)
	return o
}

func validationFiles(t *testing.T, folders ...string) (paths []string) {
	t.Helper()
	for _, folder := range folders {
		found, err := filepath.Glob(filepath.Join("testdata", folder, "*.yaml"))
		if err != nil || len(found) == 0 {
			t.Fatalf("no files in %s: error %v", folder, err)
		}
		paths = append(paths, found...)
	}
	return paths
}

// mutator returns changed copies of a tree.
type mutator struct {
	random *rand.Rand
	root   any
	trees  []any
}

func (m *mutator) all(root any) {
	m.root = root
	m.visit(root, func(v any) { m.root = v })
}

// try adds a copy of the tree with each other value at one path. It skips one of three values to
// shorten the test.
func (m *mutator) try(set func(any), now any, values ...any) {
	for _, v := range values {
		if m.random.IntN(3) == 0 {
			continue
		}
		set(v)
		m.trees = append(m.trees, validate.CopyJSON(m.root))
	}
	set(now)
}

func (m *mutator) visit(v any, set func(any)) {
	switch v := v.(type) {
	case map[string]any:
		m.try(set, v, map[string]any{}, []any{}, "text", nil)
		for k, member := range field.Sorted(v) {
			delete(v, k)
			m.trees = append(m.trees, validate.CopyJSON(m.root))
			v[k] = member
			m.visit(member, func(x any) { v[k] = x })
		}
		v["unheardOf"] = "x"
		m.trees = append(m.trees, validate.CopyJSON(m.root))
		delete(v, "unheardOf")
	case []any:
		long := make([]any, 0, 70)
		for range 70 {
			if len(v) > 0 {
				long = append(long, validate.CopyJSON(v[0]))
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
