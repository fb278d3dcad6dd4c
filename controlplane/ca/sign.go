// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ca

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/certs"
)

// ErrRequest is wrapped by the errors of Sign that are caused by the request.
var ErrRequest = errors.New("certificate request refused")

// Issued is an issued certificate.
type Issued struct {
	Chain    [][]byte // the leaf, any intermediates, and the roots, each element as PEM
	Serial   *big.Int
	NotAfter time.Time
	Signer   string // name of the signer, for messages
}

// Sign certifies the key of a PEM certificate request for an identity that the caller of Sign has
// authenticated. Only the key of the request is used. An error that wraps ErrRequest is caused by
// the request.
func (a *Authority) Sign(ctx context.Context, csrPEM []byte, id certs.ID, ttl time.Duration) (*Issued, error) {
	if err := id.Validate(); err != nil {
		return nil, fmt.Errorf("signing certificate: %w", err)
	}
	if id.TrustDomain != a.cfg.TrustDomain {
		return nil, fmt.Errorf("signing certificate: %s is not of trust domain %s", id, a.cfg.TrustDomain)
	}
	csr, err := readRequest(csrPEM, id)
	if err != nil {
		return nil, err
	}
	st, life, err := a.track(ctx, ttl)
	if err != nil {
		return nil, fmt.Errorf("signing certificate for %s: %w", id, err)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, fmt.Errorf("signing certificate for %s: %w", id, err)
	}
	der, err := st.signer.leaf(leafRequest{serial: serial, id: id, key: csr.PublicKey, notBefore: life.notBefore, notAfter: life.notAfter})
	if err != nil {
		return nil, fmt.Errorf("signing certificate for %s: %w", id, err)
	}
	issued := &Issued{Serial: serial, NotAfter: life.notAfter, Signer: st.signer.kind}
	issued.Chain = append(issued.Chain, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	if st.signer.chainPEM != nil {
		issued.Chain = append(issued.Chain, st.signer.chainPEM)
	}
	issued.Chain = append(issued.Chain, st.bundlePEM)
	return issued, nil
}

// readRequest parses a request and checks its signature and its key, and that it requests no other
// identity.
func readRequest(csrPEM []byte, id certs.ID) (*x509.CertificateRequest, error) {
	csr, err := certs.ParseCSR(csrPEM)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRequest, err)
	}
	if err := checkKey(csr.PublicKey); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRequest, err)
	}
	for _, u := range csr.URIs {
		if strings.EqualFold(u.Scheme, "spiffe") && u.String() != id.String() {
			return nil, fmt.Errorf("%w: it requests an identity other than %s, that of the caller", ErrRequest, id)
		}
	}
	return csr, nil
}

// life is the validity period of a certificate.
type life struct{ notBefore, notAfter time.Time }

// life returns the validity period for a lifetime, limited to that of the signer, because a
// certificate must not outlive its issuer.
func (s *signer) life(ttl time.Duration, now time.Time) (life, error) {
	if ttl <= 0 {
		return life{}, fmt.Errorf("the lifetime of a certificate cannot be %s", ttl)
	}
	if !now.Before(s.notAfter) {
		return life{}, fmt.Errorf("the certificate of the authority expired at %s", s.notAfter.UTC().Format(time.RFC3339))
	}
	l := life{now.Add(-backdate), now.Add(ttl)}
	if l.notBefore.Before(s.cert.NotBefore) {
		l.notBefore = s.cert.NotBefore
	}
	if l.notAfter.After(s.notAfter) {
		l.notAfter = s.notAfter
	}
	// Certificates contain whole seconds; truncated here so that the log shows the same time.
	l.notAfter = l.notAfter.Truncate(time.Second)
	return l, nil
}

// issueServer signs a certificate for a server of the control plane.
func (s *signer) issueServer(tmpl *x509.Certificate, pub crypto.PublicKey, ttl time.Duration) (*x509.Certificate, error) {
	l, err := s.life(ttl, time.Now())
	if err != nil {
		return nil, err
	}
	if tmpl.SerialNumber, err = newSerial(); err != nil {
		return nil, err
	}
	tmpl.NotBefore, tmpl.NotAfter = l.notBefore, l.notAfter
	tmpl.BasicConstraintsValid = true
	tmpl.KeyUsage = x509.KeyUsageDigitalSignature
	if _, ok := pub.(*rsa.PublicKey); ok {
		tmpl.KeyUsage |= x509.KeyUsageKeyEncipherment
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, s.cert, pub, s.key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// trackTimeout limits how long signing a certificate waits for the store.
const trackTimeout = 2 * time.Second

// track returns the state to sign with and the validity period of the certificate. After a
// rotation, the old root must be trusted for the longest lifetime that was ever issued. A new
// longest lifetime is therefore saved before the certificate is issued, which happens only a few
// times per root. A failure to save does not prevent issuing; Run retries.
func (a *Authority) track(ctx context.Context, ttl time.Duration) (*state, life, error) {
	for {
		st := a.state.Load()
		now := time.Now()
		l, err := st.signer.life(min(ttl, a.cfg.MaxTTL), now)
		if err != nil {
			return nil, life{}, err
		}
		longest := int64(l.notAfter.Sub(now))
		if longest <= st.longest.Load() {
			return st, l, nil
		}
		a.mu.Lock()
		if a.state.Load() == st && longest > st.longest.Load() {
			a.remember(ctx, st, roundUp(time.Duration(longest)))
		}
		a.mu.Unlock()
	}
}

// remember saves a new longest lifetime. The caller holds mu.
func (a *Authority) remember(ctx context.Context, st *state, longest time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, trackTimeout)
	defer cancel()
	st.longest.Store(int64(longest))
	a.grown = true
	if err := a.refresh(ctx); err != nil {
		a.say(&a.said.grown, unsavedLifetime, err)
	}
}

// roundUp rounds up a lifetime to limit the number of distinct lifetimes.
func roundUp(d time.Duration) time.Duration {
	unit := time.Minute
	switch {
	case d > 24*time.Hour:
		unit = 24 * time.Hour
	case d > time.Hour:
		unit = time.Hour
	}
	return (d + unit - 1) / unit * unit
}
