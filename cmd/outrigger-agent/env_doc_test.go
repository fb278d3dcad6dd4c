// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/agent/environ"
)

var update = flag.Bool("update", false, "write generated files")

//go:generate go test -run ^TestEnvDoc$ . -update

func TestEnvDoc(t *testing.T) {
	t.Parallel()
	const file = "../../docs/reference/env-agent.md"
	var got bytes.Buffer
	if err := environ.WriteDoc(&got); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("%s is out of date, run make generate (-want +got):\n%s", file, diff)
	}
}
