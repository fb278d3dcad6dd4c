// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package sds

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/certs"
)

// FileWorkloadConfig describes a Workload whose certificate comes in files.
type FileWorkloadConfig struct {
	ID         certs.ID              // who this is, where the certificate does not say so
	Files      *Files                // follows the files
	Chain      string                // file with the leaf, then the intermediates
	Key        string                // file with its key
	Roots      string                // file with the roots of the mesh
	CRLFile    string                // revoked certificates, PEM; empty means none
	Logger     *slog.Logger          // nil means slog.Default()
	Registerer prometheus.Registerer // nil means no metrics
}

// NewFileWorkload returns a Workload whose chain, key and roots somebody else
// keeps valid in files. They are read once Files runs, and whenever they change.
// Files that are missing are waited for.
func NewFileWorkload(cfg FileWorkloadConfig) (*Workload, error) {
	if cfg.Files == nil {
		return nil, errors.New("identity of the workload: nothing follows its files")
	}
	for what, path := range map[string]string{"chain": cfg.Chain, "key": cfg.Key, "roots": cfg.Roots} {
		if path == "" {
			return nil, fmt.Errorf("identity of the workload: there is no path of the file with its %s", what)
		}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	w := &Workload{log: cfg.Logger, run: func(ctx context.Context) error {
		<-ctx.Done() // Files does the work
		return nil
	}}
	w.start()
	if err := registerExpiry(cfg.Registerer, w, cfg.Files); err != nil {
		return nil, err
	}
	cfg.Files.follow(&group{paths: []string{cfg.Chain, cfg.Key}, take: func(contents [][]byte) error { return w.takePair(cfg.ID, contents) }})
	cfg.Files.follow(&group{paths: []string{cfg.Roots}, take: func(contents [][]byte) error {
		roots, err := certs.ParseChain(contents[0])
		if err != nil {
			return fmt.Errorf("reading roots: %w", err)
		}
		w.update(func(in *inputs) { in.roots = roots })
		return nil
	}})
	if cfg.CRLFile != "" {
		w.followCRL(cfg.Files, cfg.CRLFile)
	}
	return w, nil
}

// takePair puts a chain and its key in force. Whether the chain leads to the
// roots is not asked: the roots are those of the peers.
func (w *Workload) takePair(asked certs.ID, contents [][]byte) error {
	cert, chain, err := parsePair(contents[0], contents[1])
	if err != nil {
		return err
	}
	leaf := chain[0]
	id := &Identity{ChainPEM: contents[0], KeyPEM: contents[1], NotAfter: leaf.NotAfter, ID: idOf(leaf, asked), cert: cert}
	w.update(func(in *inputs) { in.own = id })
	attrs := []any{"identity", id.ID.String(), "expires", leaf.NotAfter.UTC().Format(time.RFC3339)}
	if time.Now().After(leaf.NotAfter) {
		w.log.Error("the certificate in the files has run out, peers will refuse it", attrs...)
		return nil
	}
	w.log.Info("certificate read from files", attrs...)
	return nil
}

// end returns when peers begin to refuse the identity: when its leaf, one of its
// intermediates or the last of the roots has run out.
func (id *Identity) end() time.Time {
	end := id.NotAfter
	for _, der := range id.cert.Certificate[1:] {
		if c, err := x509.ParseCertificate(der); err == nil { // it was read before
			end = earlier(end, c.NotAfter)
		}
	}
	if len(id.roots) == 0 {
		return end
	}
	var last time.Time
	for _, r := range id.roots {
		if r.NotAfter.After(last) {
			last = r.NotAfter
		}
	}
	return earlier(end, last)
}
