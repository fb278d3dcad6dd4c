// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package lastgood

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestIdentityKey stores the identity under another key than the node's: it cannot be decrypted
// with the files on disk alone.
func TestIdentityKey(t *testing.T) {
	t.Parallel()
	key := bytes.Repeat([]byte{7}, keySize)
	cfg := config(t, func(c *Config) { c.KeepIdentity, c.IdentityKey = true, key })
	if err := open(t, cfg).PutIdentity([]byte("chain"), []byte("the key"), []byte("roots")); err != nil {
		t.Fatal(err)
	}
	if id, err := open(t, cfg).Identity(); err != nil || string(id.Key) != "the key" {
		t.Errorf("%+v, %v", id, err)
	}
	for name, other := range map[string][]byte{"the node's": nil, "another": bytes.Repeat([]byte{8}, keySize)} {
		cfg.IdentityKey = other
		if id, err := open(t, cfg).Identity(); err == nil || id != nil || reasonOf(err) != reasonKey {
			t.Errorf("%s: %v, %v", name, id, err)
		}
	}
	cfg.IdentityKey = key[1:]
	if _, err := Open(cfg); err == nil {
		t.Error("a key that is too short was accepted")
	}
}

// TestIdentity stores the workload's identity, which requires consent.
func TestIdentity(t *testing.T) {
	t.Parallel()
	cfg := config(t, func(c *Config) { c.KeepIdentity = true })
	store := open(t, cfg)
	if _, err := store.Identity(); err == nil || reasonOf(err) != reasonNone {
		t.Errorf("before anything was stored: %v", err)
	}
	if err := store.PutIdentity([]byte("chain"), []byte("key"), []byte("roots")); err != nil {
		t.Fatal(err)
	}
	id, err := open(t, cfg).Identity()
	if err != nil || string(id.Chain)+string(id.Key)+string(id.Roots) != "chainkeyroots" || time.Since(id.From) > time.Minute {
		t.Errorf("%+v, %v", id, err)
	}
	path := filepath.Join(cfg.Dir, identityFile)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for at := range len(b) * 2 {
		broken := bytes.Clone(b)
		if at < len(b) {
			broken[at] ^= 1 << (at % 8)
		} else {
			broken = broken[:at-len(b)]
		}
		if err := os.WriteFile(path, broken, 0o600); err != nil {
			t.Fatal(err)
		}
		if id, err := store.Identity(); err == nil || id != nil || !strings.Contains(err.Error(), path) {
			t.Fatalf("damaged at %d: %v, %v", at, id, err)
		}
	}
	// A snapshot is not accepted as an identity, although it has the same owner.
	keep(t, cfg, something)
	if err := os.Rename(filepath.Join(cfg.Dir, snapshotFile), path); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Identity(); err == nil || reasonOf(err) != reasonDamaged {
		t.Errorf("another file in its place: %v", err)
	}
	cfg.KeepIdentity = false
	store = open(t, cfg)
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without consent, the identity was not removed: %v", err)
	}
	if err := store.PutIdentity([]byte("chain"), []byte("key"), nil); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without consent, the identity was stored: %v", err)
	}
	if _, err := store.Identity(); err == nil || reasonOf(err) != reasonOff {
		t.Errorf("without consent: %v", err)
	}
}
