// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ca_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/ca"
)

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func web() certs.ID {
	return certs.ID{TrustDomain: "cluster.local", Namespace: "default", ServiceAccount: "web"}
}

func open(t testing.TB, change func(*ca.Config)) *ca.Authority {
	t.Helper()
	cfg := ca.Config{Dir: t.TempDir() + "/ca", TrustDomain: "cluster.local", Logger: quiet()}
	if change != nil {
		change(&cfg)
	}
	a, err := ca.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func newKey(t testing.TB, kt certs.KeyType) crypto.Signer {
	t.Helper()
	key, err := certs.NewKey(kt)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func newCSR(t testing.TB, key crypto.Signer, id certs.ID) []byte {
	t.Helper()
	csr, err := certs.NewCSR(key, id)
	if err != nil {
		t.Fatal(err)
	}
	return csr
}

func parse(t testing.TB, elements ...[]byte) []*x509.Certificate {
	t.Helper()
	var chain []*x509.Certificate
	for _, e := range elements {
		c, err := certs.ParseChain(e)
		if err != nil {
			t.Fatal(err)
		}
		chain = append(chain, c...)
	}
	return chain
}

// sign requests a certificate for web from a and returns the chain.
func sign(t testing.TB, a *ca.Authority, csr []byte, ttl time.Duration) ([][]byte, error) {
	t.Helper()
	issued, err := a.Sign(t.Context(), csr, web(), ttl)
	if err != nil {
		return nil, err
	}
	return issued.Chain, nil
}

func TestSign(t *testing.T) {
	t.Parallel()
	a := open(t, nil)
	for _, tc := range []struct {
		keyType certs.KeyType
		usage   x509.KeyUsage
	}{
		{certs.ECDSAP256, x509.KeyUsageDigitalSignature},
		{certs.ECDSAP384, x509.KeyUsageDigitalSignature},
		{certs.RSA2048, x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment},
	} {
		t.Run(string(tc.keyType), func(t *testing.T) {
			t.Parallel()
			key := newKey(t, tc.keyType)
			elements, err := sign(t, a, newCSR(t, key, web()), time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			if len(elements) != 2 || string(elements[1]) != string(a.RootPEM()) {
				t.Fatalf("the answer has %d elements, want leaf and root", len(elements))
			}
			leaf := parse(t, elements[0])[0]
			checkLeaf(t, a, leaf)
			if leaf.KeyUsage != tc.usage {
				t.Errorf("the key usage is %b, want %b", leaf.KeyUsage, tc.usage)
			}
			if !certs.SamePublicKey(leaf.PublicKey, key.Public()) {
				t.Error("the certificate is for a key other than the one in the request")
			}
		})
	}
}

func checkLeaf(t *testing.T, a *ca.Authority, leaf *x509.Certificate) {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(a.RootPEM())
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth} {
		if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{usage}}); err != nil {
			t.Errorf("verification for usage %d: %v", usage, err)
		}
	}
	if id, err := certs.CertificateID(leaf); err != nil || id != web() {
		t.Errorf("the identity is %v, error %v", id, err)
	}
	if len(leaf.DNSNames)+len(leaf.IPAddresses)+len(leaf.EmailAddresses)+len(leaf.Subject.Names) != 0 {
		t.Error("the certificate has names in addition to its identity")
	}
	if leaf.IsCA || leaf.SerialNumber.BitLen() != 128 {
		t.Errorf("IsCA: %v, serial number of %d bits; want false and 128 bits", leaf.IsCA, leaf.SerialNumber.BitLen())
	}
	if d := leaf.NotAfter.Sub(leaf.NotBefore); d != time.Hour+2*time.Minute {
		t.Errorf("the lifetime is %s, want the requested hour plus two minutes of backdating", d)
	}
}

// foreignCSR returns a request with arbitrary names.
func foreignCSR(t *testing.T, key crypto.Signer, tmpl *x509.CertificateRequest) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, tmpl, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

func TestSignIgnoresOtherNames(t *testing.T) {
	t.Parallel()
	a := open(t, nil)
	csr := foreignCSR(t, newKey(t, certs.ECDSAP256), &x509.CertificateRequest{DNSNames: []string{"istiod.istio-system.svc"}})
	elements, err := sign(t, a, csr, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	checkLeaf(t, a, parse(t, elements[0])[0])
}

func TestSignRefuses(t *testing.T) {
	t.Parallel()
	a := open(t, nil)
	p521, err := ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	weak, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	good := newKey(t, certs.ECDSAP256)
	other, otherDomain := web(), web()
	other.ServiceAccount, otherDomain.TrustDomain = "admin", "other.test"
	for name, tc := range map[string]struct {
		csr       []byte
		id        certs.ID
		ttl       time.Duration
		wantErr   string
		byRequest bool
	}{
		"RSA 1024":                       {newCSR(t, weak, web()), web(), time.Hour, "1024 bits", true},
		"P-521":                          {newCSR(t, p521, web()), web(), time.Hour, "P-521", true},
		"identity of another caller":     {newCSR(t, good, other), web(), time.Hour, "an identity other than", true},
		"not a request":                  {[]byte("hello"), web(), time.Hour, "not PEM", true},
		"caller of another trust domain": {newCSR(t, good, otherDomain), otherDomain, time.Hour, "not of trust domain", false},
		"caller without namespace":       {newCSR(t, good, web()), certs.ID{TrustDomain: "cluster.local"}, time.Hour, "namespace is empty", false},
		"no lifetime":                    {newCSR(t, good, web()), web(), 0, "the lifetime of a certificate cannot be", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := a.Sign(t.Context(), tc.csr, tc.id, tc.ttl)
			if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
				t.Fatalf("got error %v, want one with %q", err, tc.wantErr)
			}
			if errors.Is(err, ca.ErrRequest) != tc.byRequest {
				t.Errorf("errors.Is(%v, ErrRequest) = %v, want %v", err, !tc.byRequest, tc.byRequest)
			}
		})
	}
}

func TestLeafNeverOutlivesIssuer(t *testing.T) {
	t.Parallel()
	a := open(t, func(c *ca.Config) { c.Root.TTL = time.Hour })
	elements, err := sign(t, a, newCSR(t, newKey(t, ""), web()), 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	chain := parse(t, elements...)
	if !chain[0].NotAfter.Equal(chain[1].NotAfter) {
		t.Errorf("the leaf expires at %s, its issuer at %s", chain[0].NotAfter, chain[1].NotAfter)
	}
}

func TestServerCertificateIsRenewed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		a, err := ca.Open(t.Context(), ca.Config{Dir: dir, TrustDomain: "cluster.local", Root: ca.RootConfig{TTL: 50 * time.Hour}, Logger: quiet()})
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := a.ServerCertificate([]string{"istiod.istio-system.svc"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		get := func() *x509.Certificate {
			cert, err := cfg.GetCertificate(nil)
			if err != nil {
				t.Fatal(err)
			}
			return cert.Leaf
		}
		first := get()
		time.Sleep(11 * time.Hour)
		if !get().Equal(first) {
			t.Error("the certificate was renewed before half of its lifetime")
		}
		time.Sleep(90 * time.Minute)
		second := get()
		if second.Equal(first) {
			t.Error("the certificate was not renewed after half of its lifetime")
		}
		if !get().Equal(second) {
			t.Error("the certificate is renewed at each handshake")
		}
		// Shortly before the root expires, there must still be a valid certificate.
		time.Sleep(50*time.Hour - 12*time.Hour - 31*time.Minute)
		if left := time.Until(get().NotAfter); left <= 0 {
			t.Errorf("the certificate expired %s ago", -left)
		}
		time.Sleep(time.Hour)
		if _, err := cfg.GetCertificate(nil); err == nil || !strings.Contains(err.Error(), "expired at") {
			t.Errorf("after the root expired: got error %v, want one with \"expired at\"", err)
		}
	})
}
