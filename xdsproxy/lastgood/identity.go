// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package lastgood

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/durable"
)

// Identity is the workload's certificate with its private key, as PEM.
type Identity struct {
	Chain, Key, Roots []byte
	// From is when it was kept.
	From time.Time
}

// maxIdentity is the size of the file with an identity, in bytes.
const maxIdentity = 1 << 20

// forgetIdentity removes what is kept without consent.
func (s *Store) forgetIdentity() {
	if s.cfg.KeepIdentity {
		return
	}
	remove(filepath.Join(s.cfg.Dir, identityFile), s.log)
}

// Forget removes what an agent kept in a directory, when nothing is to be kept
// anymore.
func Forget(dir string, log *slog.Logger) {
	for _, name := range []string{identityFile, stateFile} {
		remove(filepath.Join(dir, name), log)
	}
	removeTemporary(dir)
}

func remove(path string, log *slog.Logger) {
	switch err := os.Remove(path); {
	case err == nil:
		log.Info("what was kept for a cold start is removed: nobody consents to it anymore", "path", path)
	case !errors.Is(err, fs.ErrNotExist):
		log.Warn("what was kept for a cold start cannot be removed, though nobody consents to it anymore", "path", path, "err", err)
	}
}

// identityOwner returns whose key seals the identity.
func (s *Store) identityOwner() *owner {
	if s.cfg.IdentityKey == nil {
		return s.owner
	}
	return &owner{key: s.cfg.IdentityKey, identity: s.owner.identity, version: s.owner.version}
}

// PutIdentity keeps the workload's identity. Without consent it does nothing.
// One that is kept already gets no younger.
func (s *Store) PutIdentity(chain, key, roots []byte) error {
	if s.off != nil || !s.cfg.KeepIdentity {
		return nil
	}
	if old, err := s.loadIdentity(); err == nil && bytes.Equal(old.Chain, chain) && bytes.Equal(old.Key, key) && bytes.Equal(old.Roots, roots) {
		return nil
	}
	seal, err := s.identityOwner().newSealer(kindIdentity)
	if err != nil {
		return fmt.Errorf("keep the identity: %w", err)
	}
	plain := appendString(nil, time.Now().UTC().Format(time.RFC3339Nano))
	for _, part := range [][]byte{chain, key, roots} {
		plain = appendString(plain, string(part))
	}
	b := seal.seal(append([]byte(nil), seal.header...), int64(len(seal.header)), plain)
	clear(plain)
	if len(b) > maxIdentity {
		return fmt.Errorf("keep the identity: it has %d bytes, the bound is %d", len(b), maxIdentity)
	}
	if err := durable.Replace(filepath.Join(s.cfg.Dir, identityFile), b, 0o600); err != nil {
		s.metrics.refused.WithLabelValues(reasonDisk).Inc()
		return fmt.Errorf("keep the identity: %w", err)
	}
	return nil
}

// Identity returns the identity that was kept. It may have expired: that the
// caller has to look at. An error says why there is none.
func (s *Store) Identity() (*Identity, error) {
	if s.off != nil {
		return nil, s.off
	}
	if !s.cfg.KeepIdentity {
		return nil, refuse(reasonOff, "the workload's identity is not kept")
	}
	id, err := s.loadIdentity()
	if err == nil {
		// A certificate that lives long is kept once. What the control plane
		// said since then tells as well that somebody knew this workload.
		from := id.From
		if last := s.From(); last.After(from) {
			from = last
		}
		err = s.tooOld(filepath.Join(s.cfg.Dir, identityFile), from)
	}
	if err == nil {
		return id, nil
	}
	if reasonOf(err) != reasonNone {
		s.metrics.refused.WithLabelValues(reasonOf(err)).Inc()
		s.log.Warn("the workload's identity that was kept is refused", "reason", err.Error())
	}
	return nil, err
}

// loadIdentity returns the identity that was kept, however old it is.
func (s *Store) loadIdentity() (*Identity, error) {
	path := filepath.Join(s.cfg.Dir, identityFile)
	f, err := openOwn(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, refuse(reasonNone, "no identity was kept so far")
	}
	if err != nil {
		return nil, about(path, err)
	}
	defer func() { _ = f.Close() }() // it was only read from
	id, err := s.readIdentity(f)
	if err != nil {
		return nil, about(path, err)
	}
	return id, nil
}

func (s *Store) readIdentity(f *os.File) (*Identity, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, refuse(reasonDisk, "it cannot be looked at: %v", err)
	}
	if info.Size() > maxIdentity {
		return nil, refuse(reasonSize, "it has %d bytes, the bound is %d", info.Size(), maxIdentity)
	}
	r := bufio.NewReader(f)
	seal, err := s.identityOwner().readHeader(r, kindIdentity)
	if err != nil {
		return nil, err
	}
	var id *Identity
	err = eachRecord(r, seal, info.Size(), func(_ loc, plain []byte) error {
		c := &cursor{b: plain}
		from := c.string()
		id = &Identity{Chain: c.bytes(), Key: c.bytes(), Roots: c.bytes()}
		if id.From, err = time.Parse(time.RFC3339Nano, from); err != nil {
			c.bad = true
		}
		return c.err(true)
	})
	if err == nil && id == nil {
		err = refuse(reasonDamaged, "it is cut off")
	}
	return id, err
}
