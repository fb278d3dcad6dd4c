// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ca

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"github.com/outrigger-mesh/outrigger/certs"
)

// The kinds of authorities, for messages.
const (
	kindSelfSigned = "self-signed"
	kindKept       = "kept" // in the store, and signed by another root
	kindPlugged    = "plugged-in"
)

// layout contains the names of the parts of an authority. An empty name means that there is no such
// part.
type layout struct{ key, cert, chain, root string }

// layouts returns the layouts of Istio's cacerts and of a TLS Secret with its authority, as written
// by cert-manager. The first one whose key or certificate exists is used.
func layouts() []layout {
	return []layout{
		{keyFile, certFile, chainFile, rootFile},
		{"tls.key", "tls.crt", "", "ca.crt"},
	}
}

// errNone means that there is no authority.
var errNone = errors.New("no authority yet")

// loadSigner parses and validates an authority. Its errors name the part and the fix.
func loadSigner(m Material, l layout, trustDomain string) (*signer, error) {
	keyPEM, hasKey := m[l.key]
	certPEM, hasCert := m[l.cert]
	const cure = "restore it from a backup, or move %s away so that a new root is created, which must then be distributed to all workloads"
	switch {
	case !hasKey && !hasCert:
		return nil, errNone
	case !hasKey:
		return nil, fmt.Errorf("%s exists but %s is missing: "+cure, l.cert, l.key, l.cert)
	case !hasCert:
		return nil, fmt.Errorf("%s exists but %s is missing: "+cure, l.key, l.cert, l.key)
	}
	key, err := certs.ParseKey(keyPEM)
	if err != nil {
		return nil, fmt.Errorf("%s cannot be read (%w): restore it from a backup", l.key, err)
	}
	issuers, err := certs.ParseChain(certPEM)
	if err != nil {
		return nil, fmt.Errorf("%s cannot be read (%w): restore it from a backup", l.cert, err)
	}
	s := &signer{key: key, cert: issuers[0]}
	if err := s.check(l); err != nil {
		return nil, err
	}
	between := issuers[1:]
	if text := m.text(l.chain); text != nil {
		more, err := certs.ParseChain(text)
		if err != nil {
			return nil, fmt.Errorf("%s cannot be read (%w): restore it, or remove it if %s is signed by a root", l.chain, err, l.cert)
		}
		between = append(between, more...)
	}
	if err := s.findRoots(m, l, between); err != nil {
		return nil, err
	}
	if err := s.complete(trustDomain); err != nil {
		return nil, fmt.Errorf("%s: %w", l.cert, err)
	}
	return s, nil
}

// text returns a part, or nil if it is missing or empty. Istio writes empty parts into its Secret.
func (m Material) text(name string) []byte {
	if t := m[name]; len(bytes.TrimSpace(t)) > 0 {
		return t
	}
	return nil
}

// check validates the key and the certificate of the issuer.
func (s *signer) check(l layout) error {
	if !certs.SamePublicKey(s.cert.PublicKey, s.key.Public()) {
		return fmt.Errorf("%s does not belong to %s: restore the file that was replaced, so that both form a pair", l.cert, l.key)
	}
	if err := checkKey(s.key.Public()); err != nil {
		return fmt.Errorf("%s is too weak (%w): replace both %s and %s", l.key, err, l.key, l.cert)
	}
	if !s.cert.BasicConstraintsValid || !s.cert.IsCA || s.cert.KeyUsage != 0 && s.cert.KeyUsage&x509.KeyUsageCertSign == 0 {
		return fmt.Errorf("%s is not the certificate of an authority: replace it by one with CA:TRUE and the key usage keyCertSign", l.cert)
	}
	now := time.Now()
	if !now.Before(s.cert.NotAfter) {
		return fmt.Errorf("%s expired at %s: replace it, or move %s and %s away so that a new root is created",
			l.cert, s.cert.NotAfter.Format(time.RFC3339), l.cert, l.key)
	}
	if now.Before(s.cert.NotBefore) {
		return fmt.Errorf("%s is not valid before %s: replace it, or set the clock of this machine", l.cert, s.cert.NotBefore.Format(time.RFC3339))
	}
	return nil
}

// findRoots parses the roots and builds the chain from the issuer to one of them. A self-signed
// issuer is its own root.
func (s *signer) findRoots(m Material, l layout, between []*x509.Certificate) error {
	text := m.text(l.root)
	if text == nil {
		if s.cert.CheckSignatureFrom(s.cert) != nil {
			return fmt.Errorf("%s is missing and %s is not self-signed: put the root that signed it into %s", l.root, l.cert, l.root)
		}
		s.anchor, s.roots = s.cert, []*x509.Certificate{s.cert}
		return nil
	}
	var err error
	if s.roots, err = certs.ParseChain(text); err != nil {
		return fmt.Errorf("%s cannot be read (%w): restore it from a backup", l.root, err)
	}
	opts := x509.VerifyOptions{
		Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool(),
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	}
	for _, r := range s.roots {
		if r.Equal(s.cert) {
			s.anchor = s.cert
			return nil
		}
		opts.Roots.AddCert(r)
	}
	for _, c := range between {
		opts.Intermediates.AddCert(c)
	}
	chains, err := s.cert.Verify(opts)
	if err != nil {
		return fmt.Errorf("%s is not signed by a root of %s (%w): put the root that signed it into %s%s", l.cert, l.root, err, l.root, l.between())
	}
	last := len(chains[0]) - 1
	s.chain, s.anchor = chains[0][:last], chains[0][last]
	return nil
}

// between returns the part of an error message that names the file for intermediate certificates.
func (l layout) between() string {
	if l.chain == "" {
		return ""
	}
	return ", and the intermediates into " + l.chain
}
