// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ca_test

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/ca"
)

func TestOpenCreatesAndKeepsRoot(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a", "ca")
	first := open(t, func(c *ca.Config) { c.Dir = dir })
	for name, want := range map[string]os.FileMode{"": 0o700, "ca-key.pem": 0o600, "ca-cert.pem": 0o644, "root-cert.pem": 0o644} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != want {
			t.Errorf("%q has mode %o, want %o", name, info.Mode().Perm(), want)
		}
	}
	root := parse(t, first.RootPEM())[0]
	if root.PublicKeyAlgorithm != x509.ECDSA || !root.IsCA {
		t.Errorf("the root has a key of type %s and IsCA %v, want ECDSA and true", root.PublicKeyAlgorithm, root.IsCA)
	}
	if years := time.Until(root.NotAfter).Hours() / 24 / 365; years < 9.9 || years > 10.1 {
		t.Errorf("the lifetime of the root is %.1f years, want 10", years)
	}
	if err := os.Remove(filepath.Join(dir, "root-cert.pem")); err != nil {
		t.Fatal(err)
	}
	second := open(t, func(c *ca.Config) { c.Dir = dir })
	if string(second.RootPEM()) != string(first.RootPEM()) {
		t.Error("a different root was created on the second start")
	}
	data, err := os.ReadFile(filepath.Join(dir, "root-cert.pem"))
	if err != nil || string(data) != string(first.RootPEM()) {
		t.Errorf("root-cert.pem was not written again: error %v", err)
	}
}

func TestConcurrentOpen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	roots := make([]string, 8)
	var wg sync.WaitGroup
	for i := range roots {
		wg.Go(func() {
			a, err := ca.Open(t.Context(), ca.Config{Dir: dir, TrustDomain: "cluster.local", Logger: quiet()})
			if err != nil {
				t.Error(err)
				return
			}
			roots[i] = string(a.RootPEM())
		})
	}
	wg.Wait()
	for _, r := range roots {
		if r == "" || r != roots[0] {
			t.Fatal("concurrent starts have different roots")
		}
	}
}

// issuer returns a CA certificate, signed by parent or by itself.
func issuer(t *testing.T, key, parentKey crypto.Signer, parent *x509.Certificate, change func(*x509.Certificate)) *x509.Certificate {
	t.Helper()
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(7), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	tmpl.Subject.CommonName = "authority"
	if change != nil {
		change(tmpl)
	}
	if parent == nil {
		parent = tmpl
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, key.Public(), parentKey)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func keyPEM(t *testing.T, key crypto.Signer) []byte {
	t.Helper()
	data, err := certs.MarshalKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	key, other := newKey(t, certs.ECDSAP256), newKey(t, certs.ECDSAP256)
	self := issuer(t, key, key, nil, nil)
	root := issuer(t, other, other, nil, func(c *x509.Certificate) { c.Subject.CommonName = "root" })
	below := issuer(t, key, other, root, nil)
	notCA := issuer(t, key, key, nil, func(c *x509.Certificate) { c.IsCA = false })
	old := issuer(t, key, key, nil, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })
	k, c := keyPEM(t, key), certs.EncodeChain(self)
	type files map[string][]byte
	for name, tc := range map[string]struct {
		files   files
		wantErr string
	}{
		"key without certificate":  {files{"ca-key.pem": k}, "ca-cert.pem is missing: restore it from a backup, or move ca-key.pem away"},
		"certificate without key":  {files{"ca-cert.pem": c}, "ca-key.pem is missing: restore it from a backup, or move ca-cert.pem away"},
		"half a key":               {files{"ca-key.pem": k[:len(k)/2], "ca-cert.pem": c}, "ca-key.pem cannot be read"},
		"half a certificate":       {files{"ca-key.pem": k, "ca-cert.pem": c[:len(c)/2]}, "ca-cert.pem cannot be read"},
		"empty certificate":        {files{"ca-key.pem": k, "ca-cert.pem": nil}, "ca-cert.pem cannot be read"},
		"another pair":             {files{"ca-key.pem": keyPEM(t, other), "ca-cert.pem": c}, "ca-cert.pem does not belong to ca-key.pem"},
		"not an authority":         {files{"ca-key.pem": k, "ca-cert.pem": certs.EncodeChain(notCA)}, "not the certificate of an authority"},
		"expired":                  {files{"ca-key.pem": k, "ca-cert.pem": certs.EncodeChain(old)}, "expired at"},
		"intermediate without its": {files{"ca-key.pem": k, "ca-cert.pem": certs.EncodeChain(below)}, "root-cert.pem is missing"},
		"intermediate and another": {files{"ca-key.pem": k, "ca-cert.pem": certs.EncodeChain(below), "root-cert.pem": c}, "not signed by a root of root-cert.pem"},
		"half a root":              {files{"ca-key.pem": k, "ca-cert.pem": c, "root-cert.pem": c[:100]}, "root-cert.pem cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			write(t, dir, tc.files)
			_, err := ca.Open(t.Context(), ca.Config{Dir: dir, TrustDomain: "cluster.local", Logger: quiet()})
			if err == nil || !strings.Contains(err.Error(), tc.wantErr) || !strings.Contains(err.Error(), dir) {
				t.Fatalf("got error %v, want one with %q and %s", err, tc.wantErr, dir)
			}
			entries, err := os.ReadDir(dir)
			if err != nil || len(entries) != len(tc.files) {
				t.Errorf("the directory was changed: it contains %v, error %v", entries, err)
			}
		})
	}
}

func write(t *testing.T, dir string, files map[string][]byte) {
	t.Helper()
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestOpenLoadsOtherAuthorities(t *testing.T) {
	t.Parallel()
	rsaKey := newKey(t, certs.RSA2048)
	rootKey := newKey(t, certs.ECDSAP384)
	self := issuer(t, rsaKey, rsaKey, nil, nil)
	root := issuer(t, rootKey, rootKey, nil, func(c *x509.Certificate) { c.Subject.CommonName = "root" })
	below := issuer(t, rsaKey, rootKey, root, nil)
	pkcs1 := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(rsaKey.(*rsa.PrivateKey))})
	for name, tc := range map[string]struct {
		files map[string][]byte
		want  []*x509.Certificate // the certificates after the leaf
	}{
		"RSA root, PKCS#1": {map[string][]byte{"ca-key.pem": pkcs1, "ca-cert.pem": certs.EncodeChain(self)}, []*x509.Certificate{self}},
		"intermediate": {map[string][]byte{
			"ca-key.pem": pkcs1, "ca-cert.pem": certs.EncodeChain(below), "root-cert.pem": certs.EncodeChain(root),
		}, []*x509.Certificate{below, root}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			write(t, dir, tc.files)
			a := open(t, func(c *ca.Config) { c.Dir = dir })
			elements, err := sign(t, a, newCSR(t, newKey(t, ""), web()), time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			if len(elements) != len(tc.want)+1 {
				t.Fatalf("the response has %d elements, want %d", len(elements), len(tc.want)+1)
			}
			chain := parse(t, elements...)
			for i, want := range tc.want {
				if !chain[i+1].Equal(want) {
					t.Errorf("element %d is %s, want %s", i+1, chain[i+1].Subject, want.Subject)
				}
			}
			if err := chain[0].CheckSignatureFrom(chain[1]); err != nil {
				t.Error(err)
			}
		})
	}
}
