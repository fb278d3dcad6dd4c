// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package analyze

import (
	"os"
	"testing"
)

//go:generate go test -run ^TestDocument$ . -update

// TestDocument compares the page of the codes with the table.
func TestDocument(t *testing.T) {
	t.Parallel()
	const file = "../../docs/reference/analysis.md"
	if *update {
		if err := os.WriteFile(file, []byte(Document()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != Document() {
		t.Errorf("%s is not what the table of codes says: run make generate", file)
	}
}
