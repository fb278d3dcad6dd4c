// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package agent

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/outrigger-mesh/outrigger/agent/environ"
)

// TestLastGoodIsSwitchedOff checks that with a maximum age of 0 nothing is stored, and that what an
// earlier run stored is removed.
func TestLastGoodIsSwitchedOff(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	key := filepath.Join(dir, "data", "identity")
	if err := os.MkdirAll(filepath.Dir(key), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(key, []byte("sealed"), 0o600); err != nil {
		t.Fatal(err)
	}
	b := &builder{cfg: &settings{env: environ.Values{LastGood: environ.LastGood{Dir: dir}}}, log: slog.New(slog.DiscardHandler), parts: &parts{}}
	if err := b.lastGood(); err != nil || b.parts.lastGood != nil {
		t.Errorf("%v, %v", b.parts.lastGood, err)
	}
	if _, err := os.Stat(key); !os.IsNotExist(err) {
		t.Errorf("the stored identity was not removed: %v", err)
	}
}
