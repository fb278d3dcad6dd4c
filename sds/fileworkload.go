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

// FileWorkloadConfig configures a Workload whose certificate is in files.
type FileWorkloadConfig struct {
	ID         certs.ID              // identity if the certificate has none
	Files      *Files                // follows the files
	Chain      string                // file with the leaf, then the intermediates
	Key        string                // file with its key
	Roots      string                // file with the roots of the mesh
	CRLFile    string                // revoked certificates, PEM; empty means none
	Logger     *slog.Logger          // nil means slog.Default()
	Registerer prometheus.Registerer // nil means no metrics
}

// NewFileWorkload returns a Workload whose chain, key and roots are in files that another
// program renews. They are read once Files runs, and whenever they change. It waits for
// missing files.
func NewFileWorkload(cfg FileWorkloadConfig) (*Workload, error) {
	if cfg.Files == nil {
		return nil, errors.New("identity of the workload: its files are not watched")
	}
	for what, path := range map[string]string{"chain": cfg.Chain, "key": cfg.Key, "roots": cfg.Roots} {
		if path == "" {
			return nil, fmt.Errorf("identity of the workload: the path of the file with its %s is missing", what)
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

// takePair applies a chain and its key. It does not verify the chain with the roots,
// which are for the certificates of peers.
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
		w.log.Error("the certificate in the files has expired; peers will refuse it", attrs...)
		return nil
	}
	w.log.Info("certificate read from files", attrs...)
	return nil
}

// end returns the time from which peers refuse the identity: the expiry of its leaf, of
// one of its intermediates, or of the last root.
func (id *Identity) end() time.Time {
	end := id.NotAfter
	for _, der := range id.cert.Certificate[1:] {
		if c, err := x509.ParseCertificate(der); err == nil { // it was parsed before
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
