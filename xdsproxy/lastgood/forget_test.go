// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package lastgood

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
)

// TestForget checks that when everything is disabled, neither keys nor configuration remain on the
// disk, and that other files are not removed.
func TestForget(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{identityFile, snapshotFile, confirmedFile, legacyFile, snapshotFile + temporary + "1", "another"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	Forget(dir, slog.New(slog.DiscardHandler))
	Forget(filepath.Join(dir, "missing"), slog.New(slog.DiscardHandler))
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 || left[0].Name() != "another" {
		t.Errorf("remaining files: %v, %v", left, err)
	}
}
