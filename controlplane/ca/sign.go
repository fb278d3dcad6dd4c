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

// ErrRequest is wrapped by the errors of Sign that are the fault of the caller.
var ErrRequest = errors.New("certificate request refused")

// Issued is a certificate that was signed.
type Issued struct {
	Chain    [][]byte // the leaf, the intermediates if there are any, and the roots, each element as PEM
	Serial   *big.Int
	NotAfter time.Time
	Signer   string // what signed, for messages
}

// Sign certifies the key of a PEM certificate request for the identity, which
// the caller has authenticated. Of the request, only the key is used. Errors
// that wrap ErrRequest are the fault of the request.
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

// readRequest parses a request and checks its signature, its key, and that it
// asks for no other identity.
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
			return nil, fmt.Errorf("%w: it asks for another identity than %s, which the caller has proved", ErrRequest, id)
		}
	}
	return csr, nil
}

// life is from when until when a certificate is valid.
type life struct{ notBefore, notAfter time.Time }

// life cuts a life to that of the signer: a certificate never outlives its
// issuer.
func (s *signer) life(ttl time.Duration, now time.Time) (life, error) {
	if ttl <= 0 {
		return life{}, fmt.Errorf("a certificate cannot live %s", ttl)
	}
	if !now.Before(s.notAfter) {
		return life{}, fmt.Errorf("the certificate of the authority ran out at %s", s.notAfter.UTC().Format(time.RFC3339))
	}
	l := life{now.Add(-backdate), now.Add(ttl)}
	if l.notBefore.Before(s.cert.NotBefore) {
		l.notBefore = s.cert.NotBefore
	}
	if l.notAfter.After(s.notAfter) {
		l.notAfter = s.notAfter
	}
	// Certificates hold whole seconds; the text of the log says the same.
	l.notAfter = l.notAfter.Truncate(time.Second)
	return l, nil
}

// issueServer signs a certificate of a server of the control plane.
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

// trackTimeout bounds how long a certificate waits for the store.
const trackTimeout = 2 * time.Second

// track returns the state to sign with and the life of the certificate. How
// long the old root must be trusted after a rotation follows from the longest
// life that was ever given; so a longer one than before is written down before
// the certificate exists. That happens a handful of times in the life of a
// root. A store that cannot be written does not keep workloads from their
// certificates: it is tried again by Run.
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

// remember writes a new longest life down. The caller holds mu.
func (a *Authority) remember(ctx context.Context, st *state, longest time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, trackTimeout)
	defer cancel()
	st.longest.Store(int64(longest))
	a.grown = true
	if err := a.refresh(ctx); err != nil {
		a.say(&a.said.save, "how long certificates live is not written down, which is tried again", err)
	}
}

// roundUp keeps the number of different lives small.
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
