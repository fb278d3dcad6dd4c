// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package bootstrap

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/bootstrap/node"
)

var update = flag.Bool("update", false, "write the golden files")

// goldenInput is testdata/<case>/in.json.
type goldenInput struct {
	ID              node.ID           `json:"id"`
	Variables       map[string]string `json:"variables"`
	Labels          map[string]string `json:"labels"`
	Annotations     map[string]string `json:"annotations"`
	Own             node.Metadata     `json:"own"`
	ProxyConfig     json.RawMessage   `json:"proxyConfig"`
	BindAddress     string            `json:"bindAddress"`
	StateOfTheWorld bool              `json:"stateOfTheWorld"`
}

func TestGolden(t *testing.T) {
	t.Parallel()
	envoy := findEnvoy()
	files, err := filepath.Glob("testdata/*/in.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden cases: %v", err)
	}
	for _, file := range files {
		dir := filepath.Dir(file)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			t.Parallel()
			got := renderGolden(t, file)
			want := filepath.Join(dir, "want.json")
			if *update {
				if err := os.WriteFile(want, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			golden, err := os.ReadFile(want)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(golden), string(got)); diff != "" {
				t.Errorf("differs from %s, run with -update if that is meant:\n%s", want, diff)
			}
			if again := renderGolden(t, file); !bytes.Equal(got, again) {
				t.Error("a second run gives other bytes")
			}
			t.Run("envoy", func(t *testing.T) {
				if envoy == "" {
					t.Skip("no Envoy found: run `make envoy` or set ENVOY")
				}
				validate(t, envoy, want)
			})
		})
	}
}

func renderGolden(t *testing.T, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	var in goldenInput
	if err := dec.Decode(&in); err != nil {
		t.Fatal(err)
	}
	pc, err := meshconfig.ApplyProxyConfig(meshconfig.DefaultProxyConfig(), string(in.ProxyConfig))
	if err != nil {
		t.Fatal(err)
	}
	metadata, warnings, err := NodeMetadata(MetadataInput{
		Variables: in.Variables, Labels: in.Labels, Annotations: in.Annotations, Own: in.Own, ProxyConfig: pc,
	})
	if err != nil || len(warnings) > 0 {
		t.Fatal(err, warnings)
	}
	rendered, err := Render(Input{
		Node: in.ID, Metadata: metadata, ProxyConfig: pc, BindAddress: in.BindAddress, StateOfTheWorld: in.StateOfTheWorld,
	})
	if err != nil {
		t.Fatal(err)
	}
	return rendered
}

var complaint = regexp.MustCompile(`(?i)deprecated|\[(warning|error|critical)\]`)

// validate has the real Envoy check a bootstrap, and accepts no warning.
func validate(t *testing.T, envoy, file string) {
	t.Helper()
	out, err := exec.Command(envoy, "--mode", "validate", "-c", file, "-l", "info", "--base-id-path", filepath.Join(t.TempDir(), "id"), "--use-dynamic-base-id").CombinedOutput()
	if err != nil {
		t.Fatalf("envoy refuses %s: %v\n%s", file, err, out)
	}
	for line := range bytes.Lines(out) {
		if complaint.Match(line) {
			t.Errorf("envoy complains about %s: %s", file, line)
		}
	}
}

func findEnvoy() string {
	candidates := []string{os.Getenv("ENVOY"), "../bin/envoy", "envoy"}
	for _, candidate := range candidates {
		if candidate == "" {
			continue
		}
		if path, err := exec.LookPath(candidate); err == nil {
			if abs, err := filepath.Abs(path); err == nil {
				return abs
			}
		}
	}
	return ""
}
