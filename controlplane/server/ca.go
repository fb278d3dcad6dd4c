// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/ca"
	"github.com/outrigger-mesh/outrigger/controlplane/kube"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/internal/filetree"
)

// identity are the components for certificates and authentication. Without the TLS
// server all of them are nil.
type identity struct {
	authority *ca.Authority
	auth      authn.Authenticator // of callers
	served    []served
	clients   clients // a part of auth
	// Optional components, empty or nil if not configured.
	tokens        []*authn.JWT
	roots         *kube.Roots
	webhookConfig *kube.Webhook
	rootFiles     []*filetree.Follower
}

// run runs the components until ctx is done, and calls changed when the roots of the
// mesh may have changed.
func (i *identity) run(ctx context.Context, changed func()) error {
	if i.authority == nil {
		return nil
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return i.authority.Run(ctx) })             // reads plugged-in files and the store, feeds signing and handshakes
	g.Go(func() error { i.followRoots(ctx, changed); return nil }) // reads the authority's roots, feeds changes
	for _, token := range i.tokens {
		g.Go(func() error { return token.Run(ctx) }) // reads an issuer's keys, feeds authentication
	}
	if i.roots != nil {
		g.Go(func() error { return i.roots.Run(ctx) }) // reads namespaces and the authority, feeds ConfigMaps
	}
	if i.webhookConfig != nil {
		g.Go(func() error { return i.webhookConfig.Run(ctx) }) // reads webhook configurations and the authority, feeds the former
	}
	for _, file := range i.rootFiles {
		g.Go(func() error { return file.Run(ctx) }) // reads additional roots, feeds the authority
	}
	return g.Wait()
}

// followRoots calls changed at once and for each change of the mesh's roots.
func (i *identity) followRoots(ctx context.Context, changed func()) {
	for {
		next := i.authority.Changed() // before the roots are read
		changed()
		select {
		case <-ctx.Done():
			return
		case <-next:
		}
	}
}

// rootsChanged requests a snapshot with the current roots.
func (s *Server) rootsChanged() {
	s.debounce.Add(model.NewChange(model.Key{Kind: model.MeshConfigKind, Name: "roots"}))
}

// limit returns the limit for a rate.
func limit(rate float64) ca.Limit {
	return ca.Limit{PerSecond: rate, Burst: max(1, int(10*rate))}
}

// openAuthority opens the certificate authority. In a cluster it is stored in a Secret,
// which all replicas share, unless a directory is configured.
func (s *Server) openAuthority(ctx context.Context, cfg Config, reg prometheus.Registerer) error {
	authority := ca.Config{
		Dir: cfg.stateDir(), PluginDir: cfg.CA.PluginDir, TrustDomain: s.snapshots.mesh.GetTrustDomain(),
		Root: cfg.CA.Root, MaxTTL: cfg.CA.MaxTTL, Propagation: cfg.CA.Propagation,
		Logger: s.log.With("component", "ca"), Registerer: reg, Fault: s.faults.set,
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
	s.identity.authority, err = ca.Open(ctx, authority)
	return err
}

// registerCertificates adds the certificate service to the TLS server.
func (s *Server) registerCertificates(server *grpc.Server, cfg Config, auth authn.Authenticator, reg prometheus.Registerer) error {
	if !cfg.CA.Enabled {
		s.log.Info("signing of workload certificates is off: ENABLE_CA_SERVER is false", "component", "ca")
		return nil
	}
	to := ca.ServiceConfig{
		Authority: s.identity.authority, Authenticate: trusting{s.accepting(auth)}.Authenticate,
		DefaultTTL: cfg.CA.DefaultTTL, MaxTTL: cfg.CA.MaxTTL,
		Denied:      s.deniedIdentity,
		Nodes:       ca.NodeAccounts{Trusted: cfg.CA.NodeAccounts},
		CallerLimit: limit(cfg.CA.CallerRate), TotalLimit: limit(cfg.CA.IdentityRate),
		Logger: s.log.With("component", "ca"), Registerer: reg,
	}
	if s.kube != nil {
		nodes, err := kube.NewNodes(kube.NodesConfig{
			Client: s.kube, Trusted: slices.Collect(maps.Keys(cfg.CA.NodeAccounts)), TrustDomain: s.snapshots.mesh.GetTrustDomain(),
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
