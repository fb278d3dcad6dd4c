// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package authn_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/outrigger-mesh/outrigger/controlplane/authn"
)

func withChain(t *testing.T, uris ...string) context.Context {
	t.Helper()
	cert := &x509.Certificate{}
	for _, s := range uris {
		u, err := url.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		cert.URIs = append(cert.URIs, u)
	}
	cert.NotAfter = time.Now().Add(time.Hour)
	return withCertificate(t, cert)
}

func withCertificate(t *testing.T, cert *x509.Certificate) context.Context {
	t.Helper()
	state := tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}, VerifiedChains: [][]*x509.Certificate{{cert}}}
	return peer.NewContext(t.Context(), &peer.Peer{AuthInfo: credentials.TLSInfo{State: state}})
}

func TestClientCertificate(t *testing.T) {
	t.Parallel()
	c, err := authn.NewClientCertificate("cluster.local", "old.test")
	if err != nil {
		t.Fatal(err)
	}
	unverified := tls.ConnectionState{PeerCertificates: []*x509.Certificate{{}}}
	workload := func(change func(*x509.Certificate)) context.Context {
		u := &url.URL{Scheme: "spiffe", Host: "cluster.local", Path: "/ns/a/sa/b"}
		cert := &x509.Certificate{Raw: []byte{1}, URIs: []*url.URL{u}, NotAfter: time.Now().Add(time.Hour)}
		change(cert)
		return withCertificate(t, cert)
	}
	swapped := tls.ConnectionState{
		PeerCertificates: []*x509.Certificate{{Raw: []byte{2}}},
		VerifiedChains:   [][]*x509.Certificate{{{Raw: []byte{1}}}},
	}
	for _, tc := range []struct {
		name    string
		ctx     context.Context
		wantErr string
	}{
		{"alias", withChain(t, "spiffe://old.test/ns/a/sa/b"), ""},
		{"just expired", workload(func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-10 * time.Second) }), ""},
		{"expired on an old connection", workload(func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Hour) }), "connect again"},
		{"an authority", workload(func(c *x509.Certificate) { c.IsCA = true }), "of an authority"},
		{"chain of another", peer.NewContext(t.Context(), &peer.Peer{AuthInfo: credentials.TLSInfo{State: swapped}}), "does not begin"},
		{"good", withChain(t, "spiffe://cluster.local/ns/a/sa/b"), ""},
		{"no peer", t.Context(), "no peer"},
		{"plaintext", peer.NewContext(t.Context(), &peer.Peer{}), "not TLS"},
		{"not verified", peer.NewContext(t.Context(), &peer.Peer{AuthInfo: credentials.TLSInfo{State: unverified}}), "none was presented"},
		{"no URI", withChain(t), "0 URI names"},
		{"two URIs", withChain(t, "spiffe://cluster.local/ns/a/sa/b", "spiffe://cluster.local/ns/a/sa/c"), "2 URI names"},
		{"other trust domain", withChain(t, "spiffe://other/ns/a/sa/b"), `its trust domain is "other"`},
		{"not a workload", withChain(t, "spiffe://cluster.local/node/1"), "form"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			caller, err := c.Authenticate(tc.ctx)
			if tc.wantErr != "" {
				wantRefusal(t, err, tc.wantErr, "")
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if caller.ID.String() != "spiffe://cluster.local/ns/a/sa/b" || caller.Method != authn.MethodClientCertificate {
				t.Errorf("the caller is %+v, want spiffe://cluster.local/ns/a/sa/b by certificate", *caller)
			}
		})
	}
	if _, err := authn.NewClientCertificate("Cluster.Local"); err == nil {
		t.Error("a trust domain in capitals was accepted")
	}
	if _, err := authn.NewClientCertificate("cluster.local", ""); err == nil {
		t.Error("an empty alias was accepted")
	}
}

func TestAny(t *testing.T) {
	t.Parallel()
	key := newKey(t)
	c, err := authn.NewClientCertificate("cluster.local")
	if err != nil {
		t.Fatal(err)
	}
	both := authn.Any(c, newJWT(t, jose.JSONWebKey{Key: key.Public()}))
	caller, err := both.Authenticate(withToken(t.Context(), sign(t, jose.ES256, key, "", goodClaims())))
	if err != nil || caller.Method != authn.MethodJWT {
		t.Errorf("a token without a certificate: got %+v, error %v; want the caller of the token", caller, err)
	}
	caller, err = both.Authenticate(withToken(withChain(t, "spiffe://cluster.local/ns/a/sa/b"), "broken"))
	if err != nil || caller.Method != authn.MethodClientCertificate {
		t.Errorf("a certificate with an invalid token: got %+v, error %v; want the caller of the certificate", caller, err)
	}
	_, err = both.Authenticate(t.Context())
	wantRefusal(t, err, "unauthenticated: client certificate: the call has no peer; jwt: the call carries no bearer token", "")
	_, err = authn.Any().Authenticate(t.Context())
	wantRefusal(t, err, "no method", "")
}

func TestNewJWTRefuses(t *testing.T) {
	t.Parallel()
	key := newKey(t)
	good := authn.JWTConfig{
		Issuer: issuer, Audiences: []string{"istio-ca"}, TrustDomain: "cluster.local",
		JWKS: jwks(t, jose.JSONWebKey{Key: key.Public()}),
	}
	for name, tc := range map[string]struct {
		change  func(*authn.JWTConfig)
		wantErr string
	}{
		"no issuer":           {func(c *authn.JWTConfig) { c.Issuer = "" }, "issuer is empty"},
		"no audience":         {func(c *authn.JWTConfig) { c.Audiences = nil }, "audiences are empty"},
		"trust domain":        {func(c *authn.JWTConfig) { c.TrustDomain = "a b" }, "trust domain"},
		"broken keys":         {func(c *authn.JWTConfig) { c.JWKS = []byte("{") }, "reading the key set"},
		"no keys":             {func(c *authn.JWTConfig) { c.JWKS = []byte("{}") }, "contains no public key"},
		"private key":         {func(c *authn.JWTConfig) { c.JWKS = jwks(t, jose.JSONWebKey{Key: key}) }, "not a public key"},
		"no source of keys":   {func(c *authn.JWTConfig) { c.JWKS, c.Issuer = nil, "kubernetes/serviceaccount" }, "neither keys"},
		"two sources of keys": {func(c *authn.JWTConfig) { c.JWKSFile = "x" }, "more than one way"},
		"no file":             {func(c *authn.JWTConfig) { c.JWKS, c.JWKSFile = nil, "/nonexistent/jwks" }, "no such file"},
		"http":                {func(c *authn.JWTConfig) { c.JWKS, c.JWKSURL = nil, "http://issuer.test/keys" }, "not https"},
		"http, loopback":      {func(c *authn.JWTConfig) { c.JWKS, c.JWKSURL = nil, "http://127.0.0.1/keys" }, "not https"},
		"password in URL": {
			func(c *authn.JWTConfig) { c.JWKS, c.JWKSURL = nil, "https://u:pw@issuer.test/keys" },
			"https://u:xxxxx@issuer.test/keys",
		},
		"host not allowed":    {func(c *authn.JWTConfig) { c.JWKS, c.JWKSURL = nil, "https://other.test/keys" }, "other.test:443 is not among the allowed hosts (issuer.test:443)"},
		"port not allowed":    {func(c *authn.JWTConfig) { c.JWKS, c.JWKSURL = nil, "https://issuer.test:8443/keys" }, "issuer.test:8443 is not among"},
		"list of hosts":       {func(c *authn.JWTConfig) { c.JWKS, c.Fetch.AllowedHosts = nil, []string{"https://a"} }, "is not a host"},
		"symmetric algorithm": {func(c *authn.JWTConfig) { c.Algorithms = []string{"ES256", "HS256"} }, `"HS256" is not`},
		"no algorithm":        {func(c *authn.JWTConfig) { c.Algorithms = []string{"none"} }, `"none" is not`},
		"symmetric key":       {func(c *authn.JWTConfig) { c.JWKS = jwks(t, jose.JSONWebKey{Key: []byte("secret")}) }, "not a public key"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := good
			tc.change(&cfg)
			if _, err := authn.NewJWT(cfg); err == nil || !strings.Contains(err.Error(), tc.wantErr) {
				t.Fatalf("got error %v, want one with %q", err, tc.wantErr)
			}
		})
	}
}

func TestParseJWTRule(t *testing.T) {
	t.Parallel()
	keys := string(jwks(t, jose.JSONWebKey{Key: newKey(t).Public()}))
	file := filepath.Join(t.TempDir(), "jwks.json")
	if err := os.WriteFile(file, []byte(keys), 0o600); err != nil {
		t.Fatal(err)
	}
	rule := func(fields map[string]any) string {
		fields["issuer"], fields["audiences"] = issuer, []string{"istio-ca"}
		data, err := json.Marshal(fields)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	for name, tc := range map[string]struct{ in, wantErr string }{
		"inline":                     {rule(map[string]any{"jwks": keys}), ""},
		"field of a newer API":       {rule(map[string]any{"jwks": keys, "somethingNew": 1}), ""},
		"file":                       {rule(map[string]any{"jwksUri": "file://" + file}), ""},
		"URL":                        {rule(map[string]any{"jwksUri": "https://keys.test:8443/keys"}), ""},
		"discovery":                  {rule(map[string]any{}), ""},
		"not a URL":                  {rule(map[string]any{"jwksUri": "https://[::1/keys"}), "cannot be read"},
		"other scheme":               {rule(map[string]any{"jwksUri": "ftp://issuer.test/keys"}), "is not supported"},
		"both":                       {rule(map[string]any{"jwks": keys, "jwksUri": "file:///x"}), "leave one out"},
		"not JSON":                   {"{", "reading JWT_RULE"},
		"host in the name of a file": {rule(map[string]any{"jwksUri": "file://host/x"}), "not supported"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg, err := authn.ParseJWTRule(tc.in)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Fatalf("got error %v, want one with %q", err, tc.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			cfg.TrustDomain = "cluster.local"
			if _, err := authn.NewJWT(cfg); err != nil {
				t.Error(err)
			}
		})
	}
}

func FuzzParseJWTRule(f *testing.F) {
	f.Add(`{"issuer":"a","audiences":["b"],"jwks":"{\"keys\":[]}"}`)
	f.Add(`{"issuer":"a","jwksUri":"https://b"}`)
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Contains(strings.ToLower(text), "file") || strings.Contains(text, `\`) {
			return // would read local files
		}
		cfg, err := authn.ParseJWTRule(text)
		if err != nil {
			return
		}
		cfg.TrustDomain = "cluster.local"
		j, err := authn.NewJWT(cfg)
		if err == nil && (cfg.Issuer == "" || len(cfg.Audiences) == 0 || j == nil) {
			t.Fatalf("%+v was accepted", cfg)
		}
	})
}

// TestExcept checks that Except rejects by identity and certificate, and returns the errors of the
// method.
func TestExcept(t *testing.T) {
	t.Parallel()
	denied := func(c *authn.Caller) error {
		if c.Serial != nil && c.Serial.Int64() == 7 {
			return errors.New("its certificate is denied")
		}
		return nil
	}
	method := func(c *authn.Caller, err error) authn.Authenticator {
		return authn.Except(fixed{c, err}, denied)
	}
	stolen := &authn.Caller{Method: authn.MethodClientCertificate, Serial: big.NewInt(7)}
	token := &authn.Caller{Method: authn.MethodJWT}
	if _, err := method(stolen, nil).Authenticate(t.Context()); !errors.Is(err, authn.ErrUnauthenticated) || !strings.Contains(err.Error(), "its certificate is denied") {
		t.Errorf("a denied certificate: got error %v, want ErrUnauthenticated with the reason", err)
	}
	if c, err := authn.Any(method(stolen, nil), method(token, nil)).Authenticate(t.Context()); err != nil || c != token {
		t.Errorf("a denied certificate with a token: got %v, error %v; want the caller of the token", c, err)
	}
	if _, err := method(nil, authn.ErrUnavailable).Authenticate(t.Context()); !errors.Is(err, authn.ErrUnavailable) {
		t.Errorf("an unavailable method: got error %v, want ErrUnavailable", err)
	}
}

// fixed is an Authenticator with a constant result.
type fixed struct {
	caller *authn.Caller
	err    error
}

func (f fixed) Authenticate(context.Context) (*authn.Caller, error) { return f.caller, f.err }
