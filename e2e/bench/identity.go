// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

const (
	tokenIssuer = "https://outrigger.mesh/bench"
	tokenKey    = "bench"
)

// newIdentity makes a key and returns a token of the workload default/default,
// and the rule with which the control plane checks it. The key is forgotten.
func newIdentity() (token, rule string, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", fmt.Errorf("make the key for tokens: %w", err)
	}
	signer, err := jose.NewSigner(
		jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: tokenKey}},
		(&jose.SignerOptions{}).WithType("JWT"))
	if err != nil {
		return "", "", fmt.Errorf("make the signer of tokens: %w", err)
	}
	now := time.Now()
	token, err = jwt.Signed(signer).Claims(jwt.Claims{
		Issuer: tokenIssuer, Subject: "system:serviceaccount:default:default", Audience: jwt.Audience{"istio-ca"},
		IssuedAt: jwt.NewNumericDate(now), NotBefore: jwt.NewNumericDate(now), Expiry: jwt.NewNumericDate(now.Add(time.Hour)),
	}).Serialize()
	if err != nil {
		return "", "", fmt.Errorf("sign a token: %w", err)
	}
	keys, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{
		{Key: key.Public(), KeyID: tokenKey, Algorithm: string(jose.ES256), Use: "sig"},
	}})
	if err != nil {
		return "", "", fmt.Errorf("write the public key: %w", err)
	}
	text, err := json.Marshal(map[string]any{"issuer": tokenIssuer, "audiences": []string{"istio-ca"}, "jwks": string(keys)})
	if err != nil {
		return "", "", fmt.Errorf("write the rule for tokens: %w", err)
	}
	return token, string(text), nil
}
