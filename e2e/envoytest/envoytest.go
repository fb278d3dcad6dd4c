// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoytest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Binary returns the absolute path of the Envoy for tests: the one that the variable ENVOY names, that
// of make envoy, or the one on PATH. It skips the test if there is none.
func Binary(t testing.TB) string {
	t.Helper()
	if path := os.Getenv("ENVOY"); path != "" {
		path, err := filepath.Abs(path)
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	dir, err := os.Getwd()
	for err == nil && dir != filepath.Dir(dir) {
		if path, err := exec.LookPath(filepath.Join(dir, "bin", "envoy")); err == nil {
			return path
		}
		dir = filepath.Dir(dir)
	}
	path, err := exec.LookPath("envoy")
	if err != nil {
		t.Skip("there is no Envoy: run make envoy, or set ENVOY to its path")
	}
	return path
}
