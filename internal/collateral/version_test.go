// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package collateral

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
)

// TestPrintVersion checks that the output is the same as that of Istio's programs.
func TestPrintVersion(t *testing.T) {
	t.Parallel()
	info := BuildInfo{Version: "1.2.3", GitRevision: "12e4567", GolangVersion: "go1.26.8", BuildStatus: "Clean", GitTag: "v1.2.3"}
	for args, want := range map[string]string{
		"":      `client version: version.BuildInfo{Version:"1.2.3", GitRevision:"12e4567", GolangVersion:"go1.26.8", BuildStatus:"Clean", GitTag:"v1.2.3"}` + "\n",
		"short": "client version: 1.2.3\n",
		"json": `{
  "clientVersion": {
    "version": "1.2.3",
    "revision": "12e4567",
    "golang_version": "go1.26.8",
    "status": "Clean",
    "tag": "v1.2.3"
  }
}
`,
		"yaml": "clientVersion:\n  golang_version: go1.26.8\n  revision: \"12e4567\"\n  status: Clean\n  tag: v1.2.3\n  version: \"1.2.3\"\n\n",
	} {
		var out bytes.Buffer
		output := format(args)
		if args == "short" {
			output = ""
		}
		if err := printVersion(&out, info, args == "short", output); err != nil || out.String() != want {
			t.Errorf("%q: got error %v and output\n%s", args, err, out.String())
		}
	}
}

func TestVersionCommand(t *testing.T) {
	t.Parallel()
	run := func(args ...string) (string, error) {
		cmd := newBuildVersion("program", "dev")
		var out bytes.Buffer
		cmd.SetOut(&out)
		cmd.SetArgs(args)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		err := cmd.Execute()
		return out.String(), err
	}
	if out, err := run("--short"); err != nil || out != "client version: dev\n" {
		t.Errorf("--short: got %q, error %v", out, err)
	}
	if out, err := run("--short=false"); err != nil || !strings.HasPrefix(out, `client version: version.BuildInfo{Version:"dev", `) {
		t.Errorf("--short=false: got %q, error %v", out, err)
	}
	var doc map[string]map[string]string
	out, err := run("-o", "json")
	if err != nil || json.Unmarshal([]byte(out), &doc) != nil || len(doc["clientVersion"]) != 5 || doc["clientVersion"]["golang_version"] == "" {
		t.Errorf("JSON: got %q, error %v", out, err)
	}
	if _, err := run("-o", "xml"); err == nil || err.Error() != `invalid argument "xml" for "-o, --output" flag: it must be yaml or json` {
		t.Error(err)
	}
}

// TestVersionFlag checks that --version prints what version -s prints, and that version -o is completed.
func TestVersionFlag(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"--version":               "client version: v1.2.3\n",
		"version -s":              "client version: v1.2.3\n",
		"__complete version -o j": "yaml\njson\n:4\n",
	} {
		root := program()
		AddBuildVersion(root, "v1.2.3")
		var out bytes.Buffer
		root.SetOut(&out)
		root.SetErr(io.Discard)
		root.SetArgs(strings.Fields(args))
		if err := root.Execute(); err != nil || out.String() != want {
			t.Errorf("%s: got error %v and output %q, want %q", args, err, out.String(), want)
		}
		if root.Flags().ShorthandLookup("v") != nil {
			t.Error("-v is a flag, which Istio's programs do not have")
		}
	}
}

// TestVersionYAML checks that strings that YAML reads as strings are unquoted, and others quoted.
func TestVersionYAML(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"v1.2.3-4-gabc": "v1.2.3-4-gabc", "go1.26.8": "go1.26.8", "1.20": `"1.20"`, "12e4567": `"12e4567"`, "true": `"true"`, "No": `"No"`, "a: b": `"a: b"`, "": `""`, "dev": "dev",
	} {
		got := yamlText(in)
		var back any
		if err := yaml.Unmarshal([]byte("x: "+got), &back); err != nil || got != want || !cmp.Equal(back, any(map[string]any{"x": in})) {
			t.Errorf("%q is written as %s, which is read as %v, error %v", in, got, back, err)
		}
	}
}
