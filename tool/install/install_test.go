// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package install

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSet(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"a=b":                             `{"a":"b","n":{"x":1}}`,
		"a=b,c.d=e":                       `{"a":"b","c":{"d":"e"},"n":{"x":1}}`,
		"n.x=2":                           `{"n":{"x":2}}`,
		"n=2":                             `{"n":2}`,
		"n=null":                          `{"n":null}`,
		"n.x=":                            `{"n":{"x":""}}`,
		"a=true,b=0,c=007,d=1.5":          `{"a":true,"b":0,"c":"007","d":"1.5","n":{"x":1}}`,
		"a={b,1},c={}":                    `{"a":["b",1],"c":[],"n":{"x":1}}`,
		"a[0].b=c,a[1]=d,a[0].e=f":        `{"a":[{"b":"c","e":"f"},"d"],"n":{"x":1}}`,
		`a.b\.example\.com/c=d\,e,f=g\\h`: `{"a":{"b.example.com/c":"d,e"},"f":"g\\h","n":{"x":1}}`,
		"a=b=c":                           `{"a":"b=c","n":{"x":1}}`,
	} {
		values := map[string]any{"n": map[string]any{"x": 1}}
		if err := set(values, text); err != nil {
			t.Errorf("set(%s) = %v", text, err)
		}
		if got, err := json.Marshal(values); err != nil || string(got) != want {
			t.Errorf("set(%s): got %s, want %s (error %v)", text, got, want, err)
		}
	}
	for text, want := range map[string]string{
		"a":        `--set "a": it must be path=value`,
		"=b":       `it must be path=value`,
		"a..b=c":   "a name of the path is empty",
		"a[x]=b":   `"a[x]" is not an index: write a number from 0 to 1000`,
		"a[9999]=": "is not an index",
		"a[1]=b":   "a has 0 entries; set the one at [0] first",
	} {
		if err := set(map[string]any{}, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("set(%s) = %v, want an error with %s", text, err, want)
		}
	}
}

func FuzzSet(f *testing.F) {
	f.Add(`a.b[0].c={x,y},d\.e=1`)
	f.Fuzz(func(_ *testing.T, text string) {
		_ = set(map[string]any{}, text) // must return
	})
}

// TestValues checks the precedence of values: later files override earlier ones, --set overrides
// all files, and a null removes a default.
func TestValues(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, second := filepath.Join(dir, "first.yaml"), filepath.Join(dir, "second.yaml")
	for file, text := range map[string]string{
		first:  "{replicaCount: 2, image: {hub: a, tag: b}, env: {LARGE: 1000000}}",
		second: "{image: {tag: c}, resources: {requests: {cpu: null}}}",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	given, err := givenValues(strings.NewReader("{logLevel: debug, image: {hub: z}}"), []string{"-", first, second}, []string{"image.hub=d"})
	if err != nil {
		t.Fatal(err)
	}
	c, err := ours("")
	if err != nil {
		t.Fatal(err)
	}
	values := merge(c.values, given)
	got := map[string]any{"replicaCount": values["replicaCount"], "image": values["image"], "logLevel": values["logLevel"], "requests": values["resources"].(map[string]any)["requests"]}
	want := map[string]any{
		"replicaCount": int64(2), "logLevel": "debug", "requests": map[string]any{"memory": "128Mi"},
		"image": map[string]any{"hub": "d", "name": "control", "tag": "c", "digest": "", "pullPolicy": "", "pullSecrets": []any{}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	objects, err := c.render(release{Namespace: "mesh"}, given)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := print(&out, objects); err != nil || !strings.Contains(out.String(), "value: \"1000000\"") {
		t.Errorf("the large number is missing in %s (error %v)", out.String(), err)
	}
	for name, want := range map[string]string{
		"twice.yaml": "already set in map", "text.yaml": "cannot unmarshal string", "none.yaml": "no such file",
	} {
		file := filepath.Join(dir, name)
		if text, ok := map[string]string{"twice.yaml": "{a: 1, a: 2}", "text.yaml": "text"}[name]; ok {
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := givenValues(nil, []string{file}, nil); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got error %v, want one with %s", name, err, want)
		}
	}
}

// TestSchema checks that an error about a value contains its name and the allowed values.
func TestSchema(t *testing.T) {
	t.Parallel()
	c, err := ours("")
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"image.tagg=x":                           `value image.tagg is not known: did you mean "tag"?`,
		"image=x":                                `value image is "x": it must be of type object`,
		"replicaCount=0":                         "value replicaCount is 0: it must be 1 or more",
		"replicaCount=x":                         `value replicaCount is "x": it must be of type integer`,
		"revision=A b":                           `value revision is "A b": it must match ^[a-z0-9]`,
		"revision=" + long:                       `it may have at most 30 characters`,
		"tags={a,b,a}":                           `value tags[2] is a duplicate: "a"`,
		"tags={a,B}":                             `value tags[1] is "B": it must match`,
		"args={}":                                "",
		"env.POD_NAME=x":                         `value env.POD_NAME is "POD_NAME": the chart sets it itself`,
		"env.A={x}":                              `value env.A is ["x"]: it must be of type string or number or boolean`,
		"logLevel=loud":                          `value logLevel is "loud": it must be one of ["debug","info"`,
		"clusterID=":                             "value clusterID is empty: write a text",
		"tolerations[0]=x":                       `value tolerations[0] is "x": it must be of type object`,
		"podDisruptionBudget.maxUnavailable=50%": "",
		"podDisruptionBudget.maxUnavailable=0":   "must be",
		"meshConfig.anything.goes=1":             "",
	} {
		values := map[string]any{}
		if err := set(values, text); err != nil {
			t.Fatal(err)
		}
		_, err := c.render(release{Namespace: "mesh"}, values)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: got error %v, want %s", text, err, want)
		}
	}
	for _, text := range []string{`{"maximum": 3}`, `{"properties": {"a": {"format": "uri"}}}`, `{"additionalProperties": {"if": {}}}`} {
		if _, err := parseSchema([]byte(text)); err == nil {
			t.Errorf("the unsupported keyword in %s was ignored", text)
		}
	}
}

const long = "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz"

func TestSupports(t *testing.T) {
	t.Parallel()
	c, err := ours("")
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range []struct{ major, minor, err string }{
		{"1", "29", ""}, {"1", "36+", ""}, {"2", "0", ""}, {"1", "28", "the version 1.28: Kubernetes 1.29 or newer is needed"}, {"", "", "the version"},
	} {
		if err := c.supports(v.major, v.minor); v.err == "" && err != nil || v.err != "" && (err == nil || !strings.Contains(err.Error(), v.err)) {
			t.Errorf("supports(%s, %s) = %v, want %q", v.major, v.minor, err, v.err)
		}
	}
}

// TestCommands checks that an invalid installation is an error before the cluster is contacted.
func TestCommands(t *testing.T) {
	t.Parallel()
	cfg := Config{Cluster: func(string) (*http.Client, string, error) { return nil, "", errors.New("no cluster") }}
	for _, c := range []struct{ args, out, err string }{
		{"install --set replicaCount=0", "", "value replicaCount is 0"},
		{"install --dry-run --revision x", "name: outrigger-control-x\n", ""},
		{"install --dry-run --set revision=y -n mesh", "name: outrigger-control-y-mesh\n", ""},
		{"install", "", "no cluster"},
		{"uninstall", "", "no cluster"},
		{"install --help", "--force-conflicts", ""},
		{"uninstall --help", "outrigger uninstall --kinds", ""},
	} {
		args := strings.Fields(c.args)
		for _, cmd := range Commands(cfg) {
			if cmd.Name() != args[0] {
				continue
			}
			var out bytes.Buffer
			cmd.SetOut(&out)
			cmd.SetErr(&out)
			cmd.SetArgs(args[1:])
			err := cmd.ExecuteContext(t.Context())
			if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) || !strings.Contains(out.String(), c.out) {
				t.Errorf("%s: got error %v, want %q; output %.200s", c.args, err, c.err, out.String())
			}
		}
	}
}
