// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package lastgood

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/outrigger-mesh/outrigger/xdsproxy/wire"
)

// Identity is the workload's certificate with its private key, as PEM.
type Identity struct {
	Chain, Key, Roots []byte
	// From is the time at which the control plane last confirmed the identity.
	From time.Time
}

// Forget removes the files that an agent has stored in a directory, when storing is disabled.
func Forget(dir string, log *slog.Logger) {
	for _, name := range []string{identityFile, snapshotFile, confirmedFile, legacyFile} {
		remove(filepath.Join(dir, name), log, "the state for a cold start is removed: last good is switched off")
	}
	removeTemporary(dir)
}

func remove(path string, log *slog.Logger, why string) {
	switch err := os.Remove(path); {
	case err == nil:
		log.Info(why, "path", path)
	case !errors.Is(err, fs.ErrNotExist):
		log.Warn("the state for a cold start cannot be removed", "path", path, "err", err)
	}
}

// identityOwner returns the owner whose key seals the identity.
func (s *Store) identityOwner() *owner {
	if s.cfg.IdentityKey == nil {
		return s.owner
	}
	return &owner{key: s.cfg.IdentityKey, identity: s.owner.identity, version: s.owner.version}
}

// PutIdentity stores the workload's identity. Without consent, it does nothing. Storing the same
// identity again does not update its time.
func (s *Store) PutIdentity(chain, key, roots []byte) error {
	if s.off != nil || !s.cfg.KeepIdentity {
		return nil
	}
	if old, err := s.loadIdentity(); err == nil && bytes.Equal(old.Chain, chain) && bytes.Equal(old.Key, key) && bytes.Equal(old.Roots, roots) {
		return nil
	}
	plain := wire.Append(nil, 1, time.Now().UTC().Format(time.RFC3339Nano))
	for i, part := range [][]byte{chain, key, roots} {
		plain = wire.Append(plain, protowire.Number(i+2), part)
	}
	s.files.Lock()
	err := s.writeSealed(s.identityOwner(), identityFile, kindIdentity, plain)
	s.files.Unlock()
	clear(plain)
	if err != nil {
		s.metrics.refused.WithLabelValues(reasonOf(err)).Inc()
		return fmt.Errorf("keep the identity: %w", err)
	}
	return nil
}

// Identity returns the stored identity, or an error that says why there is none. The identity may
// have expired; the caller checks that.
func (s *Store) Identity() (*Identity, error) {
	if s.off != nil {
		return nil, s.off
	}
	if !s.cfg.KeepIdentity {
		return nil, refuse(reasonOff, "the workload's identity is not stored")
	}
	path := filepath.Join(s.cfg.Dir, identityFile)
	id, err := s.loadIdentity()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, refuse(reasonNone, "no identity was stored so far")
	case err != nil:
		err = about(path, err)
	default:
		// A long-lived certificate is stored only once. A later response of the control plane also
		// shows that it knew this workload.
		from := id.From
		if last := s.From(); last.After(from) {
			from = last
		}
		if err = s.tooOld(path, from); err == nil {
			return id, nil
		}
	}
	s.metrics.refused.WithLabelValues(reasonOf(err)).Inc()
	s.log.Warn("stored workload identity rejected", "reason", err.Error())
	return nil, err
}

// loadIdentity returns the stored identity of any age.
func (s *Store) loadIdentity() (*Identity, error) {
	plain, err := s.readSealed(s.identityOwner(), identityFile, kindIdentity)
	if err != nil {
		return nil, err
	}
	var parts [5][]byte
	err = wire.EachBytes(plain, errRecord, func(n protowire.Number, v []byte) error {
		if int(n) < len(parts) {
			parts[n] = v
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	id := &Identity{Chain: parts[2], Key: parts[3], Roots: parts[4]}
	if id.From, err = time.Parse(time.RFC3339Nano, string(parts[1])); err != nil {
		return nil, errRecord
	}
	return id, nil
}
