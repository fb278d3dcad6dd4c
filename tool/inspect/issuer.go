// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"maps"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// trialLife is how long the certificates of a trial are valid.
const trialLife = 24 * time.Hour

// issuer issues the certificates of a trial. Nothing else trusts it, and its key is only in memory.
type issuer struct {
	root *x509.Certificate
	key  *ecdsa.PrivateKey // of the root, of all clients, and of tokens

	signer jose.Signer

	mu    sync.Mutex // guards pairs
	pairs map[string]*tls.Certificate
}

// newIssuer writes the files that the listeners of a trial name to a directory.
func newIssuer(dir string) (*issuer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	i := &issuer{key: key, pairs: map[string]*tls.Certificate{}}
	i.root = &x509.Certificate{
		Subject: pkix.Name{CommonName: "replay"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(trialLife),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	root, err := i.sign(i.root)
	if err != nil {
		return nil, err
	}
	server, err := i.sign(leaf(&url.URL{Scheme: "spiffe", Host: "replay", Path: "/server"}))
	if err != nil {
		return nil, err
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	keys, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), Algorithm: string(jose.ES256), Use: "sig"}}})
	if err != nil {
		return nil, err
	}
	if i.signer, err = jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key}, nil); err != nil {
		return nil, err
	}
	err = os.WriteFile(filepath.Join(dir, "keys.json"), keys, 0o600)
	for name, block := range map[string]*pem.Block{
		"roots.pem": {Type: "CERTIFICATE", Bytes: root}, "server.pem": {Type: "CERTIFICATE", Bytes: server}, "server.key": {Type: "EC PRIVATE KEY", Bytes: private},
	} {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600))
	}
	return i, err
}

func leaf(uri *url.URL) *x509.Certificate {
	return &x509.Certificate{
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(trialLife), URIs: []*url.URL{uri},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
}

func (i *issuer) sign(template *x509.Certificate) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 100))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	return x509.CreateCertificate(rand.Reader, template, i.root, i.key.Public(), i.key)
}

// token returns a token with claims that has not expired.
func (i *issuer) token(claims map[string]any) (string, error) {
	claims = maps.Clone(claims)
	claims["exp"] = time.Now().Add(trialLife).Unix()
	delete(claims, "nbf")
	payload, err := json.Marshal(claims)
	if err != nil {
		return "", err
	}
	signed, err := i.signer.Sign(payload)
	if err != nil {
		return "", err
	}
	return signed.CompactSerialize()
}

// pair returns a certificate of an identity.
func (i *issuer) pair(identity string) (*tls.Certificate, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if p := i.pairs[identity]; p != nil {
		return p, nil
	}
	uri, err := url.Parse(identity)
	if err != nil {
		return nil, err
	}
	der, err := i.sign(leaf(uri))
	if err != nil {
		return nil, err
	}
	i.pairs[identity] = &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: i.key}
	return i.pairs[identity], nil
}
