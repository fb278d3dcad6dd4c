// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package authn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"google.golang.org/grpc/metadata"

	"github.com/outrigger-mesh/outrigger/certs"
)

const (
	// leeway is by how much the clock of an issuer may be ahead of ours.
	leeway = time.Minute
	// maxToken bounds a token in bytes, before anything of it is decoded.
	maxToken = 16 << 10
	// subjectPrefix starts the subject of a token of a service account.
	subjectPrefix = "system:serviceaccount:"
)

// signatureAlgorithms are the only ones that are accepted. The list holds no
// symmetric algorithm: with one, a public key could be used as the secret.
func signatureAlgorithms() []jose.SignatureAlgorithm {
	return []jose.SignatureAlgorithm{jose.ES256, jose.ES384, jose.RS256, jose.EdDSA}
}

// JWTConfig says which tokens are accepted. All fields are needed.
type JWTConfig struct {
	Issuer      string   // exact value of the claim iss
	Audiences   []string // one of them must be in the claim aud
	JWKS        []byte   // JSON Web Key Set with the public keys of the issuer
	TrustDomain string   // of the identities that tokens are turned into
}

// JWT authenticates by a signed token of a service account in the metadata
// "authorization: Bearer ...".
type JWT struct {
	issuer      string
	audiences   []string
	keys        []jose.JSONWebKey
	trustDomain string
}

// NewJWT returns an Authenticator for the tokens of one issuer.
func NewJWT(cfg JWTConfig) (*JWT, error) {
	if cfg.Issuer == "" {
		return nil, errors.New("authentication by token: the issuer is empty; name the one whose tokens are accepted")
	}
	if len(cfg.Audiences) == 0 || slices.Contains(cfg.Audiences, "") {
		return nil, errors.New("authentication by token: the audiences are empty; without one, tokens meant for others would be accepted")
	}
	if err := certs.ValidateTrustDomain(cfg.TrustDomain); err != nil {
		return nil, fmt.Errorf("authentication by token: %w", err)
	}
	var set jose.JSONWebKeySet
	if err := json.Unmarshal(cfg.JWKS, &set); err != nil {
		return nil, fmt.Errorf("authentication by token: reading the key set of issuer %s: %w", cfg.Issuer, err)
	}
	if len(set.Keys) == 0 {
		return nil, fmt.Errorf("authentication by token: the key set of issuer %s holds no key of a known type", cfg.Issuer)
	}
	for i, k := range set.Keys {
		if !k.IsPublic() || !k.Valid() {
			return nil, fmt.Errorf("authentication by token: key %d of issuer %s is not a public key; give only public keys", i+1, cfg.Issuer)
		}
	}
	return &JWT{
		issuer:      cfg.Issuer,
		audiences:   slices.Clone(cfg.Audiences),
		keys:        set.Keys,
		trustDomain: cfg.TrustDomain,
	}, nil
}

// Authenticate implements Authenticator.
func (j *JWT) Authenticate(ctx context.Context) (*Caller, error) {
	token, err := bearer(ctx)
	if err != nil {
		return nil, err
	}
	claims, err := j.verify(token)
	if err != nil {
		return nil, err
	}
	if err := j.check(claims, time.Now()); err != nil {
		return nil, err
	}
	namespace, account, ok := strings.Cut(strings.TrimPrefix(claims.Subject, subjectPrefix), ":")
	id := certs.ID{TrustDomain: j.trustDomain, Namespace: namespace, ServiceAccount: account}
	if !ok || !strings.HasPrefix(claims.Subject, subjectPrefix) || id.Validate() != nil {
		return nil, refuse("jwt: the subject is not of the form %s<namespace>:<service account>", subjectPrefix)
	}
	return &Caller{ID: id, Method: MethodJWT}, nil
}

// bearer returns the one bearer token of the call.
func bearer(ctx context.Context) (string, error) {
	const prefix = "bearer "
	var token string
	for _, v := range metadata.ValueFromIncomingContext(ctx, "authorization") {
		if len(v) < len(prefix) || !strings.EqualFold(v[:len(prefix)], prefix) {
			continue
		}
		if token != "" {
			return "", refuse("jwt: the call carries several bearer tokens")
		}
		token = strings.TrimSpace(v[len(prefix):])
	}
	if token == "" {
		return "", refuse("jwt: the call carries no bearer token")
	}
	if len(token) > maxToken {
		return "", refuse("jwt: the token has more than %d bytes", maxToken)
	}
	return token, nil
}

// verify checks the signature and returns the claims. Errors of the library are
// not passed on, because they may quote the token.
func (j *JWT) verify(token string) (*jwt.Claims, error) {
	parsed, err := jwt.ParseSigned(token, signatureAlgorithms())
	if err != nil {
		return nil, refuse("jwt: the token is not a JWT signed with one of %v", signatureAlgorithms())
	}
	if len(parsed.Headers) != 1 {
		return nil, refuse("jwt: the token has %d signatures; it must have one", len(parsed.Headers))
	}
	header := parsed.Headers[0]
	for _, key := range j.keys {
		if header.KeyID != "" && key.KeyID != "" && header.KeyID != key.KeyID {
			continue
		}
		if key.Use != "" && key.Use != "sig" || key.Algorithm != "" && key.Algorithm != header.Algorithm {
			continue
		}
		var claims jwt.Claims
		if parsed.Claims(key.Key, &claims) == nil {
			return &claims, nil
		}
	}
	return nil, refuse("jwt: the token is not signed by a key of issuer %s", j.issuer)
}

// check compares the claims with what is expected.
func (j *JWT) check(c *jwt.Claims, now time.Time) error {
	if c.Issuer != j.issuer {
		return refuse("jwt: the token is of another issuer than %s", j.issuer)
	}
	if !slices.ContainsFunc(j.audiences, c.Audience.Contains) {
		return refuse("jwt: the token is for another audience than %s", strings.Join(j.audiences, ", "))
	}
	if c.Expiry == nil {
		return refuse("jwt: the token has no time of expiry")
	}
	if !now.Before(c.Expiry.Time()) {
		return refuse("jwt: the token expired at %s", c.Expiry.Time().UTC().Format(time.RFC3339))
	}
	if c.NotBefore != nil && c.NotBefore.Time().After(now.Add(leeway)) {
		return refuse("jwt: the token is not valid before %s; compare the clocks", c.NotBefore.Time().UTC().Format(time.RFC3339))
	}
	if c.IssuedAt != nil && c.IssuedAt.Time().After(now.Add(leeway)) {
		return refuse("jwt: the token was issued in the future, at %s; compare the clocks", c.IssuedAt.Time().UTC().Format(time.RFC3339))
	}
	return nil
}
