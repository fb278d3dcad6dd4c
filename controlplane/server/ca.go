// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/ca"
	"github.com/outrigger-mesh/outrigger/controlplane/kube"
)

// limit makes a limit of a rate.
func limit(rate float64) ca.Limit {
	return ca.Limit{PerSecond: rate, Burst: max(1, int(10*rate))}
}

// openAuthority opens the authority. In a cluster it is in a Secret, which all
// replicas share, unless a directory is named.
func (s *Server) openAuthority(ctx context.Context, cfg Config, reg prometheus.Registerer) error {
	authority := ca.Config{
		Dir: cfg.stateDir(), PluginDir: cfg.CA.PluginDir, TrustDomain: s.mesh.GetTrustDomain(),
		Root: cfg.CA.Root, MaxTTL: cfg.CA.MaxTTL, Propagation: cfg.CA.Propagation,
		Logger: s.log.With("component", "ca"), Registerer: reg,
	}
	if s.kube != nil && cfg.StateDir == "" {
		store, err := kube.NewAuthorityStore(s.kube, cfg.Namespace)
		if err != nil {
			return err
		}
		if !ca.PluggedIn(authority.PluginDir) {
			if err := store.Wait(ctx); err != nil {
				return fmt.Errorf("opening certificate authority: %w", err)
			}
		}
		authority.Dir, authority.Store = "", store
	}
	var err error
	s.authority, err = ca.Open(ctx, authority)
	return err
}

// registerCertificates adds the certificate service to the TLS server.
func (s *Server) registerCertificates(server *grpc.Server, cfg Config, auth authn.Authenticator, reg prometheus.Registerer) error {
	if !cfg.CA.Enabled {
		s.log.Info("certificates of workloads are signed elsewhere: ENABLE_CA_SERVER is false", "component", "ca")
		return nil
	}
	to := ca.ServiceConfig{
		Authority: s.authority, Authenticate: auth.Authenticate,
		DefaultTTL: cfg.CA.DefaultTTL, MaxTTL: cfg.CA.MaxTTL,
		Denied:      s.deniedIdentity,
		Nodes:       ca.NodeAccounts{Trusted: cfg.CA.NodeAccounts},
		CallerLimit: limit(cfg.CA.CallerRate), TotalLimit: limit(cfg.CA.IdentityRate),
		Logger: s.log.With("component", "ca"), Registerer: reg,
	}
	if s.kube != nil {
		nodes, err := kube.NewNodes(kube.NodesConfig{
			Client: s.kube, Trusted: slices.Collect(maps.Keys(cfg.CA.NodeAccounts)), TrustDomain: s.mesh.GetTrustDomain(),
		})
		if err != nil {
			return err
		}
		to.Nodes = ca.NodeAccounts{Trusted: nodes.Trusted(), MayImpersonate: nodes.Authorize}
	}
	remote, err := s.newRemoteSigner(cfg.CA.Signer)
	if err != nil {
		return err
	}
	if remote != nil {
		to.Remote, to.RemoteName = remote, cfg.CA.Signer.Name
	}
	service, err := ca.NewService(to)
	if err != nil {
		return err
	}
	service.Register(server)
	return nil
}
