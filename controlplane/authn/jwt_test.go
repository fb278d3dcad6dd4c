// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package authn_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"google.golang.org/grpc/metadata"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/authn"
)

const issuer = "https://issuer.test"

func newKey(t testing.TB) crypto.Signer {
	t.Helper()
	key, err := certs.NewKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func jwks(t testing.TB, keys ...jose.JSONWebKey) []byte {
	t.Helper()
	data, err := json.Marshal(jose.JSONWebKeySet{Keys: keys})
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func sign(t testing.TB, alg jose.SignatureAlgorithm, key any, kid string, claims any) string {
	t.Helper()
	opts := (&jose.SignerOptions{}).WithType("JWT")
	if kid != "" {
		opts = opts.WithHeader("kid", kid)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: key}, opts)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Signed(signer).Claims(claims).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func goodClaims() jwt.Claims {
	now := time.Now()
	return jwt.Claims{
		Issuer: issuer, Subject: "system:serviceaccount:default:web", Audience: jwt.Audience{"other", "istio-ca"},
		IssuedAt: jwt.NewNumericDate(now), NotBefore: jwt.NewNumericDate(now), Expiry: jwt.NewNumericDate(now.Add(time.Hour)),
	}
}

func withToken(ctx context.Context, token string) context.Context {
	return metadata.NewIncomingContext(ctx, metadata.Pairs("authorization", "Bearer "+token))
}

func newJWT(t testing.TB, keys ...jose.JSONWebKey) *authn.JWT {
	t.Helper()
	j, err := authn.NewJWT(authn.JWTConfig{
		Issuer: issuer, Audiences: []string{"istio-ca"}, JWKS: jwks(t, keys...), TrustDomain: "cluster.local",
	})
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func TestJWTClaims(t *testing.T) {
	t.Parallel()
	key := newKey(t)
	j := newJWT(t, jose.JSONWebKey{Key: key.Public(), KeyID: "k1"})
	at := func(d time.Duration) *jwt.NumericDate { return jwt.NewNumericDate(time.Now().Add(d)) }
	for _, tc := range []struct {
		name    string
		change  func(*jwt.Claims)
		wantErr string
	}{
		{"good", func(*jwt.Claims) {}, ""},
		{"clock of the issuer a little ahead", func(c *jwt.Claims) { c.NotBefore, c.IssuedAt = at(40*time.Second), at(40*time.Second) }, ""},
		{"without nbf and iat", func(c *jwt.Claims) { c.NotBefore, c.IssuedAt = nil, nil }, ""},
		{"clock of the issuer a little behind", func(c *jwt.Claims) { c.Expiry = at(-40 * time.Second) }, ""},
		{"expired", func(c *jwt.Claims) { c.Expiry = at(-2 * time.Minute) }, "expired at"},
		{"without expiry", func(c *jwt.Claims) { c.Expiry = nil }, "no time of expiry"},
		{"not yet valid", func(c *jwt.Claims) { c.NotBefore = at(5 * time.Minute) }, "not valid before"},
		{"issued in the future", func(c *jwt.Claims) { c.IssuedAt = at(5 * time.Minute) }, "issued in the future"},
		{"other audience", func(c *jwt.Claims) { c.Audience = jwt.Audience{"vault"} }, "an audience other than istio-ca"},
		{"no audience", func(c *jwt.Claims) { c.Audience = nil }, "an audience other than"},
		{"other issuer", func(c *jwt.Claims) { c.Issuer = issuer + "/" }, "an issuer other than"},
		{"subject is a user", func(c *jwt.Claims) { c.Subject = "jane" }, "the subject"},
		{"subject without account", func(c *jwt.Claims) { c.Subject = "system:serviceaccount:default" }, "the subject"},
		{"subject with empty namespace", func(c *jwt.Claims) { c.Subject = "system:serviceaccount::web" }, "the subject"},
		{"subject with a slash", func(c *jwt.Claims) { c.Subject = "system:serviceaccount:a/sa/root:web" }, "the subject"},
		{"subject with more parts", func(c *jwt.Claims) { c.Subject = "system:serviceaccount:a:b:c" }, "the subject"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			claims := goodClaims()
			tc.change(&claims)
			token := sign(t, jose.ES256, key, "k1", claims)
			caller, err := j.Authenticate(withToken(t.Context(), token))
			if tc.wantErr != "" {
				wantRefusal(t, err, tc.wantErr, token)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			want := authn.Caller{ID: certs.ID{TrustDomain: "cluster.local", Namespace: "default", ServiceAccount: "web"}, Method: authn.MethodJWT}
			if *caller != want {
				t.Errorf("got %+v, want %+v", *caller, want)
			}
		})
	}
}

func TestJWTSignatures(t *testing.T) {
	t.Parallel()
	key, other, second := newKey(t), newKey(t), newKey(t)
	rsaKey, err := certs.NewKey(certs.RSA2048)
	if err != nil {
		t.Fatal(err)
	}
	j := newJWT(
		t,
		jose.JSONWebKey{Key: key.Public(), KeyID: "k1"},
		jose.JSONWebKey{Key: rsaKey.Public(), KeyID: "r", Algorithm: "RS256", Use: "sig"},
		jose.JSONWebKey{Key: second.Public(), KeyID: "enc", Use: "enc"},
	)
	good := sign(t, jose.ES256, key, "k1", goodClaims())
	parts := strings.Split(good, ".")
	none := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none","typ":"JWT"}`)) + "." + parts[1] + "."
	// An algorithm confusion attack: the public key is used as an HMAC secret.
	secret, err := x509.MarshalPKIXPublicKey(key.Public().(*ecdsa.PublicKey))
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ name, token, wantErr string }{
		{"key by id", good, ""},
		{"without key id", sign(t, jose.ES256, key, "", goodClaims()), ""},
		{"RSA", sign(t, jose.RS256, rsaKey, "r", goodClaims()), ""},
		{"other key", sign(t, jose.ES256, other, "", goodClaims()), "not signed by a key"},
		{"other key with our id", sign(t, jose.ES256, other, "k1", goodClaims()), "not signed by a key"},
		{"unknown key id", sign(t, jose.ES256, key, "k9", goodClaims()), "not signed by a key"},
		{"key not meant for signatures", sign(t, jose.ES256, second, "enc", goodClaims()), "not signed by a key"},
		{"none", none, "not a JWT signed with"},
		{"HS256 with the public key", sign(t, jose.HS256, secret, "k1", goodClaims()), "not a JWT signed with"},
		{"algorithm not on the list", sign(t, jose.PS256, rsaKey, "r", goodClaims()), "not a JWT signed with"},
		{"changed claims", parts[0] + "." + parts[1] + "x." + parts[2], "jwt: "},
		{"not a token", "abc", "not a JWT"},
		{"too long", strings.Repeat("a", 17<<10), "more than"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			_, err := j.Authenticate(withToken(t.Context(), tc.token))
			if tc.wantErr == "" && err != nil {
				t.Fatal(err)
			}
			if tc.wantErr != "" {
				wantRefusal(t, err, tc.wantErr, tc.token)
			}
		})
	}
}

func TestJWTAuthorizationHeader(t *testing.T) {
	t.Parallel()
	key := newKey(t)
	j := newJWT(t, jose.JSONWebKey{Key: key.Public()})
	token := sign(t, jose.ES256, key, "", goodClaims())
	for name, tc := range map[string]struct {
		values  []string
		wantErr string
	}{
		"lower case":           {[]string{"bearer " + token}, ""},
		"beside another kind":  {[]string{"Basic abc", "Bearer " + token}, ""},
		"none":                 {nil, "no bearer token"},
		"another kind":         {[]string{"Basic abc"}, "no bearer token"},
		"empty":                {[]string{"Bearer "}, "no bearer token"},
		"two":                  {[]string{"Bearer " + token, "Bearer " + token}, "several"},
		"without the word":     {[]string{token}, "no bearer token"},
		"with a trailing line": {[]string{"Bearer " + token + "\n"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := metadata.NewIncomingContext(t.Context(), metadata.MD{"authorization": tc.values})
			_, err := j.Authenticate(ctx)
			if tc.wantErr == "" && err != nil {
				t.Fatal(err)
			}
			if tc.wantErr != "" {
				wantRefusal(t, err, tc.wantErr, token)
			}
		})
	}
}

func TestJWTKubernetesClaim(t *testing.T) {
	t.Parallel()
	key := newKey(t)
	j := newJWT(t, jose.JSONWebKey{Key: key.Public()})
	for name, tc := range map[string]struct {
		claim   map[string]any
		want    authn.Pod
		wantErr string
	}{
		"bound to a pod": {
			map[string]any{
				"namespace": "default", "serviceaccount": map[string]any{"name": "web", "uid": "1"},
				"pod": map[string]any{"name": "web-1", "uid": "2"}, "node": map[string]any{"name": "n1", "uid": "3"},
			},
			authn.Pod{Name: "web-1", UID: "2", Node: "n1"},
			"",
		},
		"bound to nothing":  {map[string]any{"namespace": "default"}, authn.Pod{}, ""},
		"other namespace":   {map[string]any{"namespace": "other"}, authn.Pod{}, "different service accounts"},
		"other account":     {map[string]any{"serviceaccount": map[string]any{"name": "root"}}, authn.Pod{}, "different service accounts"},
		"of the wrong type": {map[string]any{"namespace": 1}, authn.Pod{}, "claims of the token cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			claims := struct {
				jwt.Claims
				K map[string]any `json:"kubernetes.io"`
			}{goodClaims(), tc.claim}
			token := sign(t, jose.ES256, key, "", claims)
			caller, err := j.Authenticate(withToken(t.Context(), token))
			if tc.wantErr != "" {
				wantRefusal(t, err, tc.wantErr, token)
				return
			}
			if err != nil || caller.Pod != tc.want {
				t.Fatalf("got %+v, error %v; want pod %q", caller, err, tc.want)
			}
		})
	}
}

func FuzzToken(f *testing.F) {
	key := newKey(f)
	j := newJWT(f, jose.JSONWebKey{Key: key.Public()})
	k, err := authn.NewKubernetes(authn.KubernetesConfig{TrustDomain: "cluster.local", Reviewer: func(string) authn.Reviewer { return nil }})
	if err != nil {
		f.Fatal(err)
	}
	good := sign(f, jose.ES256, key, "", goodClaims())
	f.Add("Bearer "+good, "")
	f.Add("bearer a.b.c", "Kubernetes")
	f.Add("Bearer eyJhbGciOiJub25lIn0.e30.", "")
	f.Add(good, "x\n")
	f.Fuzz(func(t *testing.T, header, cluster string) {
		ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("authorization", header, "clusterid", cluster))
		_, token, _ := strings.Cut(header, " ")
		token = strings.TrimSpace(token)
		if caller, err := j.Authenticate(ctx); err == nil {
			if token != good || caller.ID.Validate() != nil {
				t.Fatalf("the header %q was accepted as %+v", header, caller)
			}
		} else if !errors.Is(err, authn.ErrUnauthenticated) {
			t.Fatalf("got error %v, want ErrUnauthenticated", err)
		}
		if _, err := k.Authenticate(ctx); !errors.Is(err, authn.ErrUnauthenticated) {
			t.Fatalf("got error %v, want ErrUnauthenticated", err)
		}
	})
}

// wantRefusal checks the reason of an error, and that the error does not contain the token.
func wantRefusal(t *testing.T, err error, want, token string) {
	t.Helper()
	if !errors.Is(err, authn.ErrUnauthenticated) || !strings.Contains(err.Error(), want) {
		t.Fatalf("got error %v, want ErrUnauthenticated with %q", err, want)
	}
	for _, part := range strings.Split(token, ".") {
		if len(part) > 8 && strings.Contains(err.Error(), part[:8]) {
			t.Errorf("the error quotes the token: %v", err)
		}
	}
}
