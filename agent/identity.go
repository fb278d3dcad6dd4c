// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package agent

import (
	"crypto/tls"
	"fmt"
	"path/filepath"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/agent/environ"
	"github.com/outrigger-mesh/outrigger/bootstrap"
	"github.com/outrigger-mesh/outrigger/bootstrap/node"
	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/internal/tlspolicy"
	"github.com/outrigger-mesh/outrigger/sds"
	"github.com/outrigger-mesh/outrigger/sds/caclient"
)

// The directories and files of certificates that are provided to the workload,
// relative to the working directory.
const (
	workloadCertDir = "./var/run/secrets/workload-spiffe-credentials"
	mountedCertDir  = "./etc/certs"
	crlFile         = "./var/run/secrets/istio/crl/ca-crl.pem"
)

// identitySource is the source of the workload's identity.
type identitySource struct {
	// dir contains chain, key and roots; "" means that the certificate authority
	// signs.
	dir string
	// saved is the directory of an earlier identity, which is used until the
	// authority answers: on machines, whose token may have expired by then.
	saved string
	// crl is the file of the revocation list; "" means none.
	crl string
}

func (s identitySource) file(name string) string { return filepath.Join(s.dir, name) }

// resolveIdentity returns the source of the identity.
func resolveIdentity(src sources) (s identitySource, err error) {
	e := src.Environ
	if err := checkSocketFile(e.Identity.SocketFile); err != nil {
		return s, err
	}
	exist := func(dir string, names ...string) bool {
		for _, name := range names {
			if _, err := src.read(filepath.Join(dir, name)); err != nil {
				return false
			}
		}
		return true
	}
	same := func(a, b string) bool {
		return filepath.Clean(a) == filepath.Clean(b) || "/"+filepath.Clean(b) == filepath.Clean(a)
	}
	switch {
	case e.Identity.FileMounted && e.Upstream.ProvCert != "":
		return s, fmt.Errorf("environment variables FILE_MOUNTED_CERTS and PROV_CERT (%q) are both set: the first turns off the certificate authority, the second has the credentials for it; unset one of them", e.Upstream.ProvCert)
	case exist(workloadCertDir, "cert-chain.pem", "key.pem", "root-cert.pem"):
		s.dir = workloadCertDir
	case e.Identity.FileMounted:
		s.dir = mountedCertDir
	case exist(mountedCertDir, "cert-chain.pem", "key.pem") && !same(e.Identity.OutputDir, mountedCertDir):
		s.dir = mountedCertDir
	case e.Workload.KubernetesHost == "":
		s.saved = e.Identity.OutputDir
	}
	if s.dir != "" && e.Identity.OutputDir != "" && same(e.Identity.OutputDir, s.dir) {
		return s, fmt.Errorf("environment variable OUTPUT_CERTS is %q: the certificates are read from there; name another directory or none", e.Identity.OutputDir)
	}
	if _, err := src.read(crlFile); err == nil {
		s.crl = crlFile
	}
	return s, nil
}

// checkCompliance returns an error for an unknown policy, or for a key that it does not have.
func checkCompliance(e environ.Values, key certs.KeyType) error {
	policy, err := tlspolicy.Parse(string(e.Compliance))
	switch {
	case err != nil:
		return fmt.Errorf("environment variable COMPLIANCE_POLICY %w", err)
	case policy == tlspolicy.FIPS1402 && key == certs.ECDSAP384:
		return fmt.Errorf("environment variable ECC_CURVE is P384, and COMPLIANCE_POLICY %s has P256 only; write P256, or the policy %s", policy, tlspolicy.FIPS1403)
	}
	return nil
}

// checkSocketFile returns an error unless WORKLOAD_IDENTITY_SOCKET_FILE is the name of a file. As in
// Istio, it cannot be a path: the directory is a contract with the volumes of pods.
func checkSocketFile(name string) error {
	switch {
	case name != filepath.Base(name) || name == "." || name == "..":
		return fmt.Errorf("environment variable WORKLOAD_IDENTITY_SOCKET_FILE is %q; it must be the name of a file in %s, such as spire.sock", name, bootstrap.SDSDir)
	case len(bootstrap.SDSDir)+1+len(name) > maxSocketPath:
		return fmt.Errorf("environment variable WORKLOAD_IDENTITY_SOCKET_FILE has %d characters; at most %d are possible, because the kernel limits the paths of sockets", len(name), maxSocketPath-len(bootstrap.SDSDir)-1)
	}
	return nil
}

// checkIdentity returns an error for an identity that no authority would certify,
// before anything runs. It does not check identities in files.
func checkIdentity(cfg *settings) error {
	if cfg.source.dir != "" {
		return nil
	}
	for name, value := range map[string]string{"SERVICE_ACCOUNT": cfg.identity.ServiceAccount, "TRUST_DOMAIN": cfg.identity.TrustDomain} {
		if value == "" {
			return fmt.Errorf("environment variable %s is not set; it is part of the workload's identity", name)
		}
	}
	if err := cfg.identity.Validate(); err != nil {
		return fmt.Errorf("environment variables TRUST_DOMAIN, POD_NAMESPACE and SERVICE_ACCOUNT: %w", err)
	}
	return nil
}

// identity creates the components that manage the workload's identity.
func (b *builder) identity() (err error) {
	cfg, p := b.cfg, b.parts
	if b.socks.external { // another server manages it, and serves Envoy
		if cfg.env.Identity.OutputDir != "" {
			b.log.Warn("OUTPUT_CERTS has no effect: another server provides the secrets", "path", cfg.env.Identity.OutputDir)
		}
		return nil
	}
	p.files, err = sds.NewFiles(sds.FilesConfig{Debounce: cfg.env.Identity.FileDebounce, Logger: b.logger("sds"), Registerer: b.registry})
	if err != nil {
		return err
	}
	if cfg.source.dir != "" {
		p.workload, err = sds.NewFileWorkload(sds.FileWorkloadConfig{
			ID: cfg.identity, Files: p.files, CRLFile: cfg.source.crl, Logger: b.logger("sds"), Registerer: b.registry,
			Chain: cfg.source.file("cert-chain.pem"), Key: cfg.source.file("key.pem"), Roots: cfg.source.file("root-cert.pem"),
		})
	} else {
		err = b.signedIdentity()
	}
	if err != nil {
		return err
	}
	if b.socks.sds != nil {
		p.secrets, err = sds.NewServer(sds.ServerConfig{
			Listener: b.socks.sds, Workload: p.workload, Files: p.files, KeyProvider: keyProvider(cfg.proxyConfig.GetPrivateKeyProvider()), Logger: b.logger("sds"),
		})
		if err != nil {
			return err
		}
	}
	if cfg.env.Identity.OutputDir == "" {
		return nil
	}
	out := sds.OutputConfig{Dir: cfg.env.Identity.OutputDir, Workload: p.workload, Logger: b.logger("sds")}
	if cfg.env.Workload.KubernetesHost != "" {
		out.Mode = 0o644 // containers of other users read them
	}
	if p.output, err = sds.NewOutput(out); err != nil {
		return fmt.Errorf("environment variable OUTPUT_CERTS: %w", err)
	}
	return nil
}

// signedIdentity creates an identity that the certificate authority signs.
func (b *builder) signedIdentity() (err error) {
	cfg, p := b.cfg, b.parts
	ca := caclient.Config{
		Address: cfg.ca.address, ServerName: cfg.ca.serverName, TLS: cfg.ca.tlsConfig(b.certificate), Token: tokenSource(cfg.env.Upstream.JWTPolicy),
		ClusterID: cfg.metadata.ClusterID, CertSigner: certSigner(cfg.metadata), Headers: cfg.env.Upstream.CAHeaders, Logger: b.logger("ca"), Registerer: b.registry,
	}
	if ca.TLS == nil {
		ca.Token = nil // never in plaintext
	}
	if p.ca, err = caclient.New(ca); err != nil {
		return err
	}
	p.workload, err = sds.NewWorkload(sds.WorkloadConfig{
		ID: cfg.identity, KeyType: cfg.keyType, TTL: cfg.env.Identity.TTL, GraceRatio: cfg.env.Identity.GraceRatio, Sign: p.ca.Sign,
		Saved: cfg.source.saved, Kept: b.keptIdentity(), Files: p.files, CRLFile: cfg.source.crl, Logger: b.logger("sds"), Registerer: b.registry,
	})
	return err
}

// certificate returns the client certificate of the agent: the workload's own, or nil
// if there is none yet.
func (b *builder) certificate() *tls.Certificate {
	if b.parts.workload == nil {
		return nil
	}
	return b.parts.workload.Certificate()
}

// keyProvider returns Envoy's private key provider; nil means none.
func keyProvider(p *meshv1alpha1.PrivateKeyProvider) *sds.KeyProvider {
	if c := p.GetCryptomb(); c != nil {
		return &sds.KeyProvider{Name: "cryptomb", PollDelay: c.GetPollDelay().AsDuration(), Fallback: c.GetFallback().GetValue()}
	}
	if q := p.GetQat(); q != nil {
		return &sds.KeyProvider{Name: "qat", PollDelay: q.GetPollDelay().AsDuration(), Fallback: q.GetFallback().GetValue()}
	}
	return nil
}

// certSigner returns the name of the signer in the node metadata.
func certSigner(m *node.Metadata) string {
	name, _ := m.Raw["CERT_SIGNER"].(string)
	return name
}

func keyType(e environ.Values) (certs.KeyType, error) {
	switch {
	case e.Identity.KeyAlgorithm == "RSA", e.Identity.KeyAlgorithm == "" && e.Identity.RSAKeySize > 0:
		switch e.Identity.RSAKeySize {
		case 0, 2048:
			return certs.RSA2048, nil
		case 3072:
			return certs.RSA3072, nil
		case 4096:
			return certs.RSA4096, nil
		}
		return "", fmt.Errorf("environment variable WORKLOAD_RSA_KEY_SIZE is %d; it must be 2048, 3072 or 4096", e.Identity.RSAKeySize)
	case e.Identity.KeyAlgorithm != "" && e.Identity.KeyAlgorithm != "ECDSA":
		return "", fmt.Errorf("environment variable ECC_SIGNATURE_ALGORITHM is %q; it must be ECDSA or RSA", e.Identity.KeyAlgorithm)
	case e.Identity.Curve == "P384":
		return certs.ECDSAP384, nil
	case e.Identity.Curve != "P256":
		return "", fmt.Errorf("environment variable ECC_CURVE is %q; it must be P256 or P384", e.Identity.Curve)
	default:
		return certs.ECDSAP256, nil
	}
}
