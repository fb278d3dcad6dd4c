// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package authn

import (
	"crypto/sha256"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"go.uber.org/goleak"

	"github.com/outrigger-mesh/outrigger/certs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func keySetText(t *testing.T) string {
	t.Helper()
	key, err := certs.NewKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "1"}}})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestKeysInAFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "jwks.json")
	write := func(text string) {
		t.Helper()
		next := filepath.Join(dir, "next")
		if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(next, path); err != nil {
			t.Fatal(err)
		}
	}
	first, second := keySetText(t), keySetText(t)
	write(first)
	var said strings.Builder
	f, err := newFileKeys(path, slog.New(slog.NewTextHandler(&said, nil)))
	if err != nil {
		t.Fatal(err)
	}
	expect := func(what, want string, lines int) {
		t.Helper()
		set, err := f.Current(t.Context())
		if err != nil || set.Sum != sha256.Sum256([]byte(want)) {
			t.Fatalf("%s: the keys differ from those expected, error %v", what, err)
		}
		if got := strings.Count(said.String(), "\n"); got != lines {
			t.Errorf("%s: %d lines in the log, want %d:\n%s", what, got, lines, said.String())
		}
	}
	expect("unchanged", first, 0)
	write(second)
	expect("replaced", second, 1)
	write("{")
	expect("broken", second, 2)
	expect("still invalid", second, 2)
	write(first)
	expect("fixed", first, 3)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	expect("gone", first, 4)
	expect("still missing", first, 4)
	write(second)
	f.mu.Lock()
	f.retryAt = f.retryAt.Add(-2 * retryFile) // as if the interval between attempts had passed
	f.mu.Unlock()
	expect("created again", second, 5)
}

func TestHalfWrittenFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "jwks.json")
	text := keySetText(t)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := newFileKeys(path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	next := keySetText(t)
	if err := os.WriteFile(path, []byte(next[:10]), 0o600); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	f.look(now)
	// The file is completed within one tick of the clock, so its modification time does not change.
	if err := os.WriteFile(path, []byte(next), 0o600); err != nil {
		t.Fatal(err)
	}
	if f.info, err = os.Stat(path); err != nil {
		t.Fatal(err)
	}
	f.look(now.Add(retryFile))
	if f.set.Sum != sha256.Sum256([]byte(next)) {
		t.Error("an invalid file was not read again after it was completed")
	}
}
