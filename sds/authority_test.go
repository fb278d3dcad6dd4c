// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package sds_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/e2e/ownnet"
	"github.com/outrigger-mesh/outrigger/sds"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(ownnet.Tests(m)) }

func web() certs.ID {
	return certs.ID{TrustDomain: "cluster.local", Namespace: "default", ServiceAccount: "web"}
}

// authority is an in-memory certificate authority that signs for any caller.
type authority struct {
	t    testing.TB
	key  crypto.Signer
	root *x509.Certificate // replaced by replaceRoot, under mu

	mu    sync.Mutex // guards the fields below
	fail  error      // error that Sign returns, if set
	life  time.Duration
	ahead time.Duration // shift of the validity period of certificates
	asked []time.Time
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{t: t}
	a.key, a.root = newRoot(t)
	return a
}

// replaceRoot replaces the key and the root, as if another authority took over.
func (a *authority) replaceRoot() {
	key, root := newRoot(a.t)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.key, a.root = key, root
}

// crl returns a PEM-encoded revocation list that is valid for the given time.
func (a *authority) crl(number int64, life time.Duration, revoked ...*big.Int) []byte {
	list := &x509.RevocationList{Number: big.NewInt(number), ThisUpdate: time.Now().Add(-time.Hour), NextUpdate: time.Now().Add(life)}
	for _, serial := range revoked {
		list.RevokedCertificateEntries = append(list.RevokedCertificateEntries, x509.RevocationListEntry{SerialNumber: serial, RevocationTime: time.Now()})
	}
	der, err := x509.CreateRevocationList(rand.Reader, list, a.root, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der})
}

func newRoot(t testing.TB) (crypto.Signer, *x509.Certificate) {
	t.Helper()
	key, err := certs.NewKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(10000 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign, SubjectKeyId: []byte{1, 2, 3},
	}
	tmpl.Subject.CommonName = "root"
	return key, signed(t, tmpl, tmpl, key.Public(), key)
}

func signed(t testing.TB, tmpl, parent *x509.Certificate, pub crypto.PublicKey, key crypto.Signer) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, pub, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// set configures later calls of Sign: they return the error, or certificates with the given
// lifetime instead of the requested one. Zero values restore the default.
func (a *authority) set(fail error, life time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fail, a.life = fail, life
}

// shift moves the validity period of later certificates into the future.
func (a *authority) shift(ahead time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ahead = ahead
}

// times returns the times of the calls to Sign.
func (a *authority) times() []time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]time.Time(nil), a.asked...)
}

// Sign returns a leaf certificate and the root.
func (a *authority) Sign(_ context.Context, csrPEM []byte, ttl time.Duration) ([][]byte, error) {
	a.mu.Lock()
	a.asked = append(a.asked, time.Now())
	fail := a.fail
	if a.life != 0 {
		ttl = a.life
	}
	key, root, ahead := a.key, a.root, a.ahead
	a.mu.Unlock()
	if fail != nil {
		return nil, fail
	}
	csr, err := certs.ParseCSR(csrPEM)
	if err != nil {
		return nil, err
	}
	by := &authority{t: a.t, key: key, root: root}
	leaf := by.leaf(csr.PublicKey, func(c *x509.Certificate) {
		c.URIs, c.NotBefore, c.NotAfter = csr.URIs, c.NotBefore.Add(ahead), time.Now().Add(ahead+ttl)
	})
	return [][]byte{certs.EncodeChain(leaf), certs.EncodeChain(root)}, nil
}

func (a *authority) leaf(pub crypto.PublicKey, change func(*x509.Certificate)) *x509.Certificate {
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		a.t.Error(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: serial, NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	change(tmpl)
	return signed(a.t, tmpl, a.root, pub, a.key)
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func newWorkload(t testing.TB, a *authority, change func(*sds.WorkloadConfig)) *sds.Workload {
	t.Helper()
	cfg := sds.WorkloadConfig{ID: web(), Sign: a.Sign, Logger: quiet()}
	if change != nil {
		change(&cfg)
	}
	w, err := sds.NewWorkload(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// run runs a component until the test ends.
func run(t testing.TB, part interface{ Run(context.Context) error }) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- part.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// syncBuffer is an in-memory log that is safe for concurrent use.
type syncBuffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

// drop discards what has been written.
func (s *syncBuffer) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.b = bytes.Buffer{}
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
