// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package sds

import (
	"bytes"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/outrigger-mesh/outrigger/certs"
)

// Identity is a key with its certificate and the roots of the mesh. It is immutable; a
// renewal creates a new one.
type Identity struct {
	ChainPEM []byte    // leaf and intermediates; from an authority without a root
	KeyPEM   []byte    // from an authority PKCS#8
	RootsPEM []byte    // empty as long as there is no root file
	NotAfter time.Time // expiry of the leaf
	ID       certs.ID  // of the leaf; the requested one if the leaf's has another form

	roots []*x509.Certificate
	cert  *tls.Certificate
}

// Roots returns the roots of the mesh.
func (id *Identity) Roots() []*x509.Certificate { return id.roots }

// newIdentity checks the answer of an authority: PEM elements, the leaf first, the roots
// last. The authority determines the identity in the leaf, which may differ from the
// requested one.
func newIdentity(key crypto.Signer, elements [][]byte, asked certs.ID, now time.Time) (*Identity, error) {
	if len(elements) < 2 {
		return nil, fmt.Errorf("the response of the certificate authority has %d elements; it must have the leaf first and the root last", len(elements))
	}
	last := len(elements) - 1
	chain, err := certs.ParseChain(bytes.Join(elements[:last], []byte("\n")))
	if err != nil {
		return nil, fmt.Errorf("reading chain from the certificate authority: %w", err)
	}
	roots, err := certs.ParseChain(elements[last])
	if err != nil {
		return nil, fmt.Errorf("reading root from the certificate authority: %w", err)
	}
	chain = withoutRoots(chain, roots)
	if len(chain) == 0 {
		return nil, errors.New("the certificate authority returned only roots")
	}
	leaf := chain[0]
	if !certs.SamePublicKey(leaf.PublicKey, key.Public()) {
		return nil, errors.New("the certificate authority certified a key other than the one of the request")
	}
	if !now.Before(leaf.NotAfter) {
		return nil, fmt.Errorf("the new certificate already expired at %s; compare the clocks", leaf.NotAfter.Format(time.RFC3339))
	}
	if err := verify(chain, roots); err != nil {
		return nil, fmt.Errorf("checking chain from the certificate authority: %w", err)
	}
	keyPEM, err := certs.MarshalKey(key)
	if err != nil {
		return nil, err
	}
	cert := &tls.Certificate{PrivateKey: key, Leaf: leaf}
	for _, c := range chain {
		cert.Certificate = append(cert.Certificate, c.Raw)
	}
	return &Identity{
		ChainPEM: certs.EncodeChain(chain...), KeyPEM: keyPEM, RootsPEM: certs.EncodeChain(roots...),
		NotAfter: leaf.NotAfter, ID: idOf(leaf, asked), roots: roots, cert: cert,
	}, nil
}

// idOf returns the identity in a leaf, or the requested one.
func idOf(leaf *x509.Certificate, asked certs.ID) certs.ID {
	if id, err := certs.CertificateID(leaf); err == nil {
		return id
	}
	return asked
}

// saved returns the identity in the directory of an Output, if it matches the
// configuration.
func (r *renewal) saved() *Identity {
	if r.cfg.Saved == "" {
		return nil
	}
	id, err := loadIdentity(r.cfg.Saved, r.cfg.ID, r.cfg.KeyType, time.Now())
	if err != nil {
		r.log.Info("no certificate of an earlier run is used", "path", r.cfg.Saved, "reason", err.Error())
	}
	return id
}

// kept returns the stored identity of an earlier run, if it matches the configuration.
func (r *renewal) kept() *Identity {
	if r.cfg.Kept == nil {
		return nil
	}
	chain, key, roots, err := r.cfg.Kept()
	if err != nil {
		return nil // the function has logged the reason
	}
	id, err := earlierIdentity([3][]byte{chain, key, roots}, r.cfg.ID, r.cfg.KeyType, time.Now())
	if err != nil {
		r.log.Info("the certificate of an earlier run is not used", "reason", err.Error())
	}
	return id
}

func loadIdentity(dir string, want certs.ID, keyType certs.KeyType, now time.Time) (*Identity, error) {
	contents, err := readFiles([]string{filepath.Join(dir, chainFile), filepath.Join(dir, keyFile), filepath.Join(dir, rootsFile)})
	if err != nil {
		return nil, err
	}
	return earlierIdentity([3][]byte(contents), want, keyType, now)
}

// earlierIdentity parses and checks chain, key and roots.
func earlierIdentity(contents [3][]byte, want certs.ID, keyType certs.KeyType, now time.Time) (*Identity, error) {
	key, err := certs.ParseKey(contents[1])
	if err != nil {
		return nil, err
	}
	if certs.TypeOf(key) != keyType {
		return nil, fmt.Errorf("the key is not of type %s", keyType)
	}
	id, err := newIdentity(key, [][]byte{contents[0], contents[2]}, certs.ID{}, now)
	if err != nil {
		return nil, err
	}
	if id.ID != want {
		return nil, fmt.Errorf("the certificate is not for %s", want)
	}
	return id, nil
}

// withoutRoots returns a chain without the roots, which peers have.
func withoutRoots(chain, roots []*x509.Certificate) []*x509.Certificate {
	var out []*x509.Certificate
	for _, c := range chain {
		isRoot := false
		for _, r := range roots {
			isRoot = isRoot || c.Equal(r)
		}
		if !isRoot {
			out = append(out, c)
		}
	}
	return out
}

// verify checks that the chain leads to one of the roots, at the start of the leaf's
// validity: a local clock that is behind must not reject a certificate that others
// accept. If the authority backdates certificates, it may itself be newer, so verify uses
// the time at which all certificates have become valid.
func verify(chain, roots []*x509.Certificate) error {
	pool, between := x509.NewCertPool(), x509.NewCertPool()
	start, begun := chain[0].NotBefore, chain[0].NotBefore
	for _, r := range roots {
		pool.AddCert(r)
		begun = later(begun, r.NotBefore)
	}
	for _, c := range chain[1:] {
		between.AddCert(c)
		begun = later(begun, c.NotBefore)
	}
	at := func(t time.Time) error {
		_, err := chain[0].Verify(x509.VerifyOptions{
			Roots: pool, Intermediates: between, CurrentTime: t, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
		})
		return err
	}
	err := at(start)
	if err != nil && begun.After(start) && at(begun) == nil {
		return nil
	}
	return err
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
