// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"time"

	"github.com/go-jose/go-jose/v4"
)

const (
	tokenIssuer   = "https://issuer.example.com"
	tokenAudience = "istio-ca"
	tokenKeyID    = "known"
)

// issuer signs valid and forged tokens.
type issuer struct{ key *ecdsa.PrivateKey }

func newIssuer() (*issuer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key for tokens: %w", err)
	}
	return &issuer{key}, nil
}

// rule returns the JWT_RULE that accepts the tokens.
func (i *issuer) rule() (string, error) {
	keys, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: i.key.Public(), KeyID: tokenKeyID, Algorithm: "ES256", Use: "sig"}}})
	if err != nil {
		return "", err
	}
	rule, err := json.Marshal(map[string]any{"issuer": tokenIssuer, "audiences": []string{tokenAudience}, "jwks": string(keys)})
	return string(rule), err
}

// claimsOf returns the claims of a valid token.
func claimsOf(namespace, account string) map[string]any {
	now := time.Now()
	return map[string]any{
		"iss": tokenIssuer, "aud": []string{tokenAudience}, "sub": "system:serviceaccount:" + namespace + ":" + account,
		"iat": now.Unix(), "nbf": now.Unix(), "exp": now.Add(time.Hour).Unix(),
	}
}

func header() map[string]any { return map[string]any{"alg": "ES256", "kid": tokenKeyID, "typ": "JWT"} }

// good returns a valid token of a service account.
func (i *issuer) good(namespace, account string) (string, error) {
	return i.forge(header(), claimsOf(namespace, account), i.ecdsa)
}

// forge assembles a token from its parts; raw parts are used unchanged.
func (i *issuer) forge(head, claims any, sign func(input string) ([]byte, error)) (string, error) {
	input := ""
	for n, part := range []any{head, claims} {
		text, isText := part.(string)
		if !isText {
			b, err := json.Marshal(part)
			if err != nil {
				return "", err
			}
			text = string(b)
		}
		if n > 0 {
			input += "."
		}
		input += base64.RawURLEncoding.EncodeToString([]byte(text))
	}
	signature, err := sign(input)
	if err != nil {
		return "", fmt.Errorf("sign a token: %w", err)
	}
	return input + "." + base64.RawURLEncoding.EncodeToString(signature), nil
}

// ecdsa signs with the key of the issuer.
func (i *issuer) ecdsa(input string) ([]byte, error) { return es256(i.key, input) }

func es256(key *ecdsa.PrivateKey, input string) ([]byte, error) {
	sum := sha256.Sum256([]byte(input))
	r, s, err := ecdsa.Sign(rand.Reader, key, sum[:])
	if err != nil {
		return nil, err
	}
	signature := make([]byte, 64)
	r.FillBytes(signature[:32])
	s.FillBytes(signature[32:])
	return signature, nil
}

// stranger signs with an unknown key.
func stranger(input string) ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	return es256(key, input)
}

// none returns an empty signature.
func none(string) ([]byte, error) { return nil, nil }

// publicAsSecret signs with HS256, using the public key as the secret.
func (i *issuer) publicAsSecret(input string) ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(i.key.Public())
	if err != nil {
		return nil, err
	}
	mac := hmac.New(sha256.New, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
	_, err = mac.Write([]byte(input))
	return mac.Sum(nil), err
}
