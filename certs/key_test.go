// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package certs_test

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/certs"
)

func TestKeyRoundTrip(t *testing.T) {
	t.Parallel()
	for _, kt := range []certs.KeyType{"", certs.ECDSAP256, certs.ECDSAP384, certs.RSA2048} {
		t.Run("type "+string(kt), func(t *testing.T) {
			t.Parallel()
			key, err := certs.NewKey(kt)
			if err != nil {
				t.Fatal(err)
			}
			data, err := certs.MarshalKey(key)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(string(data), "-----BEGIN PRIVATE KEY-----\n") {
				t.Fatalf("the encoding is not PKCS#8 PEM: it starts with %.30q", data)
			}
			got, err := certs.ParseKey(data)
			if err != nil {
				t.Fatal(err)
			}
			if !certs.SamePublicKey(got.Public(), key.Public()) {
				t.Error("the parsed key differs from the encoded one")
			}
			want := kt
			if kt == "" {
				want = certs.ECDSAP256
			}
			if got := certs.TypeOf(got); got != want {
				t.Errorf("TypeOf() = %q, want %q", got, want)
			}
		})
	}
	if _, err := certs.NewKey("DSA"); err == nil || !strings.Contains(err.Error(), `"DSA"`) {
		t.Errorf("key type DSA: got error %v, want one that names it", err)
	}
}

func TestTypeOfOtherKeys(t *testing.T) {
	t.Parallel()
	p521, err := ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := certs.TypeOf(p521), certs.TypeOf(ed); a != "" || b != "" {
		t.Errorf("TypeOf() of other keys = %q and %q, want none", a, b)
	}
}

// FuzzParseKey checks that a parsed key can be encoded and parsed again, and that errors do not
// contain key material.
func FuzzParseKey(f *testing.F) {
	key, err := certs.NewKey(certs.ECDSAP256)
	if err != nil {
		f.Fatal(err)
	}
	data, err := certs.MarshalKey(key)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add(data[:len(data)/2])
	f.Add([]byte("-----BEGIN EC PRIVATE KEY-----\nAAAA\n-----END EC PRIVATE KEY-----\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		key, err := certs.ParseKey(data)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("the error has several lines: %q", err)
			}
			return
		}
		again, err := certs.MarshalKey(key)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := certs.ParseKey(again); err != nil || !certs.SamePublicKey(got.Public(), key.Public()) {
			t.Errorf("the key changed after encoding and parsing, error %v", err)
		}
	})
}

func TestParseKeyForms(t *testing.T) {
	t.Parallel()
	ecKey, err := certs.NewKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	rsaKey, err := certs.NewKey(certs.RSA2048)
	if err != nil {
		t.Fatal(err)
	}
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	sec1, err := x509.MarshalECPrivateKey(ecKey.(*ecdsa.PrivateKey))
	if err != nil {
		t.Fatal(err)
	}
	edDER, err := x509.MarshalPKCS8PrivateKey(edKey)
	if err != nil {
		t.Fatal(err)
	}
	block := func(kind string, der []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}) }
	for name, tc := range map[string]struct {
		data    []byte
		wantErr string
	}{
		"SEC 1":                     {data: block("EC PRIVATE KEY", sec1)},
		"parameters before the key": {data: append(block("EC PARAMETERS", []byte{5, 0}), block("EC PRIVATE KEY", sec1)...)},
		"PKCS#1":                    {data: block("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(rsaKey.(*rsa.PrivateKey)))},
		"Ed25519":                   {data: block("PRIVATE KEY", edDER), wantErr: "not supported"},
		"empty":                     {wantErr: "no PEM block"},
		"encrypted":                 {data: block("ENCRYPTED PRIVATE KEY", sec1), wantErr: "unencrypted"},
		"broken":                    {data: block("PRIVATE KEY", sec1[:20]), wantErr: "readable private key"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := certs.ParseKey(tc.data)
			if tc.wantErr == "" && err != nil {
				t.Fatal(err)
			}
			if tc.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tc.wantErr)) {
				t.Fatalf("got error %v, want one with %q", err, tc.wantErr)
			}
		})
	}
}
