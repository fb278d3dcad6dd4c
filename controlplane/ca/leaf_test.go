// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ca

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"net/url"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/certs"
)

// TestLeafMatchesLibrary compares the signed bytes with those of the library.
func TestLeafMatchesLibrary(t *testing.T) {
	t.Parallel()
	id := certs.ID{TrustDomain: "cluster.local", Namespace: "default", ServiceAccount: "web"}
	uri, err := url.Parse(id.String())
	if err != nil {
		t.Fatal(err)
	}
	long := certs.ID{TrustDomain: "cluster.local", Namespace: "default", ServiceAccount: string(bytes.Repeat([]byte("x"), 1000))}
	longURI, err := url.Parse(long.String())
	if err != nil {
		t.Fatal(err)
	}
	for _, issuerType := range []certs.KeyType{certs.ECDSAP256, certs.ECDSAP384, certs.RSA2048} {
		s, err := newSelfSigned(Config{TrustDomain: "cluster.local", Root: RootConfig{KeyType: issuerType, TTL: 100 * 365 * 24 * time.Hour}})
		if err != nil {
			t.Fatal(err)
		}
		for _, leafType := range []certs.KeyType{certs.ECDSAP256, certs.ECDSAP384, certs.RSA2048} {
			key, err := certs.NewKey(leafType)
			if err != nil {
				t.Fatal(err)
			}
			for _, tc := range []struct {
				id  certs.ID
				uri *url.URL
				end time.Time
			}{
				{id, uri, time.Now().Add(time.Hour)},
				{long, longURI, time.Date(2049, 12, 31, 23, 59, 59, 0, time.UTC)},
				{id, uri, time.Date(2050, 1, 1, 0, 0, 0, 0, time.UTC)},
			} {
				serial, err := newSerial()
				if err != nil {
					t.Fatal(err)
				}
				r := leafRequest{serial: serial, id: tc.id, key: key.Public(), notBefore: time.Now().Add(-backdate), notAfter: tc.end}
				ours, err := s.leaf(r)
				if err != nil {
					t.Fatal(err)
				}
				tmpl := &x509.Certificate{
					SerialNumber: serial, NotBefore: r.notBefore, NotAfter: r.notAfter, URIs: []*url.URL{tc.uri},
					BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature,
					ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
				}
				if _, ok := key.Public().(*rsa.PublicKey); ok {
					tmpl.KeyUsage |= x509.KeyUsageKeyEncipherment
				}
				theirs, err := x509.CreateCertificate(rand.Reader, tmpl, s.cert, key.Public(), s.key)
				if err != nil {
					t.Fatal(err)
				}
				a, err := x509.ParseCertificate(ours)
				if err != nil {
					t.Fatal(err)
				}
				b, err := x509.ParseCertificate(theirs)
				if err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(a.RawTBSCertificate, b.RawTBSCertificate) {
					t.Errorf("issuer %s, leaf %s, until %s:\n%x\n%x", issuerType, leafType, tc.end, a.RawTBSCertificate, b.RawTBSCertificate)
				}
				if err := a.CheckSignatureFrom(s.cert); err != nil {
					t.Errorf("issuer %s: %v", issuerType, err)
				}
			}
		}
	}
}

func TestLimiterForgetsIdleCallers(t *testing.T) {
	t.Parallel()
	l := newLimiter(Limit{PerSecond: 1, Burst: 1}, Limit{PerSecond: -1})
	now := time.Now()
	for i := range 3 * maxBuckets {
		if r := l.allowCaller("id", string(rune(i+1)), now); r != nil {
			t.Fatalf("caller %d was refused", i)
		}
	}
	if l.buckets.Len() != maxBuckets {
		t.Errorf("%d callers are remembered, want %d", l.buckets.Len(), maxBuckets)
	}
	if r := l.allowCaller("id", string(rune(3*maxBuckets)), now); r == nil || !r.first || r.reason != refusedCaller {
		t.Errorf("allowCaller() for a second call = %+v, want the first refusal", r)
	}
	if r := l.allowCaller("id", string(rune(3*maxBuckets)), now); r == nil || r.first {
		t.Errorf("allowCaller() for a third call = %+v, want a refusal that is not the first", r)
	}
	if r := l.allowCaller("id", string(rune(3*maxBuckets)), now.Add(time.Second)); r != nil {
		t.Errorf("allowCaller() after a second = %+v, want nil", r)
	}
	for range 1000 {
		if r := l.allowIdentity("id", now); r != nil {
			t.Fatal("a disabled limit refused an identity")
		}
	}
}
