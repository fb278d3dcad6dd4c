// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/outrigger-mesh/outrigger/certs"
)

// tokenKey is a key of an issuer, with a token that it signed.
type tokenKey struct {
	public jose.JSONWebKey
	header http.Header
}

func newTokenKey(t *testing.T, id string) tokenKey {
	t.Helper()
	key, err := certs.NewKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: id}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Signed(signer).Claims(jwt.Claims{Issuer: "users", Subject: "ann", Expiry: jwt.NewNumericDate(time.Now().Add(24 * time.Hour))}).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return tokenKey{jose.JSONWebKey{Key: key.Public(), KeyID: id}, http.Header{"Authorization": {"Bearer " + token}}}
}

// keySetOf returns the JSON Web Key Set of keys.
func keySetOf(t *testing.T, keys []tokenKey) []byte {
	t.Helper()
	var set jose.JSONWebKeySet
	for _, k := range keys {
		set.Keys = append(set.Keys, k.public)
	}
	text, err := json.Marshal(set)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestShopTokens has an issuer of tokens that rotates its keys and then stops. Refused tokens make the
// control plane fetch the new keys, long before the interval ends. Valid tokens are accepted and others
// are refused, also by an Envoy that starts while the control plane hangs, and after a restart of the
// control plane.
func TestShopTokens(t *testing.T) {
	var published atomic.Pointer[[]byte]
	publish := func(keys ...tokenKey) {
		text := keySetOf(t, keys)
		published.Store(&text)
	}
	first, second, foreign := newTokenKey(t, "1"), newTokenKey(t, "2"), newTokenKey(t, "1")
	publish(first)
	issuer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(*published.Load()) }))
	defer issuer.Close()

	s := newShop(t)
	s.write("tokens.yaml", fmt.Sprintf(`
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: users, namespace: default}
spec:
  selector: {matchLabels: {app: orders}}
  jwtRules: [{issuer: users, jwksUri: "%s/keys"}]
`, issuer.URL))
	s.setenv("outrigger-control", "PILOT_JWT_PUB_KEY_REFRESH_INTERVAL", "24h")
	s.start()
	s.waitFor("Ctrl-C ends it", 2*time.Minute)
	if out := s.out.String(); strings.Contains(out, "has no effect") {
		t.Errorf("the object has a problem: %s", out)
	}
	client, path := throughProxy(t, frontend), "healthz"
	answers := func(header http.Header, want int) {
		t.Helper()
		eventually(t, 2*time.Minute, func() string {
			time.Sleep(20 * time.Millisecond) // others need the machine, too
			code, body, _, err := get(t.Context(), client, "http://orders:8080/"+path, header)
			if err != nil || code != want {
				return fmt.Sprintf("got %d, %v: %.200s; want %d", code, err, body, want)
			}
			return ""
		})
	}
	refuses := func(keys ...tokenKey) {
		t.Helper()
		for _, k := range keys {
			if code, body, _, err := get(t.Context(), client, "http://orders:8080/"+path, k.header); err == nil && code == http.StatusOK {
				t.Errorf("the token of a wrong key %s is accepted: %.200s", k.public.KeyID, body)
			}
		}
	}
	answers(first.header, http.StatusOK)
	answers(nil, http.StatusOK)
	answers(foreign.header, http.StatusUnauthorized)
	refuses(second, foreign)

	publish(first, second)
	answers(second.header, http.StatusOK)
	answers(first.header, http.StatusOK)
	publish(second)
	eventually(t, 2*time.Minute, func() string {
		refuses(foreign) // its key has the ID of the first one
		code, _, _, err := get(t.Context(), client, "http://orders:8080/"+path, first.header)
		if err != nil || code != http.StatusUnauthorized {
			return fmt.Sprintf("got %d, %v: the key that the issuer has removed is accepted", code, err)
		}
		return ""
	})
	answers(second.header, http.StatusOK)
	refuses(first, foreign)

	issuer.Close()
	control := s.find("outrigger-control", "")
	if err := syscall.Kill(control.pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	kill(t, s.find("envoy", "orders"))
	s.waitFor("orders: the agent exited with code", 2*time.Minute)
	refuses(first, foreign)
	answers(second.header, http.StatusOK)
	answers(first.header, http.StatusUnauthorized)
	answers(foreign.header, http.StatusUnauthorized)

	kill(t, control)
	s.waitFor("the control plane is ready again", 2*time.Minute)
	// Envoy is served by the new control plane when a change has an effect.
	s.write("denied.yaml", `
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: users, namespace: default}
spec:
  selector: {matchLabels: {app: orders}}
  action: DENY
  rules: [{to: [{operation: {paths: [/denied]}}]}]
`)
	path = "denied"
	answers(second.header, http.StatusForbidden)
	path = "healthz"
	for range 20 {
		answers(second.header, http.StatusOK)
		refuses(first, foreign)
	}
}
