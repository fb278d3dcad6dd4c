// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package jwks

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/go-jose/go-jose/v4"

	"github.com/outrigger-mesh/outrigger/certs"
)

func TestParseBounds(t *testing.T) {
	t.Parallel()
	one := strings.TrimSuffix(strings.TrimPrefix(keySetText(t), `{"keys":[`), "]}")
	for name, tc := range map[string]struct{ text, wantErr string }{
		"many":     {`{"keys":[` + strings.Repeat(one+",", maxKeys) + one + "]}", "at most 100"},
		"large":    {strings.Repeat(" ", MaxSet+1), "more than"},
		"weak RSA": {`{"keys":[{"kty":"RSA","e":"AQAB","n":"` + strings.Repeat("x", 171) + `"}]}`, "of 1"},
	} {
		if _, err := Parse([]byte(tc.text), true); err == nil || !strings.Contains(err.Error(), tc.wantErr) {
			t.Errorf("%s: got error %v, want one with %q", name, err, tc.wantErr)
		}
	}
}

// TestSecretKeys checks that a set returns no private, symmetric or encryption keys, and that the
// order of keys does not matter.
func TestSecretKeys(t *testing.T) {
	t.Parallel()
	secret, err := certs.NewKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	large, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	keys := []jose.JSONWebKey{
		{Key: secret, KeyID: "private"},
		{Key: large, KeyID: "private too"},
		{Key: []byte("symmetric"), KeyID: "symmetric"},
		{Key: secret.Public(), KeyID: "encryption", Use: "enc"},
		{Key: secret.Public(), KeyID: "b", Use: "sig", Algorithm: "ES256"},
		{Key: large.Public(), KeyID: "a"},
	}
	var before []string
	for range 2 {
		text, err := json.Marshal(jose.JSONWebKeySet{Keys: keys})
		if err != nil {
			t.Fatal(err)
		}
		set, err := Parse(text, false)
		if err != nil {
			t.Fatal(err)
		}
		got := set.signing()
		if len(got) != 2 || strings.Contains(strings.Join(got, ""), `"d":`) || before != nil && !slices.Equal(got, before) {
			t.Errorf("signing keys: got %v, in the other order %v", got, before)
		}
		before = got
		slices.Reverse(keys)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(keySetText(f)))
	f.Add([]byte(`{"keys":[{"kty":"RSA","n":"","e":""},{"kty":"OKP","crv":"Ed25519","x":"AAAA"},{"kty":"oct","k":"AAAA"}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		set, err := Parse(text, false)
		if err != nil {
			return
		}
		if len(set.Keys) == 0 {
			t.Fatal("a set without keys was accepted")
		}
		if strict, err := Parse(text, true); err == nil && len(strict.Keys) != len(set.Keys) {
			t.Fatal("strict parsing returned other keys")
		}
		signing := set.signing()
		if len(signing) == 0 {
			return // only keys for encryption
		}
		// The stored form can be read again.
		again, err := Parse([]byte(`{"keys":[`+strings.Join(signing, ",")+`]}`), true)
		if err != nil || !slices.Equal(again.signing(), signing) {
			t.Fatalf("%v is parsed as %v, error %v", signing, again, err)
		}
	})
}
