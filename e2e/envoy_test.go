// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestGetEnvoy checks which existing Envoy make envoy uses, and its error for an unsuitable one.
// Every other test covers the download itself.
func TestGetEnvoy(t *testing.T) {
	t.Parallel()
	fake := func(t *testing.T, says string) string {
		t.Helper()
		file := filepath.Join(t.TempDir(), "envoy")
		if err := os.WriteFile(file, []byte("#!/bin/sh\necho '"+says+"'\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		return file
	}
	const old, young = "envoy  version: 0123/1.35.9/Clean/RELEASE/BoringSSL", "envoy  version: 0123/1.41.0/Clean/RELEASE/BoringSSL"
	for name, tc := range map[string]struct {
		envoy, path string // the version output of the Envoy in ENVOY, and of the one on PATH
		names       string // ENVOY itself
		version     string // the requested version
		fails       bool
		says        []string
	}{
		"ENVOY":             {envoy: young, says: []string{"1.41.0"}},
		"ENVOY before PATH": {envoy: young, path: old, says: []string{"1.41.0"}},
		"ENVOY too old":     {envoy: old, fails: true, says: []string{"1.35.9", "1.36 or newer", "unset ENVOY"}},
		"ENVOY no Envoy":    {envoy: "hello", fails: true, says: []string{"does not say the version"}},
		"ENVOY nowhere":     {names: "/nowhere/envoy", fails: true, says: []string{"/nowhere/envoy"}},
		"no such version":   {version: "1.35.0", fails: true, says: []string{"1.35.0", "1.36.2", "1.40.0"}},
		"PATH":              {path: young, says: []string{"1.41.0"}},
		"PATH too old":      {path: old, fails: true, says: []string{"1.35.9", "1.36 or newer", "ENVOY=/path"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path, named := os.Getenv("PATH"), tc.names
			if tc.path != "" {
				path = filepath.Dir(fake(t, tc.path)) + ":" + path
			}
			if tc.envoy != "" {
				named = fake(t, tc.envoy)
			}
			bin := t.TempDir()
			cmd := exec.Command("../scripts/get-envoy", bin)
			if tc.version != "" {
				cmd.Args = append(cmd.Args, tc.version)
			}
			cmd.Env = append(os.Environ(), "PATH="+path, "ENVOY="+named)
			out, err := cmd.CombinedOutput()
			if (err != nil) != tc.fails {
				t.Errorf("ended with %v", err)
			}
			for _, text := range tc.says {
				if !strings.Contains(string(out), text) {
					t.Errorf("does not say %q: %s", text, out)
				}
			}
			if entries, err := os.ReadDir(bin); err != nil || len(entries) > 0 {
				t.Errorf("left %v, %v; want nothing downloaded", entries, err)
			}
		})
	}
}
