// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package agent

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/internal/memkey"
	"github.com/outrigger-mesh/outrigger/xdsproxy"
	"github.com/outrigger-mesh/outrigger/xdsproxy/lastgood"
)

// lastGoodFormat is part of what is kept: what another version wrote in another
// way is refused.
const lastGoodFormat = "1"

// lastGood opens what Envoy had in an earlier life.
func (b *builder) lastGood() error {
	e := b.cfg.env.LastGood
	// It is read in any case, so that Envoy does not inherit it.
	key, err := supervisorKey(e.KeyFD)
	if err != nil {
		b.log.Warn("the identity is not stored for a cold start", "err", err)
	}
	if b.cfg.env.Envoy.Disabled {
		return nil
	}
	dir := e.Dir
	if dir == "" {
		dir = filepath.Join(dataDir, "last-good")
	}
	dir, err = filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("environment variable OUTRIGGER_LAST_GOOD_DIR is %q: %w", e.Dir, err)
	}
	if e.MaxAge == 0 {
		lastgood.Forget(filepath.Join(dir, "data"), b.logger("lastgood"))
		return nil
	}
	b.parts.keeps = e.Identity || key != nil
	b.parts.lastGood, err = lastgood.Open(lastgood.Config{
		Dir: filepath.Join(dir, "data"), KeyDir: filepath.Join(dir, "key"),
		Identity: b.cfg.node.Role + " " + b.cfg.identity.String() + " " + b.cfg.metadata.ClusterID, Version: lastGoodFormat,
		MaxAge: e.MaxAge, KeepIdentity: b.parts.keeps, IdentityKey: key, Secrets: e.Secrets,
		Extensions: b.coldExtensions(), Logger: b.logger("lastgood"), Registerer: b.registry,
	})
	b.parts.keeps = b.parts.keeps && err == nil && !b.socks.external
	return err
}

// supervisorKey returns the key that the agent's supervisor keeps in memory; nil
// without one.
func supervisorKey(fd int) ([]byte, error) {
	if fd == 0 {
		return nil, nil
	}
	key, err := memkey.Read(fd)
	if err != nil {
		return nil, fmt.Errorf("environment variable OUTRIGGER_LAST_GOOD_KEY_FD: %w", err)
	}
	return key, nil
}

// lastGoodOfRelay is what the relay needs of it; nil where nothing is kept.
func (b *builder) lastGoodOfRelay() *xdsproxy.LastGood {
	store, workload := b.parts.lastGood, b.parts.workload
	if store == nil {
		return nil
	}
	return &xdsproxy.LastGood{
		Record: func(delta bool) xdsproxy.Recording { return store.Record(delta) },
		Usable: store.Usable,
		Serve:  store.Serve,
		Lacks: func() string {
			if workload == nil || workload.Certificate() != nil {
				return ""
			}
			return "the workload has no certificate: mutual TLS fails until the certificate authority has signed one"
		},
	}
}

// keptIdentity returns the identity that was kept; nil where none may be.
func (b *builder) keptIdentity() func() (chain, key, roots []byte, err error) {
	store := b.parts.lastGood
	if store == nil || !b.parts.keeps {
		return nil
	}
	return func() (chain, key, roots []byte, err error) {
		id, err := store.Identity()
		if err != nil {
			return nil, nil, nil, err
		}
		return id.Chain, id.Key, id.Roots, nil
	}
}

// keepIdentity keeps each identity of the workload.
func (p *parts) keepIdentity(ctx context.Context, log *slog.Logger) error {
	for {
		changed := p.workload.Changed()
		if id := p.workload.Current(); id != nil && p.workload.Certificate() != nil {
			if err := p.lastGood.PutIdentity(id.ChainPEM, id.KeyPEM, certs.EncodeChain(id.Roots()...)); err != nil {
				log.Warn("the identity is not stored for a cold start", "err", err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// dataDir is for what outlives the agent, relative to the working directory.
const dataDir = "./var/lib/istio/data"
