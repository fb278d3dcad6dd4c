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
	// maxKeySet bounds a key set in bytes, maxKeys in keys: a token without a
	// key id is tried with each of them.
	maxKeySet = 1 << 20
	maxKeys   = 100
	// minRSA is the size of the smallest RSA key that is trusted, in bits.
	minRSA = 2048
)

// keySource returns the public keys of an issuer.
type keySource interface {
	// current returns the newest keys. It may wait a bounded time for the first.
	current(ctx context.Context) (*keySet, error)
	// newer looks for newer keys than those that the caller has, and returns
	// nil if there are none. It may wait a bounded time.
	newer(ctx context.Context, have *keySet) *keySet
	// run keeps the keys up to date until ctx is done.
	run(ctx context.Context) error
}

// keySet is a set of keys as it was read at one moment. It never changes.
type keySet struct {
	text []byte
	keys []jose.JSONWebKey
}

// has reports whether the set may hold the key of that id.
func (s *keySet) has(id string) bool {
	for _, k := range s.keys {
		if k.KeyID == id {
			return true
		}
	}
	return false
}

// parseKeys reads a JSON Web Key Set. Keys that are of no use are an error if
// strict, else they are left out: a stranger's set may hold more than we know.
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

// fileKeys are the keys in a file. It is read again when it is another one than
// before; while it cannot be read, the last good keys stay in force.
type fileKeys struct {
	path string
	log  *slog.Logger

	// mu guards what follows.
	mu      sync.Mutex
	set     *keySet
	info    fs.FileInfo // of the file that was read last, good or bad
	retryAt time.Time   // when a file that was bad is read again; zero if it was good
}

// retryFile is how soon a file that could not be read is tried again.
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

// look reads the file if it is another one than before.
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
	defer func() { _ = file.Close() }() // it was only read
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
