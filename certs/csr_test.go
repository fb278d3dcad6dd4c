// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package certs_test

import (
	"bytes"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/certs"
)

func testID() certs.ID {
	return certs.ID{TrustDomain: "cluster.local", Namespace: "default", ServiceAccount: "web"}
}

func newCSR(t testing.TB) []byte {
	t.Helper()
	key, err := certs.NewKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := certs.NewCSR(key, testID())
	if err != nil {
		t.Fatal(err)
	}
	return csr
}

func selfSigned(t testing.TB) *x509.Certificate {
	t.Helper()
	key, err := certs.NewKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func TestNewCSR(t *testing.T) {
	t.Parallel()
	csr, err := certs.ParseCSR(newCSR(t))
	if err != nil {
		t.Fatal(err)
	}
	if len(csr.Subject.Names) != 0 {
		t.Errorf("subject: got %v, want none", csr.Subject)
	}
	if len(csr.URIs) != 1 || csr.URIs[0].String() != testID().String() {
		t.Errorf("URI names: got %v, want only %s", csr.URIs, testID())
	}
	if len(csr.Extensions) != 1 || !csr.Extensions[0].Critical {
		t.Errorf("extensions: got %v, want one that is critical", csr.Extensions)
	}
	key, err := certs.NewKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := certs.NewCSR(key, certs.ID{TrustDomain: "td", Namespace: "default"}); err == nil {
		t.Error("NewCSR accepted an identity without a service account")
	}
}

func TestParseCSRRefuses(t *testing.T) {
	t.Parallel()
	good := newCSR(t)
	block, _ := pem.Decode(good)
	forged := bytes.Clone(block.Bytes)
	// Changing a byte of the name invalidates the signature.
	at := bytes.Index(forged, []byte("default"))
	forged[at] = 'x'
	for name, tc := range map[string]struct {
		data    []byte
		wantErr string
	}{
		"no PEM":         {[]byte("hello"), "not PEM"},
		"other block":    {pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: block.Bytes}), "not CERTIFICATE REQUEST"},
		"broken":         {pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: block.Bytes[:40]}), "reading"},
		"forged":         {pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: forged}), "signature"},
		"larger than 16": {append(bytes.Repeat([]byte("\n"), 16<<10), good...), "at most"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := certs.ParseCSR(tc.data); err == nil || !strings.Contains(err.Error(), tc.wantErr) {
				t.Fatalf("got error %v, want one with %q", err, tc.wantErr)
			}
		})
	}
}

func TestParseChain(t *testing.T) {
	t.Parallel()
	a, b := selfSigned(t), selfSigned(t)
	both := certs.EncodeChain(a, b)
	for name, tc := range map[string]struct {
		data    []byte
		want    int
		wantErr string
	}{
		"two":           {data: both, want: 2},
		"with comments": {data: append([]byte("# the root of the mesh\n"), both...), want: 2},
		"empty":         {wantErr: "no PEM block"},
		"cut short":     {data: both[:len(both)-40], wantErr: "1 of 2 PEM blocks"},
		"a key in it":   {data: append(bytes.Clone(both), "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"...), wantErr: "PRIVATE KEY"},
		"broken":        {data: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Raw[:50]}), wantErr: "certificate 1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			chain, err := certs.ParseChain(tc.data)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Fatalf("got error %v, want one with %q", err, tc.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if len(chain) != tc.want || !chain[0].Equal(a) || !chain[1].Equal(b) {
				t.Errorf("got %d certificates, want %d in their order", len(chain), tc.want)
			}
		})
	}
}

func FuzzParseCSR(f *testing.F) {
	f.Add(newCSR(f))
	f.Add([]byte("-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		csr, err := certs.ParseCSR(data)
		if err == nil && csr.CheckSignature() != nil {
			t.Fatal("ParseCSR accepted a request with an invalid signature")
		}
	})
}

func FuzzParseChain(f *testing.F) {
	f.Add(certs.EncodeChain(selfSigned(f)))
	f.Add([]byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n-----BEGIN X"))
	f.Fuzz(func(t *testing.T, data []byte) {
		chain, err := certs.ParseChain(data)
		if err != nil {
			return
		}
		again, err := certs.ParseChain(certs.EncodeChain(chain...))
		if err != nil || len(again) != len(chain) {
			t.Fatalf("%d certificates became %d after encoding and parsing, error %v", len(chain), len(again), err)
		}
	})
}
