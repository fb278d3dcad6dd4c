// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ca

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/outrigger-mesh/outrigger/internal/durable"
)

// Material is the content of a Store: data by file name, or by key in the data of a Kubernetes
// Secret. Unknown names are preserved. It contains private keys.
type Material map[string][]byte

// Names in Material and in directories: those of Istio, and those for rotation.
const (
	keyFile      = "ca-key.pem"
	certFile     = "ca-cert.pem"
	chainFile    = "cert-chain.pem"
	rootFile     = "root-cert.pem"
	crlFile      = "ca-crl.pem"
	nextKeyFile  = "next-key.pem"  // key of the next root
	nextCertFile = "next-cert.pem" // its certificate
	recordFile   = "rotation.json" // see record
	lockFile     = ".lock"
)

// ErrConflict is wrapped by the error of Save if another replica saved since Load.
var ErrConflict = errors.New("the authority was changed by another process")

// Store stores the material of an authority, shared by all replicas of a control plane. Its errors
// name the location and contain no key data.
type Store interface {
	// Load returns the material and its version. If nothing is stored yet, both are empty and the
	// error is nil.
	Load(ctx context.Context) (m Material, version string, err error)
	// Save atomically replaces the material of the given version; an empty version means that
	// nothing is stored yet. If another version is stored, Save returns an error that wraps
	// ErrConflict and changes nothing.
	Save(ctx context.Context, m Material, version string) error
}

// dirStore is a Store in a directory.
type dirStore struct{ dir string }

// filesInOrder returns the files in the order in which they are written. With this order, a crash
// between two writes loses nothing: the current and the next pair are written before the record
// that refers to them.
func filesInOrder() []file {
	return []file{
		{keyFile, 0o600},
		{certFile, 0o644},
		{chainFile, 0o644},
		{nextKeyFile, 0o600},
		{nextCertFile, 0o644},
		{recordFile, 0o644},
		{rootFile, 0o644},
		{crlFile, 0o644},
	}
}

type file struct {
	name string
	mode fs.FileMode
}

// Load implements Store.
func (d *dirStore) Load(context.Context) (Material, string, error) {
	// Save writes several files under a lock. Before the first Save, the lock file does not exist,
	// and Load does not create it.
	unlock, err := lock(filepath.Join(d.dir, lockFile), syscall.LOCK_SH)
	if err == nil {
		defer unlock()
		return d.read()
	}
	m, version, readErr := d.read()
	if unlock, err := lock(filepath.Join(d.dir, lockFile), syscall.LOCK_SH); err == nil {
		defer unlock() // the first save happened in between
		return d.read()
	}
	return m, version, readErr
}

func (d *dirStore) read() (Material, string, error) {
	m := Material{}
	for _, f := range filesInOrder() {
		data, err := os.ReadFile(filepath.Join(d.dir, f.name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, "", err
		}
		m[f.name] = data
	}
	if len(m) == 0 {
		return nil, "", nil
	}
	return m, m.hash(), nil
}

// hash returns a hash of the material.
func (m Material) hash() string {
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(m)) {
		// Writing to a hash never fails.
		_, _ = fmt.Fprintf(h, "%s %d\n", name, len(m[name]))
		_, _ = h.Write(m[name])
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Save implements Store.
func (d *dirStore) Save(_ context.Context, m Material, version string) error {
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		return err
	}
	unlock, err := lock(filepath.Join(d.dir, lockFile), syscall.LOCK_EX)
	if err != nil {
		return err
	}
	defer unlock()
	before, current, err := d.read()
	if err != nil {
		return err
	}
	if current != version {
		return fmt.Errorf("%s: %w", d.dir, ErrConflict)
	}
	return d.write(before, m)
}

// write replaces the files that differ. All are written to disk under temporary names before the
// first is renamed; files that are no longer needed are removed last.
func (d *dirStore) write(before, m Material) error {
	type change struct{ from, to string }
	var changes []change
	defer func() {
		for _, c := range changes {
			_ = os.Remove(c.from) // exists only after an error, which is returned
		}
	}()
	for _, f := range filesInOrder() {
		if data, wanted := m[f.name]; wanted && (string(before[f.name]) != string(data) || before[f.name] == nil) {
			name, err := durable.Temp(d.dir, "."+f.name+".*", data, f.mode)
			changes = append(changes, change{name, filepath.Join(d.dir, f.name)})
			if err != nil {
				return fmt.Errorf("writing %s: %w", f.name, err)
			}
		}
	}
	for len(changes) > 0 {
		if err := os.Rename(changes[0].from, changes[0].to); err != nil {
			return err
		}
		changes = changes[1:]
	}
	for name := range before {
		if _, wanted := m[name]; !wanted {
			if err := os.Remove(filepath.Join(d.dir, name)); err != nil {
				return err
			}
		}
	}
	return durable.SyncDir(d.dir)
}

// lock acquires a lock between processes and returns the function that releases it. LOCK_EX creates
// the file if needed.
func lock(path string, how int) (unlock func(), err error) {
	open := os.O_RDONLY
	if how == syscall.LOCK_EX {
		open = os.O_CREATE | os.O_RDWR
	}
	f, err := os.OpenFile(path, open, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), how); err != nil {
		return nil, errors.Join(fmt.Errorf("locking %s: %w", path, err), f.Close())
	}
	return func() {
		_ = durable.Unlock(f) // nothing was written
	}, nil
}

// Equal reports whether both have the same content.
func (m Material) Equal(o Material) bool { return maps.EqualFunc(m, o, bytes.Equal) }
