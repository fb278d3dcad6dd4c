// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ca_test

import (
	"encoding/pem"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/ca"
)

// FuzzSign requests certificates with arbitrary bytes. An issued certificate must be for the
// caller, must not be a CA certificate, and must verify.
func FuzzSign(f *testing.F) {
	a := open(f, nil)
	for _, kt := range []certs.KeyType{certs.ECDSAP256, certs.RSA2048} {
		block, _ := pem.Decode(newCSR(f, newKey(f, kt), web()))
		f.Add(block.Bytes)
		for i := range 24 {
			altered := append([]byte(nil), block.Bytes...)
			altered[i*len(altered)/24] ^= 0x41
			f.Add(altered)
		}
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, der []byte) {
		csr := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
		elements, err := sign(t, a, csr, time.Hour)
		if err != nil {
			return
		}
		leaf := parse(t, elements[0])[0]
		if id, err := certs.CertificateID(leaf); err != nil || id != web() || leaf.IsCA || len(leaf.DNSNames)+len(leaf.IPAddresses) > 0 {
			t.Errorf("a certificate for %v was issued, error %v; want one for the caller alone", id, err)
		}
		trusts(t, a.RootPEM(), elements...)
	})
}

// FuzzMaterial plugs in arbitrary files and checks that an accepted authority can sign.
func FuzzMaterial(f *testing.F) {
	key := newKey(f, certs.ECDSAP256)
	keyText, err := certs.MarshalKey(key)
	if err != nil {
		f.Fatal(err)
	}
	cert := open(f, nil).RootPEM()
	f.Add(keyText, cert, []byte(nil), []byte(nil), []byte(nil), []byte(nil))
	dir := f.TempDir()
	if _, err := ca.Open(f.Context(), ca.Config{Dir: dir, TrustDomain: "cluster.local", Logger: quiet()}); err != nil {
		f.Fatal(err)
	}
	good := map[string][]byte{}
	for _, name := range []string{"ca-key.pem", "ca-cert.pem", "root-cert.pem", "rotation.json"} {
		if good[name], err = os.ReadFile(filepath.Join(dir, name)); err != nil {
			f.Fatal(err)
		}
	}
	f.Add(good["ca-key.pem"], good["ca-cert.pem"], cert, good["root-cert.pem"], []byte("-----BEGIN X509 CRL-----\n-----END X509 CRL-----\n"), good["rotation.json"])
	f.Add(good["ca-key.pem"], good["ca-cert.pem"], []byte(nil), cert, []byte("x"), []byte(`{"signer":"x","next":"y","roots":[{"certificate":""}]}`))
	f.Add(good["ca-key.pem"], good["ca-cert.pem"], []byte(nil), []byte(nil), []byte(nil), []byte(`{"longestLife":"-1h","switchAt":"2000-01-01T00:00:00Z","next":"y"}`))
	f.Fuzz(func(t *testing.T, key, cert, chain, root, crl, record []byte) {
		m := map[string][]byte{}
		for name, data := range map[string][]byte{"ca-key.pem": key, "ca-cert.pem": cert, "cert-chain.pem": chain, "root-cert.pem": root, "ca-crl.pem": crl} {
			if len(data) > 0 {
				m[name] = data
			}
		}
		for _, plugged := range []bool{true, false} {
			store := &memory{m: ca.Material{"rotation.json": record}}
			cfg := ca.Config{Store: store, TrustDomain: "cluster.local", Logger: quiet()}
			if plugged {
				cfg.PluginDir = t.TempDir()
				write(t, cfg.PluginDir, m)
			} else {
				maps.Copy(store.m, m)
			}
			a, err := ca.Open(t.Context(), cfg)
			if err != nil {
				continue
			}
			elements, err := sign(t, a, newCSR(t, newKey(t, ""), web()), time.Hour)
			if err != nil {
				t.Fatalf("an accepted authority does not sign: %v", err)
			}
			trusts(t, a.RootPEM(), elements...)
		}
	})
}
