// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/outrigger-mesh/outrigger/certs"
)

// identityAttacks try to impersonate another identity.
func identityAttacks() []attack {
	const area = "identity"
	return []attack{
		{area, "forged and altered tokens ask for a certificate", "each is refused; an unaltered token is accepted", shared(forgedTokens)},
		{area, "a workload requests the certificate of another identity", "refused, or issued for the caller's own identity only", shared(otherIdentities)},
		{area, "self-made client certificates: unknown CA, a copied CA name, a workload that signs as a CA", "no call succeeds", shared(forgedCertificates)},
		{area, "a stolen certificate without its key; a token over plaintext", "no call succeeds; the plaintext port signs nothing", shared(stolenCertificate)},
	}
}

// forgery is a token that must be rejected.
type forgery struct {
	head, claims any
	sign         func(string) ([]byte, error)
}

// with returns a copy of a map with one value changed; nil removes it.
func with(m map[string]any, key string, value any) map[string]any {
	m = maps.Clone(m)
	if m[key] = value; value == nil {
		delete(m, key)
	}
	return m
}

// forgeries returns invalid tokens of shop/pay. The key says what is wrong.
func (i *issuer) forgeries() map[string]forgery {
	h, c := header(), claimsOf("shop", "pay")
	day := int64(24 * time.Hour / time.Second)
	now := time.Now().Unix()
	jwk := jose.JSONWebKey{Key: i.key.Public(), KeyID: tokenKeyID}
	good := i.ecdsa
	return map[string]forgery{
		"alg none":                  {with(h, "alg", "none"), c, none},
		"alg nOnE":                  {with(h, "alg", "nOnE"), c, none},
		"no alg":                    {with(h, "alg", nil), c, good},
		"no signature":              {h, c, none},
		"HS256 with the public key": {with(h, "alg", "HS256"), c, i.publicAsSecret},
		"RS256 without such a key":  {with(h, "alg", "RS256"), c, good},
		"unknown key":               {h, c, stranger},
		"key in the header":         {with(h, "jwk", jwk), c, stranger},
		"key at a URL":              {with(h, "jku", "http://127.0.0.1/keys"), c, stranger},
		"certificate in the header": {with(h, "x5c", []string{"MIIB"}), c, stranger},
		"kid of a file":             {with(h, "kid", "../../../dev/null"), c, stranger},
		"kid of a query":            {with(h, "kid", "' OR 1=1 --"), c, stranger},
		"kid not text":              {with(h, "kid", []string{tokenKeyID}), c, good},
		"unknown kid":               {with(h, "kid", "other"), c, stranger},
		"unknown crit":              {with(with(h, "crit", []string{"x"}), "x", 1), c, good},
		"b64 false":                 {with(with(h, "crit", []string{"b64"}), "b64", false), c, good},
		"other issuer":              {h, with(c, "iss", tokenIssuer+"/"), good},
		"no issuer":                 {h, with(c, "iss", nil), good},
		"other audience":            {h, with(c, "aud", []string{"vault"}), good},
		"no audience":               {h, with(c, "aud", nil), good},
		"expired":                   {h, with(c, "exp", now-day), good},
		"no expiry":                 {h, with(c, "exp", nil), good},
		"expiry not a number":       {h, with(c, "exp", "never"), good},
		"not yet valid":             {h, with(c, "nbf", now+day), good},
		"issued in the future":      {h, with(c, "iat", now+day), good},
		"no subject":                {h, with(c, "sub", nil), good},
		"a user's subject":          {h, with(c, "sub", "pay"), good},
		"subject with a slash":      {h, with(c, "sub", "system:serviceaccount:shop:pay/x"), good},
		"subject with a wildcard":   {h, with(c, "sub", "system:serviceaccount:shop:*"), good},
		"two identities":            {h, with(c, "kubernetes.io", map[string]any{"namespace": "shop", "serviceaccount": map[string]any{"name": "web"}}), good},
		"not JSON":                  {h, "pay", good},
		"100 kB":                    {h, with(c, "x", strings.Repeat("x", 100<<10)), good},
		"deep JSON":                 {h, `{"x":` + strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000) + "}", good},
	}
}

// forgedTokens requests a certificate with each forgery.
func forgedTokens(ctx context.Context, p *plane) (string, error) {
	conn, err := p.connect(nil)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }() // nothing depends on it
	forgeries := p.issuer.forgeries()
	for _, name := range slices.Sorted(maps.Keys(forgeries)) {
		f := forgeries[name]
		token, err := p.issuer.forge(f.head, f.claims, f.sign)
		if err != nil {
			return "", err
		}
		if _, err = sign(withToken(ctx, token), conn, identity("shop", "pay")); refused(err) != nil {
			return "", fmt.Errorf("token with %s: %w", name, refused(err))
		}
	}
	// Combine parts of two tokens: the signature of one token is invalid for another one.
	ours, err := p.issuer.good("shop", "web")
	if err != nil {
		return "", err
	}
	theirs, err := p.issuer.forge(header(), claimsOf("shop", "pay"), none)
	if err != nil {
		return "", err
	}
	mixed := []string{theirs + ours[strings.LastIndex(ours, ".")+1:], ours + " " + theirs, ours + "," + theirs, ours[:len(ours)-4], ours + "." + ours, ""}
	for _, token := range mixed {
		if _, err := sign(withToken(ctx, token), conn, identity("shop", "pay")); refused(err) != nil {
			return "", fmt.Errorf("a token that was put together from two: %w", refused(err))
		}
	}
	if _, err := sign(withToken(ctx, ours), conn, identity("shop", "web")); err != nil {
		return "", fmt.Errorf("an unaltered token is refused: %w", err)
	}
	n := len(forgeries) + len(mixed)
	return fmt.Sprintf("%d of %d refused", n, n), nil
}

// otherIdentities requests certificates for other identities with a valid token.
func otherIdentities(ctx context.Context, p *plane) (string, error) {
	web, err := p.member(ctx, "shop", "web")
	if err != nil {
		return "", err
	}
	conn, err := p.connect(web)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }() // nothing depends on it
	wanted := []certs.ID{
		identity("shop", "pay"), identity("bank", "web"), identity("istio-system", "istiod"),
		{TrustDomain: "other.example", Namespace: "shop", ServiceAccount: "web"},
	}
	for _, id := range wanted {
		pair, err := sign(ctx, conn, id)
		if err != nil {
			if refused(err) != nil {
				return "", fmt.Errorf("%s: %w", id, refused(err))
			}
			continue
		}
		if got, err := certs.CertificateID(pair.Leaf); err != nil || got != identity("shop", "web") {
			return "", fmt.Errorf("shop/web got a certificate of %s (%w)", got, err)
		}
	}
	if _, err := sign(ctx, conn, identity("shop", "web")); err != nil {
		return "", fmt.Errorf("a workload cannot renew its own certificate: %w", err)
	}
	return fmt.Sprintf("%d of %d got nothing", len(wanted), len(wanted)), nil
}

// selfMade returns a client certificate for an identity. If parent is nil, it is issued by a new CA
// with the given subject.
func selfMade(id string, ca pkix.Name, parent *tls.Certificate) (*tls.Certificate, error) {
	uri, err := url.Parse(id)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: ca, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	key, err := certs.NewKey(certs.ECDSAP256)
	if err != nil {
		return nil, err
	}
	signer, issuerCert, above := key, authority, [][]byte(nil)
	if parent != nil {
		var ok bool
		if signer, ok = parent.PrivateKey.(crypto.Signer); !ok {
			return nil, errors.New("the key of the parent cannot sign")
		}
		issuerCert, above = parent.Leaf, parent.Certificate
	} else {
		der, err := x509.CreateCertificate(nil, authority, authority, key.Public(), key)
		if err != nil {
			return nil, err
		}
		above = [][]byte{der}
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour), URIs: []*url.URL{uri},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}, KeyUsage: x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(nil, leaf, issuerCert, key.Public(), signer)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: append([][]byte{der}, above...), PrivateKey: key}, nil
}

// forgedCertificates connects with certificates that the mesh did not issue.
func forgedCertificates(ctx context.Context, p *plane) (string, error) {
	web, err := p.member(ctx, "shop", "web")
	if err != nil {
		return "", err
	}
	const pay = "spiffe://cluster.local/ns/shop/sa/pay"
	forged := map[string]*tls.Certificate{}
	for name, make := range map[string]func() (*tls.Certificate, error){
		"of an unknown CA":                  func() (*tls.Certificate, error) { return selfMade(pay, pkix.Name{CommonName: "x"}, nil) },
		"of a CA with the name of the mesh": func() (*tls.Certificate, error) { return selfMade(pay, web.Leaf.Issuer, nil) },
		"signed by a workload":              func() (*tls.Certificate, error) { return selfMade(pay, pkix.Name{}, web) },
		"of another trust domain": func() (*tls.Certificate, error) {
			return selfMade("spiffe://other.example/ns/shop/sa/pay", pkix.Name{}, nil)
		},
	} {
		if forged[name], err = make(); err != nil {
			return "", err
		}
	}
	for name, pair := range forged {
		if err := p.attempt(ctx, pair, identity("shop", "pay")); err != nil {
			return "", fmt.Errorf("certificate %s: %w", name, err)
		}
	}
	return fmt.Sprintf("%d of %d refused", len(forged), len(forged)), nil
}

// attempt requests a certificate with a client certificate. It returns an error unless the request
// is rejected.
func (p *plane) attempt(ctx context.Context, pair *tls.Certificate, id certs.ID) error {
	conn, err := p.connect(pair)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // nothing depends on it
	_, err = sign(ctx, conn, id)
	return refused(err)
}

// stolenCertificate connects with the certificate of another workload but a different key, and uses
// the plaintext port with a valid token.
func stolenCertificate(ctx context.Context, p *plane) (string, error) {
	pay, err := p.member(ctx, "shop", "pay")
	if err != nil {
		return "", err
	}
	key, err := certs.NewKey(certs.ECDSAP256)
	if err != nil {
		return "", err
	}
	if err := p.attempt(ctx, &tls.Certificate{Certificate: pay.Certificate, PrivateKey: key}, identity("shop", "pay")); err != nil {
		return "", fmt.Errorf("a certificate without its key: %w", err)
	}
	token, err := p.issuer.good("shop", "pay")
	if err != nil {
		return "", err
	}
	conn, err := p.plaintext()
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }() // nothing depends on it
	if _, err := sign(withToken(ctx, token), conn, identity("shop", "pay")); err == nil {
		return "", errors.New("the plaintext port signed a certificate")
	}
	return "both refused", nil
}
