// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package goldentest

import (
	"flag"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Update is the flag -update of the tests: golden files are written instead of compared.
var Update = flag.Bool("update", false, "write the golden files again")

// Check compares an output with a golden file.
func Check(t *testing.T, file, got string) {
	t.Helper()
	if *Update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got; -update writes it again):\n%s", file, diff)
	}
}
