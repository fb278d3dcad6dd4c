// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package authn_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"google.golang.org/grpc/metadata"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/authn"
)

// reviewer is a Reviewer with configurable answers.
type reviewer struct {
	asked     atomic.Int64
	audiences atomic.Value
	answer    func(ctx context.Context, token string) (authn.Review, error)
}

func (r *reviewer) Review(ctx context.Context, token string, audiences []string) (authn.Review, error) {
	r.asked.Add(1)
	r.audiences.Store(strings.Join(audiences, ","))
	return r.answer(ctx, token)
}

func accepts(context.Context, string) (authn.Review, error) {
	return authn.Review{Namespace: "default", ServiceAccount: "web", Pod: authn.Pod{Name: "web-1", UID: "u", Node: "n"}}, nil
}

func newKubernetes(t testing.TB, r authn.Reviewer, change func(*authn.KubernetesConfig)) *authn.Kubernetes {
	t.Helper()
	cfg := authn.KubernetesConfig{
		TrustDomain: "cluster.local", Logger: slog.New(slog.DiscardHandler),
		Reviewer: func(cluster string) authn.Reviewer {
			if cluster == "" || cluster == "Kubernetes" {
				return r
			}
			return nil
		},
	}
	if change != nil {
		change(&cfg)
	}
	k, err := authn.NewKubernetes(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestKubernetes(t *testing.T) {
	t.Parallel()
	key := newKey(t)
	token := func(change func(*jwt.Claims)) string {
		c := goodClaims()
		if change != nil {
			change(&c)
		}
		return sign(t, jose.ES256, key, "", c)
	}
	unbound := func(c *authn.KubernetesConfig) { c.AllowUnbound = true }
	old := token(func(c *jwt.Claims) { c.Audience, c.Expiry = nil, nil })
	for name, tc := range map[string]struct {
		token     string
		cluster   []string
		change    func(*authn.KubernetesConfig)
		answer    func(context.Context, string) (authn.Review, error)
		audiences string
		wantErr   string
		asked     int64
	}{
		"good":                                {token: token(nil), audiences: "istio-ca", asked: 1},
		"good, named cluster":                 {token: token(nil), cluster: []string{"Kubernetes"}, audiences: "istio-ca", asked: 1},
		"unknown cluster":                     {token: token(nil), cluster: []string{"other"}, wantErr: `cluster "other"`},
		"several clusters":                    {token: token(nil), cluster: []string{"Kubernetes", "other"}, wantErr: "several clusters"},
		"token without audience and expiry":   {token: old, change: unbound, asked: 1},
		"token without audience, not allowed": {token: old, wantErr: "an audience other than"},
		"other audience":                      {token: token(func(c *jwt.Claims) { c.Audience = jwt.Audience{"vault"} }), wantErr: "an audience other than istio-ca"},
		"other audience, unbound":             {token: token(func(c *jwt.Claims) { c.Audience = jwt.Audience{"vault"} }), change: unbound, wantErr: "an audience other than"},
		"expired":                             {token: token(func(c *jwt.Claims) { c.Expiry = jwt.NewNumericDate(time.Now().Add(-time.Hour)) }), wantErr: "expired at"},
		"token of a user":                     {token: token(func(c *jwt.Claims) { c.Subject = "jane" }), wantErr: "the subject"},
		"not a token":                         {token: "abc", wantErr: "not a signed JWT"},
		"refused":                             {token: token(nil), answer: refuses, wantErr: "kubernetes: token [token] is no good", audiences: "istio-ca", asked: 1},
		"API server is down":                  {token: token(nil), answer: isDown, wantErr: "could not review the token", audiences: "istio-ca", asked: 1},
		"response without an account":         {token: token(nil), answer: emptyAnswer, wantErr: "namespace is empty", audiences: "istio-ca", asked: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &reviewer{answer: accepts}
			r.audiences.Store("")
			if tc.answer != nil {
				r.answer = tc.answer
			}
			md := metadata.Pairs("authorization", "Bearer "+tc.token)
			md.Append("clusterid", tc.cluster...)
			caller, err := newKubernetes(t, r, tc.change).Authenticate(metadata.NewIncomingContext(t.Context(), md))
			if r.asked.Load() != tc.asked || r.audiences.Load() != tc.audiences {
				t.Errorf("%d reviews for audiences %q, want %d for %q", r.asked.Load(), r.audiences.Load(), tc.asked, tc.audiences)
			}
			if tc.wantErr != "" {
				wantRefusal(t, err, tc.wantErr, tc.token)
				if want := name == "API server is down"; errors.Is(err, authn.ErrUnavailable) != want {
					t.Errorf("the error is ErrUnavailable: %v, want %v", !want, want)
				}
				return
			}
			want := authn.Caller{
				ID:     certs.ID{TrustDomain: "cluster.local", Namespace: "default", ServiceAccount: "web"},
				Method: authn.MethodKubernetes, Cluster: strings.Join(tc.cluster, ""), Pod: authn.Pod{Name: "web-1", UID: "u", Node: "n"},
			}
			if err != nil || *caller != want {
				t.Fatalf("got %+v, error %v; want %+v", caller, err, want)
			}
		})
	}
}

func refuses(_ context.Context, token string) (authn.Review, error) {
	return authn.Review{}, authn.Refuse("token " + token + " is no good")
}

func isDown(_ context.Context, token string) (authn.Review, error) {
	return authn.Review{}, errors.New("connection refused, the token was " + token)
}

func emptyAnswer(context.Context, string) (authn.Review, error) { return authn.Review{}, nil }

func TestKubernetesCaches(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		key := newKey(t)
		token := sign(t, jose.ES256, key, "", goodClaims())
		for name, tc := range map[string]struct {
			answer func(context.Context, string) (authn.Review, error)
			want   int64 // reviews for 100 concurrent calls, twice within 10 s and once later
		}{
			"good":    {accepts, 2},
			"refused": {refuses, 2},
			"down":    {isDown, 3}, // not cached, but shared
		} {
			r := &reviewer{answer: func(ctx context.Context, token string) (authn.Review, error) {
				time.Sleep(time.Second)
				return tc.answer(ctx, token)
			}}
			k := newKubernetes(t, r, nil)
			for range 2 {
				var wg sync.WaitGroup
				for range 100 {
					wg.Go(func() { _, _ = k.Authenticate(withToken(t.Context(), token)) })
				}
				wg.Wait()
			}
			time.Sleep(11 * time.Second)
			_, _ = k.Authenticate(withToken(t.Context(), token))
			if r.asked.Load() != tc.want {
				t.Errorf("%s: %d reviews, want %d", name, r.asked.Load(), tc.want)
			}
		}
	})
}

func TestKubernetesIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		key := newKey(t)
		var now, most atomic.Int64
		r := &reviewer{answer: func(ctx context.Context, _ string) (authn.Review, error) {
			most.Store(max(most.Load(), now.Add(1)))
			defer now.Add(-1)
			<-ctx.Done()
			return authn.Review{}, ctx.Err()
		}}
		k := newKubernetes(t, r, nil)
		start := time.Now()
		var wg sync.WaitGroup
		for i := range 200 {
			token := sign(t, jose.ES256, key, fmt.Sprint(i), goodClaims())
			wg.Go(func() {
				if _, err := k.Authenticate(withToken(t.Context(), token)); !errors.Is(err, authn.ErrUnavailable) {
					t.Errorf("got error %v, want ErrUnavailable", err)
				}
			})
		}
		wg.Wait()
		if most.Load() > 64 || time.Since(start) > 6*time.Second {
			t.Errorf("%d reviews at once in %s, want at most 64 in 6 s", most.Load(), time.Since(start))
		}
		// A canceled call does not cancel the review that it shares with other calls.
		token := sign(t, jose.ES256, key, "", goodClaims())
		r.answer = func(ctx context.Context, token string) (authn.Review, error) {
			time.Sleep(time.Second)
			return accepts(ctx, token)
		}
		ctx, cancel := context.WithCancel(t.Context())
		wg.Go(func() {
			if _, err := k.Authenticate(withToken(ctx, token)); !errors.Is(err, authn.ErrUnavailable) {
				t.Errorf("got error %v, want ErrUnavailable", err)
			}
		})
		synctest.Wait()
		wg.Go(func() {
			if _, err := k.Authenticate(withToken(t.Context(), token)); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		cancel()
		wg.Wait()
	})
}

func TestNewKubernetesRefuses(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*authn.KubernetesConfig){
		"no reviewer":    func(c *authn.KubernetesConfig) { c.Reviewer = nil },
		"trust domain":   func(c *authn.KubernetesConfig) { c.TrustDomain = "" },
		"empty audience": func(c *authn.KubernetesConfig) { c.Audiences = []string{"a", ""} },
	} {
		cfg := authn.KubernetesConfig{TrustDomain: "cluster.local", Reviewer: func(string) authn.Reviewer { return nil }}
		change(&cfg)
		if _, err := authn.NewKubernetes(cfg); err == nil {
			t.Errorf("%s: NewKubernetes accepted the configuration", name)
		}
	}
}
