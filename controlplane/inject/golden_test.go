// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inject

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/aymanbagabas/go-udiff"
	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/e2e/goldentest"
)

// newInjector returns an injector with a configuration, values and mesh config, all as YAML.
func newInjector(t testing.TB, config, values, mesh string) *Injector {
	t.Helper()
	in := &Injector{Native: true}
	var err error
	if in.Config, err = ParseConfig([]byte(config)); err != nil {
		t.Fatal(err)
	}
	if in.Values, err = ParseValues([]byte(values), "1.0.0"); err != nil {
		t.Fatal(err)
	}
	if in.Mesh, err = meshconfig.Parse([]byte(mesh)); err != nil {
		t.Fatal(err)
	}
	return in
}

// injectorOf returns the injector for a file of testdata, whose first lines contain settings of the
// form "# name: value".
func injectorOf(t testing.TB, doc []byte) *Injector {
	t.Helper()
	settings := map[string]string{}
	for line := range strings.Lines(string(doc)) {
		name, value, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "# "), ": ")
		if !strings.HasPrefix(line, "# ") || !ok {
			break
		}
		settings[name] = value
	}
	in := newInjector(t, settings["config"], settings["values"], settings["mesh"])
	in.Revision, in.Native = settings["revision"], settings["native"] != "false"
	if users := settings["openshift"]; users != "" {
		in.Annotations = func(string) (map[string]string, error) { return map[string]string{uidRange: users}, nil }
	}
	return in
}

// run injects the objects of a file.
func run(t testing.TB, in *Injector, doc []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := in.File(bytes.NewReader(doc), &out, "", func(line string) { t.Log(line) }); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestGolden compares injected pods with golden files. Most of these contain only the differences
// from the pod of plain.yaml. A second injection must change nothing.
func TestGolden(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	first, err := os.ReadFile("testdata/plain.yaml")
	if err != nil {
		t.Fatal(err)
	}
	plain := string(run(t, injectorOf(t, first), first))
	cases := 0
	for _, file := range files {
		if strings.HasSuffix(file, ".out.yaml") {
			continue
		}
		cases++
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			t.Parallel()
			doc, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			in := injectorOf(t, doc)
			got := run(t, in, doc)
			golden, text := strings.TrimSuffix(file, ".yaml")+".out.yaml", string(got)
			if !bytes.HasPrefix(doc, []byte("# golden: full\n")) {
				golden = strings.TrimSuffix(file, ".yaml") + ".out.diff"
				text = udiff.Unified("plain", "this", plain, text)
			}
			goldentest.Check(t, golden, text)
			if diff := cmp.Diff(string(got), string(run(t, in, got))); diff != "" {
				t.Errorf("a second injection changed the result (-first +second):\n%s", diff)
			}
		})
	}
	if cases < 30 {
		t.Errorf("%d cases, want at least 30", cases)
	}
}

// TestFileUnchanged checks that documents into which no proxy is injected stay byte for byte the
// same.
func TestFileUnchanged(t *testing.T) {
	t.Parallel()
	in := newInjector(t, "policy: disabled", "", "")
	for _, doc := range []string{
		"", "\n", "---\n", "# a comment\n", "a: b", "--- # x\na:   b\n---\n\n---\nkind: Other\n",
		"apiVersion: v1\r\nkind: Pod\r\nmetadata: {name: a}\r\nspec: {containers: []}\r\n---\r\nkind: Service\r\n",
		"data: |\n  ---\n  x\n---\nkind: Pod\n",
		"--- {kind: Pod, apiVersion: v1, metadata: {name: a}}\n",
	} {
		var out bytes.Buffer
		if err := in.File(strings.NewReader(doc), &out, "", func(string) {}); err != nil || out.String() != doc {
			t.Errorf("File(%q) = %q, %v; want no change", doc, out.String(), err)
		}
	}
}

func TestFileErrors(t *testing.T) {
	t.Parallel()
	in := newInjector(t, "", "", "")
	for doc, want := range map[string]string{
		"a: b\n---\n\n---\n- 1\n": "the document at line 4: ",
		"a: b\n---\na: [\n":       "the document at line 2: ",
		"{apiVersion: apps/v1, kind: Deployment, metadata: {name: a, namespace: b}, spec: {}}":           "Deployment b/a has no spec.template",
		"{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: 1}}":                        "Pod a: its pod is not valid",
		"{apiVersion: v1, kind: Pod, metadata: []}":                                                      "Pod: ",
		"{apiVersion: v1, kind: List, items: [{}, {apiVersion: batch/v1, kind: Job, metadata: {}}]}":     "items[1]: Job  has no spec.template",
		"{apiVersion: v1, kind: Pod, metadata: {name: a, annotations: {proxy.istio.io/config: 'x: ['}}}": "Pod a: annotation proxy.istio.io/config",
	} {
		var out bytes.Buffer
		err := in.File(strings.NewReader(doc), &out, "", func(string) {})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %v, want one with %q", doc, err, want)
		}
	}
}
