// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package sds_test

import (
	"context"
	"crypto/x509"
	"log/slog"
	"math/big"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/sds"
)

// TestAuthorityResponses checks which responses of the authority a workload accepts.
func TestAuthorityResponses(t *testing.T) {
	t.Parallel()
	type answer = func(a *authority, csr *x509.CertificateRequest) [][]byte
	leafOf := func(a *authority, csr *x509.CertificateRequest, change func(*x509.Certificate)) []byte {
		return certs.EncodeChain(a.leaf(csr.PublicKey, func(c *x509.Certificate) {
			c.URIs = csr.URIs
			if change != nil {
				change(c)
			}
		}))
	}
	for name, tc := range map[string]struct {
		answer  answer
		wantErr string // text in the log; empty means that the certificate is accepted without a warning
		chain   int    // number of certificates in the served chain
		roots   int
	}{
		"leaf and root": {func(a *authority, csr *x509.CertificateRequest) [][]byte {
			return [][]byte{leafOf(a, csr, nil), certs.EncodeChain(a.root)}
		}, "", 1, 1},
		"root in the chain too, two roots": {func(a *authority, csr *x509.CertificateRequest) [][]byte {
			other := newAuthority(a.t).root
			return [][]byte{leafOf(a, csr, nil), certs.EncodeChain(a.root), certs.EncodeChain(a.root, other)}
		}, "", 1, 2},
		"intermediate": {func(a *authority, csr *x509.CertificateRequest) [][]byte {
			below, cert := intermediate(a)
			return [][]byte{leafOf(below, csr, nil), certs.EncodeChain(cert), certs.EncodeChain(a.root)}
		}, "", 2, 1},
		"the clock of this machine is behind": {func(a *authority, csr *x509.CertificateRequest) [][]byte {
			return [][]byte{leafOf(a, csr, func(c *x509.Certificate) {
				c.NotBefore = time.Now().Add(time.Hour)
				c.NotAfter = time.Now().Add(2 * time.Hour)
			}), certs.EncodeChain(a.root)}
		}, "", 1, 1},
		"authority younger than the start": {func(a *authority, csr *x509.CertificateRequest) [][]byte {
			return [][]byte{leafOf(a, csr, func(c *x509.Certificate) {
				c.NotBefore = a.root.NotBefore.Add(-2 * time.Minute)
			}), certs.EncodeChain(a.root)}
		}, "", 1, 1},
		"another identity": {func(a *authority, csr *x509.CertificateRequest) [][]byte {
			return [][]byte{leafOf(a, csr, func(c *x509.Certificate) {
				c.URIs = []*url.URL{{Scheme: "spiffe", Host: "td", Path: "/ns/a/sa/b"}}
			}), certs.EncodeChain(a.root)}
		}, "an identity other than the requested one", 1, 1},
		"one element": {func(a *authority, csr *x509.CertificateRequest) [][]byte {
			return [][]byte{leafOf(a, csr, nil)}
		}, "has 1 elements", 0, 0},
		"only roots": {func(a *authority, _ *x509.CertificateRequest) [][]byte {
			return [][]byte{certs.EncodeChain(a.root), certs.EncodeChain(a.root)}
		}, "only roots", 0, 0},
		"another key": {func(a *authority, _ *x509.CertificateRequest) [][]byte {
			return [][]byte{certs.EncodeChain(a.leaf(a.key.Public(), func(*x509.Certificate) {})), certs.EncodeChain(a.root)}
		}, "a key other than", 0, 0},
		"another root": {func(a *authority, csr *x509.CertificateRequest) [][]byte {
			return [][]byte{leafOf(a, csr, nil), certs.EncodeChain(newAuthority(a.t).root)}
		}, "checking chain", 0, 0},
		"expired": {func(a *authority, csr *x509.CertificateRequest) [][]byte {
			return [][]byte{leafOf(a, csr, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Second) }), certs.EncodeChain(a.root)}
		}, "compare the clocks", 0, 0},
		"not PEM": {func(*authority, *x509.CertificateRequest) [][]byte {
			return [][]byte{[]byte("a"), []byte("b")}
		}, "reading chain", 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				a, log := newAuthority(t), &syncBuffer{}
				w := newWorkload(t, a, func(c *sds.WorkloadConfig) {
					c.Logger = slog.New(slog.NewTextHandler(log, nil))
					c.Sign = func(_ context.Context, csr []byte, _ time.Duration) ([][]byte, error) {
						req, err := certs.ParseCSR(csr)
						if err != nil {
							return nil, err
						}
						return tc.answer(a, req), nil
					}
				})
				run(t, w)
				synctest.Wait()
				got := log.String()
				if tc.wantErr == "" && (!strings.Contains(got, "certificate received") || strings.Contains(got, "level=WARN")) {
					t.Errorf("log = %q, want the certificate accepted without a warning", got)
				}
				if !strings.Contains(got, tc.wantErr) {
					t.Errorf("log = %q, want %q in it", got, tc.wantErr)
				}
				checkIdentity(t, w, tc.chain, tc.roots)
			})
		})
	}
}

func checkIdentity(t *testing.T, w *sds.Workload, chain, roots int) {
	t.Helper()
	id := w.Current()
	if chain == 0 {
		if id != nil {
			t.Error("the response was accepted")
		}
		return
	}
	if id == nil {
		t.Fatal("the response was rejected")
	}
	got, err := certs.ParseChain(id.ChainPEM)
	if err != nil {
		t.Fatal(err)
	}
	trusted, err := certs.ParseChain(id.RootsPEM)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != chain || len(w.Certificate().Certificate) != chain || len(trusted) != roots || len(id.Roots()) != roots {
		t.Errorf("got a chain of %d and %d roots, want %d and %d", len(got), len(trusted), chain, roots)
	}
	if want, err := certs.CertificateID(got[0]); err != nil || id.ID != want {
		t.Errorf("identity: got %v, that of the certificate is %v, error %v", id.ID, want, err)
	}
	key, err := certs.ParseKey(id.KeyPEM)
	if err != nil || !certs.SamePublicKey(key.Public(), got[0].PublicKey) {
		t.Errorf("the key is not the certificate's; error %v", err)
	}
}

// intermediate returns an authority whose certificate is signed by a.
func intermediate(a *authority) (*authority, *x509.Certificate) {
	below := newAuthority(a.t)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	tmpl.Subject.CommonName = "below"
	below.root = signed(a.t, tmpl, a.root, below.key.Public(), a.key)
	return below, below.root
}
