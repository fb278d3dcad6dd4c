// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mesh

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"google.golang.org/protobuf/encoding/protojson"
	securityv1beta1 "istio.io/api/security/v1beta1"
)

// TestToken verifies a token like the control plane: with the rule only.
func TestToken(t *testing.T) {
	t.Parallel()
	i, err := newIssuer()
	if err != nil {
		t.Fatal(err)
	}
	text, err := i.rule()
	if err != nil {
		t.Fatal(err)
	}
	var rule securityv1beta1.JWTRule
	if err := protojson.Unmarshal([]byte(text), &rule); err != nil {
		t.Fatal(err)
	}
	var keys jose.JSONWebKeySet
	if err := json.Unmarshal([]byte(rule.GetJwks()), &keys); err != nil {
		t.Fatal(err)
	}
	if len(keys.Keys) != 1 || !keys.Keys[0].IsPublic() || strings.Contains(rule.GetJwks(), `"d"`) {
		t.Fatalf("the rule must hold one public key: %s", rule.GetJwks())
	}
	now := time.Now()
	token, err := i.token(&workload{namespace: "back", serviceAccount: "api"}, now)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := jwt.ParseSigned(token, []jose.SignatureAlgorithm{jose.ES256})
	if err != nil {
		t.Fatal(err)
	}
	var claims jwt.Claims
	if err := parsed.Claims(keys, &claims); err != nil {
		t.Fatal(err)
	}
	err = claims.ValidateWithLeeway(jwt.Expected{
		Issuer: rule.GetIssuer(), Subject: "system:serviceaccount:back:api",
		AnyAudience: rule.GetAudiences(), Time: now.Add(time.Hour - time.Minute),
	}, 0)
	if err != nil {
		t.Error(err)
	}
	if err := claims.ValidateWithLeeway(jwt.Expected{Time: now.Add(time.Hour + time.Minute)}, 0); err == nil {
		t.Error("the token is good for more than an hour")
	}
	other, err := newIssuer()
	if err != nil {
		t.Fatal(err)
	}
	if err := parsed.Claims(other.public.Key, &claims); err == nil {
		t.Error("the key of another mesh verifies the token")
	}
}

// TestTokensAreRefreshed compares the token before and after half of its lifetime.
func TestTokensAreRefreshed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		issuer, err := newIssuer()
		if err != nil {
			t.Fatal(err)
		}
		w := &workload{name: "web", namespace: "default", serviceAccount: "web"}
		u := &Mesh{issuer: issuer, mesh: &meshFile{workloads: []*workload{w}}, screen: newScreen(Display{Out: &safeBuffer{}}, nil)}
		s := &state{dir: t.TempDir()}
		if err := u.writeTokens(s, time.Now()); err != nil {
			t.Fatal(err)
		}
		read := func() string {
			token, err := os.ReadFile(s.workload(w, "var", "run", "secrets", "tokens", "istio-token"))
			if err != nil {
				t.Fatal(err)
			}
			return string(token)
		}
		first := read()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- u.refreshTokens(ctx, s) }()
		time.Sleep(tokenLife/2 - clockCheck) // of the synctest clock
		synctest.Wait()
		early := read()
		time.Sleep(2 * clockCheck)
		synctest.Wait()
		if early != first || read() == first {
			t.Errorf("refreshed early: %t, at half of the life: %t", early != first, read() != first)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
