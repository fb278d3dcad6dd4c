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
	// RegistrationAuthority is the one value that EXTERNAL_CA has.
	RegistrationAuthority = "ISTIOD_RA_KUBERNETES_API"
	// SignerRootFile holds the roots of signers of the cluster.
	SignerRootFile = "./etc/external-ca-cert/root-cert.pem"
	// signerRootEvery is how often the file is looked at.
	signerRootEvery = 10 * time.Second
)

// newRemoteSigner makes the way to the signers of the cluster; nil if none is
// asked for.
func (s *Server) newRemoteSigner(cfg SignerConfig) (ca.RemoteSigner, error) {
	switch {
	case cfg.External == "" && cfg.Name+cfg.Domain != "":
		s.log.Warn("K8S_SIGNER and CERT_SIGNER_DOMAIN have no effect: EXTERNAL_CA is not "+RegistrationAuthority, "component", "ca")
		return nil, nil
	case cfg.External == "":
		return nil, nil
	case s.kube == nil:
		return nil, errors.New("EXTERNAL_CA asks for signers of Kubernetes, and no cluster is known: give --kubeconfig, or run in a pod with a service account")
	case cfg.Name+cfg.Domain == "":
		return nil, errors.New("EXTERNAL_CA asks for signers of Kubernetes, and none is named: set K8S_SIGNER, CERT_SIGNER_DOMAIN, or both")
	}
	if err := s.followFile(SignerRootFile, "signers"); err != nil {
		return nil, err
	}
	return kube.NewRegistrationAuthority(kube.RegistrationConfig{
		Client: s.kube, Signer: cfg.Name, Domain: cfg.Domain, Approve: true, Logger: s.log.With("component", "ca"),
	})
}

// rootsOfMesh is the source of the roots that the mesh config names.
const rootsOfMesh = "caCertificates of the mesh config"

// meshRoots reads the further roots of the mesh config.
func meshRoots(mesh *meshv1alpha1.MeshConfig) ([]byte, error) {
	var out []byte
	for i, c := range mesh.GetCaCertificates() {
		if c.GetSpiffeBundleUrl() != "" {
			return nil, fmt.Errorf("mesh config: caCertificates[%d] names the bundle %q, and bundles are not fetched: put the certificates into pem", i, c.GetSpiffeBundleUrl())
		}
		for _, td := range c.GetTrustDomains() {
			// A root that is trusted signs for every identity.
			if td != mesh.GetTrustDomain() && !slices.Contains(mesh.GetTrustDomainAliases(), td) {
				return nil, fmt.Errorf("mesh config: caCertificates[%d] is for the trust domain %q, and roots cannot be kept apart by trust domain: remove it, or add %q to trustDomainAliases if it is another name of %s", i, td, td, mesh.GetTrustDomain())
			}
		}
		out = append(append(out, c.GetPem()...), '\n')
	}
	return out, nil
}

// maxRootBytes bounds a file with roots.
const maxRootBytes = 1 << 20

// followFile trusts the roots in a file, under the name of who they are of, and
// follows it. It may be missing at first.
func (s *Server) followFile(path, of string) error {
	log := s.log.With("component", "ca")
	file := filetree.NewFollower(filetree.FollowerConfig{
		Path: path, MaxBytes: maxRootBytes, Every: signerRootEvery, Optional: true,
		Take: func(pem []byte) error { return s.identity.authority.SetRoots(of, pem) },
		Report: func(err error) {
			if err != nil {
				log.Warn("roots that are trusted stay as they are", "path", path, "err", err)
			}
		},
	})
	s.identity.rootFiles = append(s.identity.rootFiles, file)
	if err := file.Look(); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
