// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package authn

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/jwks"
)

// keySource provides the public keys of an issuer.
type keySource interface {
	// Current returns the latest keys. It may wait for the first keys for a limited time.
	Current(ctx context.Context) (*jwks.Set, error)
	// Newer returns keys that are newer than those in have, or nil if there are none. It may wait
	// for a limited time.
	Newer(ctx context.Context, have *jwks.Set) *jwks.Set
	// Run updates the keys until ctx is done.
	Run(ctx context.Context) error
}

// fixedKeys are keys that never change.
type fixedKeys struct{ set *jwks.Set }

func (f fixedKeys) Current(context.Context) (*jwks.Set, error) { return f.set, nil }

func (f fixedKeys) Newer(context.Context, *jwks.Set) *jwks.Set { return nil }

func (f fixedKeys) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// remoteKeys are keys fetched from a URL.
type remoteKeys struct{ *jwks.Remote }

func (r remoteKeys) Current(ctx context.Context) (*jwks.Set, error) {
	set, err := r.Remote.Current(ctx)
	if err != nil {
		return nil, cannotTell("jwt: %s", err.Error())
	}
	return set, nil
}

// fileKeys are the keys in a file. The file is read again when it changes; while it cannot be read,
// the last valid keys remain in use.
type fileKeys struct {
	path string
	log  *slog.Logger

	// mu guards the fields below.
	mu      sync.Mutex
	set     *jwks.Set
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

func (f *fileKeys) Current(context.Context) (*jwks.Set, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.look(time.Now())
	return f.set, nil
}

func (f *fileKeys) Newer(context.Context, *jwks.Set) *jwks.Set { return nil }

func (f *fileKeys) Run(ctx context.Context) error {
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
	var set *jwks.Set
	if err == nil {
		set, err = readKeys(f.path)
		f.info = info
	}
	if err != nil {
		f.retryAt = now.Add(retryFile)
		if fresh {
			f.log.Warn("the keys of an issuer of tokens cannot be read; the previous ones stay in force", "path", f.path, "err", err)
		}
		return
	}
	f.retryAt = time.Time{}
	if set.Sum != f.set.Sum {
		f.set = set
		f.log.Info("reloaded the changed keys of an issuer of tokens", "path", f.path, "count", len(set.Keys))
	}
}

func (f *fileKeys) same(info fs.FileInfo) bool {
	return f.info != nil && os.SameFile(f.info, info) && f.info.Size() == info.Size() && f.info.ModTime().Equal(info.ModTime())
}

func readKeys(path string) (*jwks.Set, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // only read, so the error is irrelevant
	text, err := io.ReadAll(io.LimitReader(file, jwks.MaxSet+1))
	if err != nil {
		return nil, err
	}
	set, err := jwks.Parse(text, true)
	if err != nil {
		return nil, fmt.Errorf("the key set in %s: %w", path, err)
	}
	return set, nil
}
