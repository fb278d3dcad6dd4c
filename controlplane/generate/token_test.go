// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/jwks"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// The issuers of the tokens of tests. The second one is a path below the first one, so that a token
// of the first one could imitate it by its subject.
const (
	issuerA = "https://a.example"
	issuerB = "https://a.example/b"
)

// tokens are the tokens and keys of a test.
type tokens struct {
	a, b   jose.SigningKey
	values map[string]string // by name, as replaced in verdicts
}

// newTokens creates issuers and their tokens. In verdicts, <name> is replaced by a token, and
// KEYS_A, KEYS_B by key sets.
func newTokens(t *testing.T) *tokens {
	t.Helper()
	a, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	b, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	s := &tokens{values: map[string]string{}}
	s.a = jose.SigningKey{Algorithm: jose.RS256, Key: jose.JSONWebKey{Key: a, KeyID: "a"}}
	s.b = jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: b, KeyID: "b"}}
	s.values["KEYS_A"] = keySet(t, jose.JSONWebKey{Key: a.Public(), KeyID: "a"})
	s.values["KEYS_B"] = keySet(t, jose.JSONWebKey{Key: b.Public(), KeyID: "b"})
	// A private key that somebody wrote by mistake, after keys that are not supported.
	s.values["KEYS_MIXED"] = strings.Replace(keySet(t, jose.JSONWebKey{Key: a.Public(), KeyID: "y", Algorithm: "RSA-OAEP"}, jose.JSONWebKey{Key: a, KeyID: "a"}), `[`, `[{"kty":"future","kid":"x"},`, 1)
	s.values["KEYS_UNUSED"] = keySet(t, jose.JSONWebKey{Key: a.Public(), KeyID: "a", Algorithm: "RSA-OAEP"})

	now := time.Now().Unix()
	day := int64(24 * 60 * 60)
	base := map[string]any{"iss": issuerA, "sub": "ann", "exp": now + day}
	with := func(more map[string]any) map[string]any {
		out := maps.Clone(base)
		maps.Copy(out, more)
		return out
	}
	for name, claims := range map[string]map[string]any{
		"ann":     base,
		"bob":     with(map[string]any{"sub": "bob"}),
		"expired": with(map[string]any{"exp": now - day}),
		"early":   with(map[string]any{"nbf": now + day}),
		"nobody":  {"iss": issuerA, "exp": now + day},
		"empty":   with(map[string]any{"sub": ""}),
		"web":     with(map[string]any{"aud": "web"}),
		"lists":   with(map[string]any{"aud": []string{"web", "api"}}),
		"imitate": with(map[string]any{"sub": "b/ann"}),
		"slash":   with(map[string]any{"sub": "team/ann"}),
		"azp":     with(map[string]any{"azp": "app"}),
		"claims": with(map[string]any{
			"group": "admin", "groups": []string{"dev", "ops"}, "realm": map[string]any{"roles": []string{"writer"}, "name": "main"},
			"scope": "read write", "rights": "x y", "flag": true, "level": 3, "https://x.example/role": "boss",
		}),
		"foreign": with(map[string]any{"iss": "https://other.example"}),

		"role":        with(map[string]any{"role": "admin"}),
		"role-list":   with(map[string]any{"role": []any{"user", 7, "admin"}}),
		"role-odd":    with(map[string]any{"role": []string{"~~~"}}),
		"role-lists":  with(map[string]any{"role": []any{[]string{"admin"}}}),
		"role-number": with(map[string]any{"role": 1}),
		"role-bool":   with(map[string]any{"role": true}),
		"role-longer": with(map[string]any{"role": "admins"}),
		"role-case":   with(map[string]any{"role": "Admin"}),
		"role-spaces": with(map[string]any{"role": "user admin"}),
		"role-nul":    with(map[string]any{"role": "admin\x00"}),
		"role-deeper": with(map[string]any{"role": map[string]any{"role": "admin"}}),
		"role-key":    with(map[string]any{"Role": "admin", "role ": "admin"}),
	} {
		s.values["<"+name+">"] = sign(t, s.a, claims)
	}
	s.values["<b>"] = sign(t, s.b, with(map[string]any{"iss": issuerB}))
	s.values["<wrong-key>"] = sign(t, jose.SigningKey{Algorithm: jose.ES256, Key: b}, base)
	s.values["<b-by-a>"] = sign(t, s.a, with(map[string]any{"iss": issuerB}))
	s.values["<hmac>"] = sign(t, jose.SigningKey{Algorithm: jose.HS256, Key: a.PublicKey.N.Bytes()}, base)
	parts := strings.Split(s.values["<ann>"], ".")
	none := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none","typ":"JWT"}`))
	s.values["<none>"] = none + "." + parts[1] + "."
	s.values["<unsigned>"] = none + "." + parts[1] + "." + parts[2]
	s.values["<changed>"] = parts[0] + "." + strings.Split(s.values["<bob>"], ".")[1] + "." + parts[2]
	return s
}

func keySet(t *testing.T, keys ...jose.JSONWebKey) string {
	t.Helper()
	b, err := json.Marshal(jose.JSONWebKeySet{Keys: keys})
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func sign(t testing.TB, key jose.SigningKey, claims map[string]any) string {
	t.Helper()
	signer, err := jose.NewSigner(key, nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := signer.Sign(b)
	if err != nil {
		t.Fatal(err)
	}
	text, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// in replaces the names of tokens and keys in verdicts.
func (s *tokens) in(verdicts []verdict) []verdict {
	out := slices.Clone(verdicts)
	for i := range out {
		out[i].policies, out[i].requests = s.replace(out[i].policies), s.replace(out[i].requests)
	}
	return out
}

// replace replaces the names of tokens and keys in a text.
func (s *tokens) replace(text string) string {
	for name, value := range s.values {
		text = strings.ReplaceAll(text, name, value)
	}
	return text
}

// tokenRules returns the text of a RequestAuthentication.
func tokenRules(name, rules string) string {
	return "kind: RequestAuthentication\nmetadata: {name: " + name + ", namespace: default}\nspec: {jwtRules: [" + rules + "]}\n"
}

// TestTokenVerdicts sends requests with tokens through the real Envoy.
func TestTokenVerdicts(t *testing.T) {
	t.Parallel()
	verdicts := newTokens(t).in(slices.Concat(tokenVerdicts(), tokenOutputVerdicts(), requestPrincipalVerdicts(), claimVerdicts()))
	c := newCourt(t, "127.77.59.1", func() *snapshot.Input { return &snapshot.Input{Mesh: meshconfig.Default()} }, verdicts)
	for i, v := range verdicts {
		t.Run(v.name, func(t *testing.T) { c.check(t, i, v) })
	}
}

// TestTokensWithoutKeys checks that the tokens of an issuer without keys are refused, and that it
// harms no other issuer.
func TestTokensWithoutKeys(t *testing.T) {
	t.Parallel()
	var verdicts []verdict
	for name, keys := range map[string]string{
		"a bad issuer": `jwksUri: "https://user:pw@keys.example/jwks"`, "a URI": `jwksUri: "https://keys.example/jwks"`, "nothing": ``, "no JSON": `jwks: "{"`, "no keys": `jwks: '{"keys": []}'`,
		"an unknown key": `jwks: '{"keys": [{"kty": "future"}]}'`, "a broken key": `jwks: '{"keys": [{"kty": "RSA", "n": "AQ"}]}'`,
	} {
		verdicts = append(verdicts, verdict{name, "# problem: tokens of this issuer are refused\n" + tokenRules("bad", `{issuer: "`+issuerA+`", `+keys+`}, `+ruleB), `
			200 GET /
			401 GET / | Authorization: Bearer <ann>
			401 GET / | Authorization: Bearer <none>
			401 GET / | Authorization: Bearer <hmac>
			200 GET / | Authorization: Bearer <b>
		`})
	}
	verdicts = newTokens(t).in(verdicts)
	failed := jwks.Keys{Problem: "the keys cannot be fetched; tokens of this issuer are refused until then"}
	fetched := jwks.NewSets(map[jwks.Source]jwks.Keys{{URL: "https://keys.example/jwks"}: failed, {Issuer: issuerA}: failed})
	c := newCourt(t, "127.77.60.1", func() *snapshot.Input { return &snapshot.Input{Mesh: meshconfig.Default(), Keys: fetched} }, verdicts)
	for i, v := range verdicts {
		t.Run(v.name, func(t *testing.T) { c.check(t, i, v) })
	}
}
