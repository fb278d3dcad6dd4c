// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package authn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"google.golang.org/grpc/metadata"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/jwks"
)

const (
	// defaultLeeway is the maximum clock difference.
	defaultLeeway = time.Minute
	// maxToken is the maximum size of a token in bytes, checked before decoding.
	maxToken = 16 << 10
	// subjectPrefix is the prefix of the subject of a service account token.
	subjectPrefix = "system:serviceaccount:"
)

// defaultAlgorithms returns the algorithms that are accepted if none are configured.
func defaultAlgorithms() []jose.SignatureAlgorithm {
	return []jose.SignatureAlgorithm{jose.ES256, jose.ES384, jose.RS256, jose.EdDSA}
}

// knownAlgorithms returns the algorithms that can be configured. It contains no symmetric
// algorithm: with one, a public key could be used as the secret.
func knownAlgorithms() []jose.SignatureAlgorithm {
	return []jose.SignatureAlgorithm{
		jose.ES256, jose.ES384, jose.ES512, jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.EdDSA,
	}
}

// JWTConfig defines which tokens are accepted. Issuer, Audiences and TrustDomain are required. The
// keys come from one of JWKS, JWKSFile and JWKSURL; if all are empty, from the discovery document
// of the issuer (OpenID Connect Discovery).
type JWTConfig struct {
	Issuer      string   // exact value of the claim iss
	Audiences   []string // at least one must be in the claim aud
	TrustDomain string   // of the resulting identities
	JWKS        []byte   // JSON Web Key Set with the public keys of the issuer
	JWKSFile    string   // path of a file with the key set; read again when it changes
	JWKSURL     string   // URL of the key set
	// Fetch says how URLs are fetched. Its Issuer, URL, Logger and Observe are set by NewJWT.
	Fetch      jwks.RemoteConfig
	Algorithms []string      // signature algorithms; empty means ES256, ES384, RS256 and EdDSA
	Leeway     time.Duration // maximum clock difference; zero means a minute
	Logger     *slog.Logger  // nil means slog.Default()
	Metrics    *Metrics      // nil means none
}

// JWT authenticates callers by a signed service account token in the metadata "authorization:
// Bearer ...". It supports one issuer; [Any] combines several.
type JWT struct {
	issuer      string
	audiences   []string
	trustDomain string
	algorithms  []jose.SignatureAlgorithm
	leeway      time.Duration
	keys        keySource
}

// NewJWT returns an Authenticator for the tokens of one issuer. Inline keys and keys in a file are
// read immediately; Run fetches keys from a URL.
func NewJWT(cfg JWTConfig) (*JWT, error) {
	if cfg.Issuer == "" {
		return nil, errors.New("authentication by token: the issuer is empty; name the issuer whose tokens are accepted")
	}
	if len(cfg.Audiences) == 0 || slices.Contains(cfg.Audiences, "") {
		return nil, errors.New("authentication by token: the audiences are empty; without one, tokens meant for others would be accepted")
	}
	if err := certs.ValidateTrustDomain(cfg.TrustDomain); err != nil {
		return nil, fmt.Errorf("authentication by token: %w", err)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Leeway <= 0 {
		cfg.Leeway = defaultLeeway
	}
	j := &JWT{
		issuer: cfg.Issuer, audiences: slices.Clone(cfg.Audiences), trustDomain: cfg.TrustDomain,
		algorithms: defaultAlgorithms(), leeway: cfg.Leeway,
	}
	if len(cfg.Algorithms) > 0 {
		j.algorithms = nil
	}
	for _, name := range cfg.Algorithms {
		alg := jose.SignatureAlgorithm(name)
		if !slices.Contains(knownAlgorithms(), alg) {
			return nil, fmt.Errorf("authentication by token: %q is not an algorithm of signatures with a public key; use some of %v", name, knownAlgorithms())
		}
		j.algorithms = append(j.algorithms, alg)
	}
	var err error
	if j.keys, err = newKeySource(cfg); err != nil {
		return nil, fmt.Errorf("authentication by token: keys of issuer %s: %w", cfg.Issuer, err)
	}
	return j, nil
}

func newKeySource(cfg JWTConfig) (keySource, error) {
	given := 0
	for _, is := range []bool{len(cfg.JWKS) > 0, cfg.JWKSFile != "", cfg.JWKSURL != ""} {
		if is {
			given++
		}
	}
	switch {
	case given > 1:
		return nil, errors.New("they are specified in more than one way; keep one of them")
	case len(cfg.JWKS) > 0:
		set, err := jwks.Parse(cfg.JWKS, true)
		if err != nil {
			return nil, fmt.Errorf("reading the key set: %w", err)
		}
		return fixedKeys{set}, nil
	case cfg.JWKSFile != "":
		return newFileKeys(cfg.JWKSFile, cfg.Logger)
	default:
		fetch := cfg.Fetch
		fetch.Source = jwks.Source{URL: cfg.JWKSURL, Issuer: cfg.Issuer}
		fetch.Logger = cfg.Logger
		fetch.Observe = func(_ *jwks.Set, err error) { cfg.Metrics.fetched(cfg.Issuer, err) }
		remote, err := jwks.NewRemote(fetch)
		if err != nil {
			return nil, err
		}
		return remoteKeys{remote}, nil
	}
}

// Run updates the keys until ctx is done.
func (j *JWT) Run(ctx context.Context) error { return j.keys.Run(ctx) }

// KeysUntil returns the issuer, and until when its keys are trusted, as [jwks.Remote.Until]: zero for keys
// that were not fetched.
func (j *JWT) KeysUntil() (issuer string, until time.Time, whole time.Duration) {
	if r, ok := j.keys.(remoteKeys); ok {
		until, whole = r.Until()
	}
	return j.issuer, until, whole
}

// Authenticate implements Authenticator.
func (j *JWT) Authenticate(ctx context.Context) (*Caller, error) {
	token, err := bearer(ctx)
	if err != nil {
		return nil, err
	}
	c, err := j.verify(ctx, token)
	if err != nil {
		return nil, err
	}
	if err := j.check(&c.Claims, time.Now()); err != nil {
		return nil, err
	}
	id, err := c.id(j.trustDomain)
	if err != nil {
		return nil, err
	}
	return &Caller{ID: id, Method: MethodJWT, Pod: c.pod()}, nil
}

// bearer returns the bearer token of the call. It returns an error unless there is exactly one.
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

// verify verifies the signature and returns the claims. It does not wrap errors of the library,
// because they may quote the token.
func (j *JWT) verify(ctx context.Context, token string) (*claims, error) {
	parsed, err := jwt.ParseSigned(token, j.algorithms)
	if err != nil {
		return nil, refuse("jwt: the token is not a JWT signed with one of %v", j.algorithms)
	}
	if len(parsed.Headers) != 1 {
		return nil, refuse("jwt: the token has %d signatures; it must have one", len(parsed.Headers))
	}
	// Checked before the signature, so that tokens of other issuers neither require a verification
	// nor cause a fetch of keys.
	var claimed struct {
		Issuer string `json:"iss"`
	}
	if parsed.UnsafeClaimsWithoutVerification(&claimed) != nil || claimed.Issuer != j.issuer {
		return nil, refuse("jwt: the token is from an issuer other than %s", j.issuer)
	}
	set, err := j.keys.Current(ctx)
	if err != nil {
		return nil, err
	}
	payload := match(parsed, set)
	if id := parsed.Headers[0].KeyID; payload == nil && (id == "" || !set.Has(id)) {
		if set = j.keys.Newer(ctx, set); set != nil {
			payload = match(parsed, set)
		}
	}
	if payload == nil {
		return nil, refuse("jwt: the token is not signed by a key of issuer %s", j.issuer)
	}
	var c claims
	if json.Unmarshal(payload, &c) != nil {
		return nil, refuse("jwt: the claims of the token cannot be read")
	}
	return &c, nil
}

// match returns the payload of a token if one of the keys verifies its signature, otherwise nil.
func match(token *jwt.JSONWebToken, set *jwks.Set) json.RawMessage {
	header := token.Headers[0]
	for _, key := range set.Keys {
		if header.KeyID != "" && key.KeyID != "" && header.KeyID != key.KeyID {
			continue
		}
		if key.Use != "" && key.Use != "sig" || key.Algorithm != "" && key.Algorithm != header.Algorithm {
			continue
		}
		var payload json.RawMessage
		if token.Claims(key.Key, &payload) == nil {
			return payload
		}
	}
	return nil
}

// check returns an error if the claims do not have the expected values.
func (j *JWT) check(c *jwt.Claims, now time.Time) error {
	if c.Issuer != j.issuer {
		return refuse("jwt: the token is from an issuer other than %s", j.issuer)
	}
	if !slices.ContainsFunc(j.audiences, c.Audience.Contains) {
		return refuse("jwt: the token is for an audience other than %s", strings.Join(j.audiences, ", "))
	}
	if c.Expiry == nil {
		return refuse("jwt: the token has no time of expiry")
	}
	if !now.Before(c.Expiry.Time().Add(j.leeway)) {
		return refuse("jwt: the token expired at %s", c.Expiry.Time().UTC().Format(time.RFC3339))
	}
	if c.NotBefore != nil && c.NotBefore.Time().After(now.Add(j.leeway)) {
		return refuse("jwt: the token is not valid before %s; compare the clocks", c.NotBefore.Time().UTC().Format(time.RFC3339))
	}
	if c.IssuedAt != nil && c.IssuedAt.Time().After(now.Add(j.leeway)) {
		return refuse("jwt: the token was issued in the future, at %s; compare the clocks", c.IssuedAt.Time().UTC().Format(time.RFC3339))
	}
	return nil
}
