// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package up

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestRunning(t *testing.T) {
	t.Parallel()
	temp := t.TempDir()
	// A killed run's file is not locked; a link leads elsewhere.
	stale := filepath.Join(temp, runningPrefix+"stale")
	if err := os.WriteFile(stale, []byte("fs:///stale"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(stale, filepath.Join(temp, runningPrefix+"link")); err != nil {
		t.Fatal(err)
	}
	withdraw, err := announce(temp, "fs:///one")
	if err != nil {
		t.Fatal(err)
	}
	got, err := Running(temp)
	if err != nil || !slices.Equal(got, []string{"fs:///one"}) {
		t.Errorf("Running gives %q, %v", got, err)
	}
	if _, err := os.Stat(stale); !os.IsNotExist(err) {
		t.Errorf("the file of a killed run is still there: %v", err)
	}
	if err := withdraw(); err != nil {
		t.Error(err)
	}
	if got, err := Running(temp); err != nil || len(got) > 0 {
		t.Errorf("after the end Running gives %q, %v", got, err)
	}
	if _, err := announce(filepath.Join(temp, "missing"), "x"); err == nil {
		t.Error("announced in a directory that does not exist")
	}
}
