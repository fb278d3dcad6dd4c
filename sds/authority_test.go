// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package sds_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"io"
	"log/slog"
	"math/big"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/sds"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func web() certs.ID {
	return certs.ID{TrustDomain: "cluster.local", Namespace: "default", ServiceAccount: "web"}
}

// authority signs in memory, for whoever asks.
type authority struct {
	t    *testing.T
	key  crypto.Signer
	root *x509.Certificate

	mu    sync.Mutex // guards what follows
	fail  error      // answer of Sign, if set
	life  time.Duration
	asked []time.Time
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := certs.NewKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(10000 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	tmpl.Subject.CommonName = "root"
	return &authority{t: t, key: key, root: signed(t, tmpl, tmpl, key.Public(), key)}
}

func signed(t *testing.T, tmpl, parent *x509.Certificate, pub crypto.PublicKey, key crypto.Signer) *x509.Certificate {
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

// set changes what Sign answers from now on: an error, or certificates of the
// given life instead of the one that is asked for.
func (a *authority) set(fail error, life time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fail, a.life = fail, life
}

// times returns when Sign was called.
func (a *authority) times() []time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]time.Time(nil), a.asked...)
}

// Sign answers with leaf and root.
func (a *authority) Sign(_ context.Context, csrPEM []byte, ttl time.Duration) ([][]byte, error) {
	a.mu.Lock()
	a.asked = append(a.asked, time.Now())
	fail := a.fail
	if a.life != 0 {
		ttl = a.life
	}
	a.mu.Unlock()
	if fail != nil {
		return nil, fail
	}
	csr, err := certs.ParseCSR(csrPEM)
	if err != nil {
		return nil, err
	}
	leaf := a.leaf(csr.PublicKey, func(c *x509.Certificate) { c.URIs, c.NotAfter = csr.URIs, time.Now().Add(ttl) })
	return [][]byte{certs.EncodeChain(leaf), certs.EncodeChain(a.root)}, nil
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

func newWorkload(t *testing.T, a *authority, change func(*sds.WorkloadConfig)) *sds.Workload {
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

// run runs a part until the test ends.
func run(t *testing.T, part interface{ Run(context.Context) error }) {
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

// syncBuffer is a log that several goroutines write.
type syncBuffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
