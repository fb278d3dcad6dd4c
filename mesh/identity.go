// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mesh

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

const (
	tokenIssuer   = "https://outrigger.mesh/up"
	tokenAudience = "istio-ca"
	tokenLife     = time.Hour
	// clockCheck is the interval at which the age of the tokens is checked.
	clockCheck = time.Minute
)

// issuer issues the tokens with which the workloads of a mesh authenticate. Its key exists only in
// memory, for the lifetime of the mesh.
type issuer struct {
	signer jose.Signer
	public jose.JSONWebKey
}

func newIssuer() (*issuer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the key for tokens: %w", err)
	}
	public := jose.JSONWebKey{Key: key.Public(), Algorithm: string(jose.ES256), Use: "sig"}
	print, err := public.Thumbprint(crypto.SHA256)
	if err != nil {
		return nil, fmt.Errorf("name the key for tokens: %w", err)
	}
	public.KeyID = base64.RawURLEncoding.EncodeToString(print)
	signer, err := jose.NewSigner(
		jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: public.KeyID}},
		(&jose.SignerOptions{}).WithType("JWT"))
	if err != nil {
		return nil, fmt.Errorf("make the signer of tokens: %w", err)
	}
	return &issuer{signer: signer, public: public}, nil
}

// token returns a token for a workload that is valid for tokenLife from now.
func (i *issuer) token(w *workload, now time.Time) (string, error) {
	token, err := jwt.Signed(i.signer).Claims(jwt.Claims{
		Issuer:    tokenIssuer,
		Subject:   fmt.Sprintf("system:serviceaccount:%s:%s", w.namespace, w.serviceAccount),
		Audience:  jwt.Audience{tokenAudience},
		IssuedAt:  jwt.NewNumericDate(now),
		NotBefore: jwt.NewNumericDate(now),
		Expiry:    jwt.NewNumericDate(now.Add(tokenLife)),
	}).Serialize()
	if err != nil {
		return "", fmt.Errorf("sign the token of %s: %w", w.name, err)
	}
	return token, nil
}

// rule returns the JWTRule, as JSON, with which the control plane verifies the tokens. It contains
// only the public key.
func (i *issuer) rule() (string, error) {
	keys, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{i.public}})
	if err != nil {
		return "", fmt.Errorf("write the public key for tokens: %w", err)
	}
	rule, err := json.Marshal(map[string]any{
		"issuer":    tokenIssuer,
		"audiences": []string{tokenAudience},
		"jwks":      string(keys),
	})
	if err != nil {
		return "", fmt.Errorf("write the rule for tokens: %w", err)
	}
	return string(rule), nil
}
