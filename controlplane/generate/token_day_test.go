// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/jwks"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// issuers are issuers without sockets: documents by URL. Other URLs cannot be reached.
type issuers struct {
	mu        sync.Mutex
	documents map[string]string
}

func (i *issuers) publish(url, text string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if text == "" {
		delete(i.documents, url)
		return
	}
	i.documents[url] = text
}

// RoundTrip implements http.RoundTripper.
func (i *issuers) RoundTrip(r *http.Request) (*http.Response, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	text := i.documents[r.URL.String()]
	if text == "" {
		return nil, errors.New("no route to host")
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(text)), Request: r}, nil
}

// dayProxy is a proxy with the last configuration that a control plane sent.
type dayProxy struct {
	mu     sync.Mutex
	filter *jwtv3.JwtAuthentication
}

// dayControl runs a control plane for a proxy, with everything but its ports, until stop is called.
func dayControl(t *testing.T, dir string, web http.RoundTripper, objects []*model.Config, to *dayProxy) (stop func()) {
	t.Helper()
	changes := make(chan []model.Key, 100)
	follower, err := jwks.NewFollower(jwks.FollowerConfig{
		Dir: dir, Transport: web, OnChange: func(keys []model.Key) { changes <- keys }, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() { _ = follower.Run(ctx) }) // always returns nil
	group.Go(func() {
		follower.Follow(snapshot.KeySources(objects))
		<-follower.Tried()
		g, change := New(Config{}), model.Change{All: true}
		var mesh *snapshot.Mesh
		for {
			in := inputOf(objects, nil)
			in.Mesh, in.Keys = meshconfig.Default(), follower.Sets()
			mesh = snapshot.Build(mesh, in, change)
			follower.Follow(mesh.RequestAuthentications.KeySources())
			filter := tokenFilter(t, g.Generate(mesh, proxyAt("127.77.70.1"), xds.TypeListener))
			to.mu.Lock()
			to.filter = filter
			to.mu.Unlock()
			select {
			case keys := <-changes:
				change = model.NewChange(keys...)
			case <-ctx.Done():
				return
			}
		}
	})
	return func() { cancel(); group.Wait() }
}

// tokenFilter returns the only filter for tokens in the listeners.
func tokenFilter(t *testing.T, listeners *xds.Set) *jwtv3.JwtAuthentication {
	t.Helper()
	var found *jwtv3.JwtAuthentication
	for _, r := range listeners.Resources {
		for _, chain := range unpack(t, r).(*listenerv3.Listener).GetFilterChains() {
			for _, f := range chain.GetFilters() {
				var manager hcmv3.HttpConnectionManager
				if !f.GetTypedConfig().MessageIs(&manager) {
					continue
				}
				if err := f.GetTypedConfig().UnmarshalTo(&manager); err != nil {
					t.Error(err)
				}
				for _, h := range manager.GetHttpFilters() {
					if h.GetName() != envoyconf.TokenFilter {
						continue
					}
					found = &jwtv3.JwtAuthentication{}
					if err := h.GetTypedConfig().UnmarshalTo(found); err != nil {
						t.Error(err)
					}
				}
			}
		}
	}
	if found == nil {
		t.Error("no listener validates tokens")
	}
	return found
}

// accepts reports whether a filter accepts a token, as Envoy decides it.
func (p *dayProxy) accepts(t *testing.T, token string) bool {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	parsed, err := jwt.ParseSigned(token, []jose.SignatureAlgorithm{jose.ES256})
	if err != nil {
		return false
	}
	var claimed jwt.Claims
	if err := parsed.UnsafeClaimsWithoutVerification(&claimed); err != nil {
		t.Fatal(err)
	}
	for _, provider := range p.filter.GetProviders() {
		if provider.GetIssuer() != claimed.Issuer || time.Now().After(claimed.Expiry.Time()) {
			continue
		}
		var set jose.JSONWebKeySet
		if err := json.Unmarshal([]byte(provider.GetLocalJwks().GetInlineString()), &set); err != nil {
			t.Fatal(err)
		}
		for _, key := range set.Key(parsed.Headers[0].KeyID) {
			if parsed.Claims(key.Key, &claimed) == nil {
				return true
			}
		}
	}
	return false
}

// dayKey is a key of an issuer.
type dayKey struct {
	t      *testing.T
	issuer string
	key    jose.JSONWebKey
}

func newDayKey(t *testing.T, issuer, id string) dayKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return dayKey{t, issuer, jose.JSONWebKey{Key: key, KeyID: id}}
}

func (k dayKey) token(issuer string, life time.Duration) string {
	return sign(k.t, jose.SigningKey{Algorithm: jose.ES256, Key: k.key}, map[string]any{"iss": issuer, "sub": "ann", "exp": time.Now().Add(life).Unix()})
}

func (k dayKey) valid() string { return k.token(k.issuer, time.Minute) }

func dayKeys(t *testing.T, keys ...dayKey) string {
	t.Helper()
	var public []jose.JSONWebKey
	for _, k := range keys {
		public = append(public, k.key.Public())
	}
	return keySet(t, public...)
}

// TestIssuerIsDownForADay has one issuer that rotates its keys, and another one that is down for a
// day and comes back with other keys. Meanwhile the control plane is down for a while. No valid token
// is refused and no other one is accepted.
func TestIssuerIsDownForADay(t *testing.T) {
	t.Parallel()
	const steady, failing = "https://a.example", "https://b.example"
	const steadyKeys, failingKeys = "https://keys.example/a", "https://keys.example/b"
	objects := decode(t, strings.NewReplacer("PORT_HTTP", "8080", "PORT_TCP", "8081", "PORT_APP", "9090").Replace(verdictObjects)+"\n---\n"+
		tokenRules("users", `{issuer: "`+steady+`", jwksUri: "`+steadyKeys+`"}, {issuer: "`+failing+`"}`))
	dir := t.TempDir()
	a1, a2, b1, b2 := newDayKey(t, steady, "a1"), newDayKey(t, steady, "a2"), newDayKey(t, failing, "b1"), newDayKey(t, failing, "b2")
	foreign := []dayKey{newDayKey(t, steady, "a1"), newDayKey(t, failing, "b1"), newDayKey(t, failing, "x")}
	synctest.Test(t, func(t *testing.T) {
		web := &issuers{documents: map[string]string{
			steadyKeys: dayKeys(t, a1), failingKeys: dayKeys(t, b1),
			failing + "/.well-known/openid-configuration": `{"issuer":"` + failing + `","jwks_uri":"` + failingKeys + `"}`,
		}}
		proxy, start := &dayProxy{}, time.Now()
		stop := dayControl(t, dir, web, objects, proxy)
		defer func() { stop() }()
		good, bad := []dayKey{a1, b1}, []dayKey{a2, b2}
		// until checks the tokens until a time.
		until := func(end time.Duration) {
			t.Helper()
			for ; time.Since(start) < end; time.Sleep(5 * time.Minute) {
				synctest.Wait()
				for _, k := range good {
					if !proxy.accepts(t, k.valid()) {
						t.Fatalf("after %s the valid token of %s is refused", time.Since(start), k.key.KeyID)
					}
					for _, token := range []string{k.token(k.issuer, -time.Minute), k.token("https://other.example", time.Minute), b1.token(steady, time.Minute), a1.token(failing, time.Minute)} {
						if proxy.accepts(t, token) {
							t.Fatalf("after %s a token that is invalid is accepted", time.Since(start))
						}
					}
				}
				for _, k := range append(bad, foreign...) {
					if proxy.accepts(t, k.valid()) {
						t.Fatalf("after %s the token of the wrong key %s is accepted", time.Since(start), k.key.KeyID)
					}
				}
			}
		}
		const refresh = 21 * time.Minute
		until(time.Hour)
		web.publish(failingKeys, "")
		web.publish(failing+"/.well-known/openid-configuration", "<html>down for maintenance</html>")
		until(6 * time.Hour)
		web.publish(steadyKeys, dayKeys(t, a1, a2))
		time.Sleep(refresh)
		good, bad = []dayKey{a1, a2, b1}, []dayKey{b2}
		until(8 * time.Hour)
		web.publish(steadyKeys, dayKeys(t, a2))
		time.Sleep(refresh)
		good, bad = []dayKey{a2, b1}, []dayKey{a1, b2}
		until(13 * time.Hour)
		stop()
		until(14 * time.Hour) // the proxy keeps what it has
		stop = dayControl(t, dir, web, objects, proxy)
		until(25 * time.Hour)
		web.publish(failingKeys, dayKeys(t, b2))
		web.publish(failing+"/.well-known/openid-configuration", `{"issuer":"`+failing+`","jwks_uri":"`+failingKeys+`"}`)
		time.Sleep(2 * time.Minute)
		good, bad = []dayKey{a2, b2}, []dayKey{a1, b1}
		until(26 * time.Hour)
	})
}
