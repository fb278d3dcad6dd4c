// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"errors"
	"fmt"
	"slices"
	"time"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/controlplane/ca"
	"github.com/outrigger-mesh/outrigger/controlplane/kube"
	"github.com/outrigger-mesh/outrigger/internal/filetree"
)

const (
	// RegistrationAuthority is the only value of EXTERNAL_CA.
	RegistrationAuthority = "ISTIOD_RA_KUBERNETES_API"
	// SignerRootFile contains the roots of the cluster's signers.
	SignerRootFile = "./etc/external-ca-cert/root-cert.pem"
	// signerRootEvery is how often the file is checked.
	signerRootEvery = 10 * time.Second
)

// newRemoteSigner creates the client of the cluster's signers; it returns nil if none is
// configured.
func (s *Server) newRemoteSigner(cfg SignerConfig) (ca.RemoteSigner, error) {
	switch {
	case cfg.External == "" && cfg.Name+cfg.Domain != "":
		s.log.Warn("K8S_SIGNER and CERT_SIGNER_DOMAIN have no effect: EXTERNAL_CA is not "+RegistrationAuthority, "component", "ca")
		return nil, nil
	case cfg.External == "":
		return nil, nil
	case s.kube == nil:
		return nil, errors.New("EXTERNAL_CA requires signers of Kubernetes, but there is no cluster: set --kubeconfig, or run in a pod with a service account")
	case cfg.Name+cfg.Domain == "":
		return nil, errors.New("EXTERNAL_CA requires signers of Kubernetes, but none is named: set K8S_SIGNER, CERT_SIGNER_DOMAIN, or both")
	}
	if err := s.followFile(SignerRootFile, "signers"); err != nil {
		return nil, err
	}
	return kube.NewRegistrationAuthority(kube.RegistrationConfig{
		Client: s.kube, Signer: cfg.Name, Domain: cfg.Domain, Approve: true, Logger: s.log.With("component", "ca"),
	})
}

// rootsOfMesh is the name of the roots in the mesh config.
const rootsOfMesh = "caCertificates of the mesh config"

// meshRoots returns the additional roots of the mesh config.
func meshRoots(mesh *meshv1alpha1.MeshConfig) ([]byte, error) {
	var out []byte
	for i, c := range mesh.GetCaCertificates() {
		if c.GetSpiffeBundleUrl() != "" {
			return nil, fmt.Errorf("mesh config: caCertificates[%d] names the bundle %q, but bundles are not fetched: put the certificates into pem", i, c.GetSpiffeBundleUrl())
		}
		for _, td := range c.GetTrustDomains() {
			// A trusted root can sign every identity.
			if td != mesh.GetTrustDomain() && !slices.Contains(mesh.GetTrustDomainAliases(), td) {
				return nil, fmt.Errorf("mesh config: caCertificates[%d] is for the trust domain %q, but roots cannot be separated by trust domain: remove it, or add %q to trustDomainAliases if it is another name of %s", i, td, td, mesh.GetTrustDomain())
			}
		}
		out = append(append(out, c.GetPem()...), '\n')
	}
	return out, nil
}

// maxRootBytes is the size limit of a file with roots.
const maxRootBytes = 1 << 20

// followFile adds the roots in a file to the authority, under the name of their owner,
// and follows it. The file may be missing at first.
func (s *Server) followFile(path, of string) error {
	log := s.log.With("component", "ca")
	file := filetree.NewFollower(filetree.FollowerConfig{
		Path: path, MaxBytes: maxRootBytes, Every: signerRootEvery, Optional: true,
		Take: func(pem []byte) error { return s.identity.authority.SetRoots(of, pem) },
		Report: func(err error) {
			if err != nil {
				log.Warn("root file not applied; the previous roots stay in force", "path", path, "err", err)
			}
		},
	})
	s.identity.rootFiles = append(s.identity.rootFiles, file)
	if err := file.Look(); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
