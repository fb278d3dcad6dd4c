// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/controlplane/jwks"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/internal/specialaddr"
)

// KeySetsConfig configures how the keys of RequestAuthentications are fetched.
type KeySetsConfig struct {
	Refresh      time.Duration // interval
	AllowedHosts []string      // special addresses that may be contacted
	RootFile     string        // additional roots in PEM; the file may be missing
}

// firstKeysWait is how long the first snapshot waits for keys that are not on disk. A snapshot
// without them would make proxies refuse tokens that they accepted before a restart of the control
// plane.
const firstKeysWait = 6 * time.Second

// maxRootFile is the maximum size of the file of additional roots in bytes.
const maxRootFile = 4 << 20

// newKeySets creates the follower of the keys of token issuers.
func (s *Server) newKeySets(cfg Config, reg prometheus.Registerer) error {
	allowed, err := specialaddr.ParseAllowed(cfg.KeySets.AllowedHosts)
	if err != nil {
		return fmt.Errorf("environment variable OUTRIGGER_JWKS_ALLOWED_HOSTS: %w", err)
	}
	s.objects.keysTried = make(chan struct{})
	s.objects.keySets, err = jwks.NewFollower(jwks.FollowerConfig{
		Dir: filepath.Join(filepath.Dir(cfg.stateDir()), "jwks"), Allowed: allowed, Refresh: cfg.KeySets.Refresh,
		TLS:      cfg.Compliance,
		RootCAs:  func() (*x509.CertPool, error) { return rootsWith(cfg.KeySets.RootFile) },
		OnChange: func(objects []model.Key) { s.debounce.Add(model.NewChange(objects...)) },
		Logger:   s.log.With("component", "jwks"), Registerer: reg,
	})
	return err
}

// rootsWith returns the roots of the system and those in a file.
func rootsWith(path string) (*x509.CertPool, error) {
	roots, err := x509.SystemCertPool()
	if err != nil {
		return nil, fmt.Errorf("reading the roots of the system: %w", err)
	}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || path == "" {
		return roots, nil
	}
	if err == nil && (!info.Mode().IsRegular() || info.Size() > maxRootFile) {
		err = fmt.Errorf("it is not a file of at most %d bytes", maxRootFile)
	}
	var text []byte
	if err == nil {
		text, err = os.ReadFile(path)
	}
	if err == nil && !roots.AppendCertsFromPEM(text) {
		err = errors.New("it contains no certificate in PEM")
	}
	if err != nil {
		return nil, fmt.Errorf("reading additional roots %s: %w", path, err)
	}
	return roots, nil
}

// waitForKeys waits until the keys that the loaded objects need were fetched, or could not be
// fetched, for a limited time.
func (s *Server) waitForKeys(ctx context.Context) {
	s.objects.keySets.Follow(snapshot.KeySources(s.objects.list(model.RequestAuthentication)))
	wait := time.NewTimer(firstKeysWait)
	defer wait.Stop()
	// Cases: all keys were tried; an issuer does not answer; the end.
	select {
	case <-s.objects.keySets.Tried():
	case <-wait.C:
	case <-ctx.Done():
	}
	close(s.objects.keysTried)
}
