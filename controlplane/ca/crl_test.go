// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ca_test

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/ca"
)

func newCRL(t *testing.T, issuer *x509.Certificate, key crypto.Signer, revoked ...*big.Int) []byte {
	t.Helper()
	list := &x509.RevocationList{Number: big.NewInt(1), ThisUpdate: time.Now(), NextUpdate: time.Now().Add(time.Hour)}
	for _, serial := range revoked {
		list.RevokedCertificateEntries = append(list.RevokedCertificateEntries, x509.RevocationListEntry{SerialNumber: serial, RevocationTime: time.Now()})
	}
	der, err := x509.CreateRevocationList(rand.Reader, list, issuer, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der})
}

func TestRevocationLists(t *testing.T) {
	t.Parallel()
	plugged := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		p, other, log := newPKI(t, "one"), newPKI(t, "two"), &syncBuffer{}
		write(t, plugged, p.files(t))
		a := replica(t, func(c *ca.Config) { c.PluginDir, c.Logger = plugged, textLog(log) })
		if a.CRLPEM() != nil {
			t.Error("a list is published before the file exists")
		}
		cfg, err := a.ServerCertificate([]string{"istiod.istio-system.svc"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		elements, err := sign(t, a, newCSR(t, newKey(t, certs.ECDSAP256), web()), 10*time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		chain := parse(t, elements...)
		shake := func() error {
			now, err := cfg.GetConfigForClient(nil)
			if err != nil {
				t.Fatal(err)
			}
			return now.VerifyConnection(tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{chain}})
		}
		changed := a.Changed()
		good := append(p.crl(t, big.NewInt(77)), newCRL(t, p.root, p.rootKey)...)
		write(t, plugged, map[string][]byte{"ca-crl.pem": good})
		time.Sleep(time.Hour)
		select {
		case <-changed:
		default:
			t.Error("the list was not published")
		}
		if !bytes.Equal(a.CRLPEM(), good) || shake() != nil {
			t.Errorf("the list is not published, or a client that is not revoked is refused: %v", shake())
		}
		for name, bad := range map[string][]byte{
			"no PEM at all": []byte("x"), "signed by others": other.crl(t), "a certificate": certs.EncodeChain(p.root),
			"truncated": good[:len(good)-200],
		} {
			write(t, plugged, map[string][]byte{"ca-crl.pem": bad})
			time.Sleep(time.Hour)
			if !bytes.Equal(a.CRLPEM(), good) {
				t.Errorf("%s: the last valid list was replaced", name)
			}
		}
		if !strings.Contains(log.String(), "the revocation lists are rejected") {
			t.Error("the rejection of the invalid lists was not logged")
		}
		write(t, plugged, map[string][]byte{"ca-crl.pem": p.crl(t, chain[0].SerialNumber)})
		time.Sleep(time.Hour)
		if err := shake(); err == nil || !strings.Contains(err.Error(), "revoked") {
			t.Errorf("a revoked client: got error %v, want one with \"revoked\"", err)
		}
		write(t, plugged, map[string][]byte{"ca-crl.pem": newCRL(t, p.root, p.rootKey, p.cert.SerialNumber)})
		time.Sleep(time.Hour)
		if err := shake(); err == nil {
			t.Error("a client certificate of a revoked intermediate was accepted")
		}
	})
}
