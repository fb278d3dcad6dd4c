// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package authn

import (
	"bytes"
	"context"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
)

const (
	// maxKeySet is the maximum size of a key set in bytes, and maxKeys the maximum number of keys:
	// a token without a key ID is verified with each of them.
	maxKeySet = 1 << 20
	maxKeys   = 100
	// minRSA is the minimum size of a trusted RSA key in bits.
	minRSA = 2048
)

// keySource provides the public keys of an issuer.
type keySource interface {
	// current returns the latest keys. It may wait for the first keys for a limited time.
	current(ctx context.Context) (*keySet, error)
	// newer returns keys that are newer than those in have, or nil if there are none. It may wait
	// for a limited time.
	newer(ctx context.Context, have *keySet) *keySet
	// run updates the keys until ctx is done.
	run(ctx context.Context) error
}

// keySet is an immutable set of keys.
type keySet struct {
	text []byte
	keys []jose.JSONWebKey
}

// has reports whether the set may contain the key with the given ID.
func (s *keySet) has(id string) bool {
	for _, k := range s.keys {
		if k.KeyID == id {
			return true
		}
	}
	return false
}

// parseKeys parses a JSON Web Key Set. Unusable keys are an error if strict is true; otherwise they
// are ignored, because a third-party set may contain unsupported keys.
func parseKeys(text []byte, strict bool) (*keySet, error) {
	if len(text) > maxKeySet {
		return nil, fmt.Errorf("it has more than %d bytes", maxKeySet)
	}
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(text, &set); err != nil {
		return nil, err
	}
	if len(set.Keys) > maxKeys {
		return nil, fmt.Errorf("it holds %d keys; at most %d are taken", len(set.Keys), maxKeys)
	}
	out := &keySet{text: text}
	for i, raw := range set.Keys {
		key, err := parseKey(raw)
		if err != nil && strict {
			return nil, fmt.Errorf("key %d %w", i+1, err)
		}
		if err == nil {
			out.keys = append(out.keys, key)
		}
	}
	if len(out.keys) == 0 {
		return nil, errors.New("it holds no key of a known type")
	}
	return out, nil
}

func parseKey(raw []byte) (jose.JSONWebKey, error) {
	var k jose.JSONWebKey
	if err := json.Unmarshal(raw, &k); err != nil {
		return k, fmt.Errorf("cannot be read: %w", err)
	}
	if !k.IsPublic() || !k.Valid() {
		return k, errors.New("is not a public key; give only public keys")
	}
	if pub, ok := k.Key.(*rsa.PublicKey); ok && pub.N.BitLen() < minRSA {
		return k, fmt.Errorf("is an RSA key of %d bits; use %d or more", pub.N.BitLen(), minRSA)
	}
	return k, nil
}

// fixedKeys are keys that never change.
type fixedKeys struct{ set *keySet }

func (f fixedKeys) current(context.Context) (*keySet, error) { return f.set, nil }

func (f fixedKeys) newer(context.Context, *keySet) *keySet { return nil }

func (f fixedKeys) run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// fileKeys are the keys in a file. The file is read again when it changes; while it cannot be read,
// the last valid keys remain in use.
type fileKeys struct {
	path string
	log  *slog.Logger

	// mu guards the fields below.
	mu      sync.Mutex
	set     *keySet
	info    fs.FileInfo // of the last file that was read, valid or not
	retryAt time.Time   // when an invalid file is read again; zero if it was valid
}

// retryFile is the delay before a file that could not be read is read again.
const retryFile = time.Second

func newFileKeys(path string, log *slog.Logger) (*fileKeys, error) {
	f := &fileKeys{path: path, log: log}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if f.set, err = readKeys(path); err != nil {
		return nil, err
	}
	f.info = info
	return f, nil
}

func (f *fileKeys) current(context.Context) (*keySet, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.look(time.Now())
	return f.set, nil
}

func (f *fileKeys) newer(context.Context, *keySet) *keySet { return nil }

func (f *fileKeys) run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// look reads the file if it changed.
func (f *fileKeys) look(now time.Time) {
	info, err := os.Stat(f.path)
	if err == nil && f.same(info) && (f.retryAt.IsZero() || now.Before(f.retryAt)) {
		return
	}
	if err != nil && now.Before(f.retryAt) {
		return
	}
	fresh := f.retryAt.IsZero() || err == nil && !f.same(info)
	var set *keySet
	if err == nil {
		set, err = readKeys(f.path)
		f.info = info
	}
	if err != nil {
		f.retryAt = now.Add(retryFile)
		if fresh {
			f.log.Warn("the keys of an issuer of tokens cannot be read; those that were read before stay in force", "path", f.path, "err", err)
		}
		return
	}
	f.retryAt = time.Time{}
	if !bytes.Equal(set.text, f.set.text) {
		f.set = set
		f.log.Info("read the changed keys of an issuer of tokens", "path", f.path, "count", len(set.keys))
	}
}

func (f *fileKeys) same(info fs.FileInfo) bool {
	return f.info != nil && os.SameFile(f.info, info) && f.info.Size() == info.Size() && f.info.ModTime().Equal(info.ModTime())
}

func readKeys(path string) (*keySet, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // only read, so the error is irrelevant
	text, err := io.ReadAll(io.LimitReader(file, maxKeySet+1))
	if err != nil {
		return nil, err
	}
	set, err := parseKeys(text, true)
	if err != nil {
		return nil, fmt.Errorf("the key set in %s: %w", path, err)
	}
	return set, nil
}
