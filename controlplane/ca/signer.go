// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ca

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"math/big"
	"slices"
	"time"

	"github.com/outrigger-mesh/outrigger/certs"
)

const (
	// backdate is the maximum delay of a peer's clock relative to ours.
	backdate = 2 * time.Minute
	// Minimum and maximum size in bits of RSA keys that are certified. Larger ones only cost time.
	minRSA, maxRSA = 2048, 8192
)

// signer is a key with its certificate chain. It is immutable.
type signer struct {
	kind     string // self-signed or plugged-in, for messages
	key      crypto.Signer
	cert     *x509.Certificate   // the issuer
	chain    []*x509.Certificate // between leaf and root, the issuer first; empty if the issuer is a root
	roots    []*x509.Certificate
	anchor   *x509.Certificate // the root of the chain
	notAfter time.Time         // the earliest expiry of issuer, chain and root
	print    string            // fingerprint of the issuer

	chainPEM []byte
	der      leafDER
}

// fingerprint returns the hexadecimal SHA-256 hash of a certificate.
func fingerprint(c *x509.Certificate) string {
	sum := sha256.Sum256(c.Raw)
	return hex.EncodeToString(sum[:])
}

func fingerprints(list []*x509.Certificate) []string {
	out := make([]string, len(list))
	for i, c := range list {
		out[i] = fingerprint(c)
	}
	return out
}

// complete sets the fields derived from key, certificate and roots, and checks that the signer can
// issue valid certificates of the trust domain.
func (s *signer) complete(trustDomain string) error {
	s.print = fingerprint(s.cert)
	s.notAfter = s.anchor.NotAfter
	for _, c := range append([]*x509.Certificate{s.cert}, s.chain...) {
		if c.NotAfter.Before(s.notAfter) {
			s.notAfter = c.NotAfter
		}
	}
	if len(s.chain) > 0 {
		s.chainPEM = certs.EncodeChain(s.chain...)
	}
	var err error
	if s.der, err = newLeafDER(s.cert, s.key); err != nil {
		return err
	}
	return s.probe(trustDomain)
}

// probe signs a certificate that is not used and verifies it. This detects, for example, name
// constraints that exclude the names of the mesh.
func (s *signer) probe(trustDomain string) error {
	id := certs.ID{TrustDomain: trustDomain, Namespace: "probe", ServiceAccount: "probe"}
	der, err := s.leaf(leafRequest{id: id, key: s.cert.PublicKey, notBefore: s.cert.NotBefore, notAfter: s.notAfter})
	if err != nil {
		return fmt.Errorf("signing a test certificate with it: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return fmt.Errorf("reading a test certificate signed with it: %w", err)
	}
	opts := x509.VerifyOptions{Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool()}
	opts.Roots.AddCert(s.anchor)
	for _, c := range s.chain {
		opts.Intermediates.AddCert(c)
	}
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth} {
		opts.KeyUsages = []x509.ExtKeyUsage{usage}
		if _, err := leaf.Verify(opts); err != nil {
			return fmt.Errorf("certificates for %s that it signs do not verify (%w): use an authority that may sign them", id, err)
		}
	}
	return nil
}

// same reports whether two signers have the same certificate, chain and roots.
func (s *signer) same(o *signer) bool {
	if s == nil || o == nil {
		return s == o
	}
	equal := func(a, b *x509.Certificate) bool { return a.Equal(b) }
	return s.print == o.print && slices.EqualFunc(s.chain, o.chain, equal) && slices.EqualFunc(s.roots, o.roots, equal)
}

// selfSigned reports whether the issuer is its own root.
func (s *signer) selfSigned() bool {
	return len(s.chain) == 0 && s.cert.CheckSignatureFrom(s.cert) == nil
}

// newSelfSigned creates a root.
func newSelfSigned(cfg Config) (*signer, error) {
	key, err := certs.NewKey(cfg.Root.KeyType)
	if err != nil {
		return nil, err
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	now := time.Now()
	tmpl := &x509.Certificate{
		SerialNumber:          serial,
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(cfg.Root.TTL),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	tmpl.Subject.Organization = []string{cfg.TrustDomain}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	s := &signer{kind: kindSelfSigned, key: key, cert: cert, anchor: cert, roots: []*x509.Certificate{cert}}
	return s, s.complete(cfg.TrustDomain)
}

// newSerial returns a random 128-bit number with the highest bit set, so that it is never zero and
// always has the same length.
func newSerial() (*big.Int, error) {
	var b [16]byte
	if _, err := rand.Read(b[:]); err != nil {
		return nil, fmt.Errorf("making serial number: %w", err)
	}
	b[0] |= 0x80
	return new(big.Int).SetBytes(b[:]), nil
}

// checkKey returns an error for public keys that are too weak to be certified.
func checkKey(pub crypto.PublicKey) error {
	switch k := pub.(type) {
	case *ecdsa.PublicKey:
		if k.Curve != elliptic.P256() && k.Curve != elliptic.P384() {
			return fmt.Errorf("ECDSA keys on curve %s are not supported; use P-256 or P-384", k.Curve.Params().Name)
		}
		return nil
	case *rsa.PublicKey:
		if n := k.N.BitLen(); n < minRSA || n > maxRSA {
			return fmt.Errorf("RSA keys of %d bits are not supported; use %d to %d", n, minRSA, maxRSA)
		}
		return nil
	default:
		return fmt.Errorf("keys of type %T are not supported; use ECDSA or RSA", pub)
	}
}
