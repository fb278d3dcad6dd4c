// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/outrigger-mesh/outrigger/controlplane/analyze"
)

// mistaken has one error, one warning and one info.
const mistaken = `apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, ports: [{name: web, port: 80}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: other, namespace: shop}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: shop}
spec:
  hosts: [web]
  http: [{route: [{destination: {host: wbe}}]}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: web, namespace: shop}
spec: {host: wbe}
`

func TestAnalyzeFlags(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte(mistaken), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{".hidden/a.yaml", ".hidden.yaml", "deep/a.yaml"} {
		path := filepath.Join(filepath.Dir(file), name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("kind: [\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		args   string
		code   int
		has    string
		hasNot string
	}{
		"stdin":            {"-", 1, "ERROR IST0101 VirtualService/shop/web  standard input:15", ""},
		"a file":           {"-f " + file, 1, "1 error, 1 warning, 1 info in 3 objects; 1 other skipped", ""},
		"a directory":      {filepath.Dir(file) + " --recursive=false", 1, "1 error, 1 warning, 1 info in 3", ""},
		"subdirectories":   {filepath.Dir(file), 1, "2 errors, 1 warning, 1 info in 3", ""},
		"a code":           {"- --code IST0118", 0, "INFO IST0118 Service/shop/web", "IST0101"},
		"threshold":        {"- --code IST0118 --failure-threshold info", 1, "IST0118", ""},
		"output":           {"- --output-threshold error", 1, "1 error, 0 warnings, 0 info", "IST0174"},
		"suppressed":       {"- --suppress IST0101=VirtualService/shop/* --failure-threshold error", 0, "IST0174", "IST0101"},
		"as in istioctl":   {"- -S IST0101=VirtualService_web.shop", 0, "IST0174", "IST0101"},
		"another object":   {"- --suppress IST0101=VirtualService/shop/other", 1, "IST0101", ""},
		"a namespace":      {"- -n other", 0, "0 errors", "IST0101"},
		"all namespaces":   {"- -n other -A", 1, "IST0101", ""},
		"json":             {"- -o json --code IST0101", 1, `"code": "IST0101"`, "IST0174"},
		"yaml":             {"- -o yaml --code IST0101", 1, "code: IST0101", ""},
		"codes":            {"-L", 0, "OUT0002  ", ""},
		"unknown code":     {"- --code IST9999", 2, "--code IST9999 is unknown", ""},
		"absent code":      {"- --suppress IST0140", 2, "the code is unknown", ""},
		"wrong object":     {"- --suppress IST0101=a/b/c/d", 2, "write CODE, or CODE=KIND/NAMESPACE/NAME", ""},
		"wrong severity":   {"- --failure-threshold bad", 2, "write error, warning or info", ""},
		"nothing":          {"--use-kube=false", 2, "nothing to analyze", ""},
		"no such file":     {"absent.yaml", 2, "no such file", ""},
		"no control plane": {"", 2, "name one with --control", ""},
		"two mesh configs": {"-k --mesh mesh.yaml", 2, "has its own mesh config", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := append([]string{"analyze"}, strings.Fields(c.args)...)
			for i := range args {
				args[i] = strings.ReplaceAll(args[i], "_", " ")
			}
			out, errs, code := runWith(t, mistaken, args...)
			if code != c.code || !strings.Contains(out+errs, c.has) || c.hasNot != "" && strings.Contains(out, c.hasNot) {
				t.Errorf("code %d, want %d with %q and without %q:\n%s%s", code, c.code, c.has, c.hasNot, out, errs)
			}
			if name == "codes" || name == "json" || name == "yaml" {
				return
			}
			for line := range strings.Lines(out) {
				if utf8.RuneCountInString(line) > tableWidth+1 && !strings.Contains(line, file) {
					t.Errorf("the line has more than %d characters: %s", tableWidth, line)
				}
			}
		})
	}
}

// TestAnalyzeExamples analyzes the examples of the repository: the meshes with their configuration,
// and other files one by one, as they are applied.
func TestAnalyzeExamples(t *testing.T) {
	t.Parallel()
	const examples = "../../examples"
	runs := [][]string{{"--mesh", examples + "/shop/mesh.yaml"}, {"--mesh", examples + "/bookinfo/mesh.yaml"}}
	for pattern, mesh := range map[string]string{
		"bookinfo/rules/*.yaml": "bookinfo/mesh.yaml", "limits/*.yaml": "shop/mesh.yaml", "authorization/*.yaml": "", "kubernetes/*.yaml": "",
	} {
		files, err := filepath.Glob(filepath.Join(examples, pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, error %v", pattern, len(files), err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, ".requests.yaml") {
				continue
			}
			run := []string{file}
			if mesh != "" {
				run = append(run, "--mesh", filepath.Join(examples, mesh))
			}
			runs = append(runs, run)
		}
	}
	for _, args := range runs {
		out, errs, code := run(t, append([]string{"analyze"}, args...)...)
		switch {
		case strings.HasSuffix(args[0], "custom-missing.yaml") && code == 0: // its provider may be in the mesh config
		case code != 0 || !strings.Contains(out, "0 errors"):
			t.Errorf("%q: code %d\n%s%s", args, code, out, errs)
		}
	}
}

// TestAnalyzeMesh finds a mistake beside the workloads of a mesh file.
func TestAnalyzeMesh(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"mesh.yaml":      "config: config\nworkloads:\n- name: web\n  command: [absent]\n  port: 9000\n- name: other\n  command: [absent]\n  port: 9001\n",
		"config/vs.yaml": "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: web}\nspec: {hosts: [web], http: [{route: [{destination: {host: web, subset: v2}}]}]}\n",
		"new.yaml":       "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: web}\nspec: {hosts: [web], http: [{route: [{destination: {host: web}}]}]}\n",
		"sidecar.yaml":   "apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: a}\nspec: {workloadSelector: {labels: {app: web}}, egress: [{hosts: [\"./*\"]}]}\n",
		"bad.yaml":       "workloads: []\n",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	if out, errs, code := run(t, "analyze", "--mesh", at("mesh.yaml")); code != 1 || !strings.Contains(out, `has the subset "v2"`) {
		t.Errorf("code %d:\n%s%s", code, out, errs)
	}
	if out, errs, code := run(t, "analyze", "--mesh", at("mesh.yaml"), at("new.yaml")); code != 0 {
		t.Errorf("the file replaces no object: code %d:\n%s%s", code, out, errs)
	}
	out, _, _ := run(t, "analyze", "--mesh", at("mesh.yaml"), at("sidecar.yaml"), "-o", "json")
	if !strings.Contains(out, "IST0110") || !strings.Contains(out, at("mesh.yaml")+":3") && !strings.Contains(out, at("sidecar.yaml")+":1") {
		t.Errorf("two Sidecars of one workload are not found: %s", out)
	}
	if _, errs, code := run(t, "analyze", "--mesh", at("bad.yaml")); code != 2 || !strings.Contains(errs, "workloads") {
		t.Errorf("a mesh file without workloads: code %d, %s", code, errs)
	}
}

// TestAnalyzeRunning asks a control plane.
func TestAnalyzeRunning(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ParseForm() != nil || r.URL.Path != "/debug/analyze" || r.PostForm.Get("namespace") != "shop" {
			http.Error(w, "the form is wrong", http.StatusBadRequest)
			return
		}
		result := analyze.Result{Objects: 7, Findings: []analyze.Finding{{
			Code: "IST0101", Severity: analyze.Error, Object: analyze.Object{Kind: "VirtualService", Namespace: "shop", Name: "web"}, Source: r.PostForm.Get("source"), Message: "No.", Cure: "Yes.",
		}}}
		_ = json.NewEncoder(w).Encode(result) // a client that is gone needs no answer
	}))
	t.Cleanup(s.Close)
	at := strings.TrimPrefix(s.URL, "http://")
	for want, args := range map[string][]string{
		"ERROR IST0101 VirtualService/shop/web\n":                 {"--control", at, "-n", "shop"},
		"ERROR IST0101 VirtualService/shop/web  standard input\n": {"--control", at, "-n", "shop", "-"},
	} {
		out, errs, code := runWith(t, "", append([]string{"analyze"}, args...)...)
		if code != 1 || !strings.HasPrefix(out, want) || !strings.Contains(out, "1 error, 0 warnings, 0 info in 7 objects") {
			t.Errorf("%q: code %d\n%s%s", args, code, out, errs)
		}
	}
	change := analyze.Change{Objects: "an object"}
	if r, err := AnalyzeChange(t.Context(), at+",127.0.0.1:1", nil, "fs:///absent", change); err == nil || errors.Is(err, analyze.ErrNoControl) || len(r.Findings) > 0 {
		t.Error("an error of the control plane is an analysis")
	}
	if _, err := AnalyzeChange(t.Context(), "", nil, "fs:///absent", change); !errors.Is(err, analyze.ErrNoControl) {
		t.Error("no control plane analyzes")
	}
	if _, errs, code := run(t, "analyze", "--control", at); code != 1 || !strings.Contains(errs, "the form is wrong") {
		t.Errorf("code %d, %s", code, errs)
	}
}
