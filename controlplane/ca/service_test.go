// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ca_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
	securityv1alpha1 "istio.io/api/security/v1alpha1"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/ca"
	"github.com/outrigger-mesh/outrigger/e2e/ownnet"
	"github.com/outrigger-mesh/outrigger/sds/caclient"
)

const issuerName = "https://issuer.test"

func TestMain(m *testing.M) { goleak.VerifyTestMain(ownnet.Tests(m)) }

// syncBuffer is a log that is safe for concurrent use.
type syncBuffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// authority is a certificate service on loopback, over TLS and in plaintext.
type authority struct {
	*ca.Authority
	tokenKey    crypto.Signer
	secure      string
	plain       string
	log         *syncBuffer
	registry    *prometheus.Registry
	rootsOfMesh *x509.CertPool
}

func serve(t testing.TB, changes ...func(*ca.ServiceConfig)) *authority {
	t.Helper()
	a := &authority{tokenKey: newKey(t, certs.ECDSAP256), log: &syncBuffer{}, registry: prometheus.NewRegistry(), rootsOfMesh: x509.NewCertPool()}
	a.Authority = open(t, func(c *ca.Config) { c.Registerer, c.Logger = a.registry, textLog(a.log) })
	a.rootsOfMesh.AppendCertsFromPEM(a.RootPEM())
	keys, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: a.tokenKey.Public()}}})
	if err != nil {
		t.Fatal(err)
	}
	byToken, err := authn.NewJWT(authn.JWTConfig{Issuer: issuerName, Audiences: []string{"istio-ca"}, JWKS: keys, TrustDomain: "cluster.local"})
	if err != nil {
		t.Fatal(err)
	}
	byCert, err := authn.NewClientCertificate("cluster.local")
	if err != nil {
		t.Fatal(err)
	}
	serviceConfig := ca.ServiceConfig{
		Authority: a.Authority, Authenticate: authn.Any(byCert, byToken).Authenticate,
		Logger: slog.New(slog.NewTextHandler(a.log, nil)), Registerer: a.registry,
	}
	for _, change := range changes {
		change(&serviceConfig)
	}
	service, err := ca.NewService(serviceConfig)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := a.ServerCertificate([]string{"istiod.istio-system.svc"}, []net.IP{net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	a.secure = listen(t, service, grpc.Creds(credentials.NewTLS(cfg)))
	a.plain = listen(t, service)
	return a
}

func listen(t testing.TB, service *ca.Service, opts ...grpc.ServerOption) string {
	t.Helper()
	return listenOn(t, "127.0.0.1:0", service, opts...)
}

func listenOn(t testing.TB, address string, service *ca.Service, opts ...grpc.ServerOption) string {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(opts...)
	service.Register(server)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

func (a *authority) token(t testing.TB, key crypto.Signer, change func(*jwt.Claims)) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key}, nil)
	if err != nil {
		t.Fatal(err)
	}
	claims := jwt.Claims{
		Issuer: issuerName, Subject: "system:serviceaccount:default:web", Audience: jwt.Audience{"istio-ca"},
		Expiry: jwt.NewNumericDate(time.Now().Add(time.Hour)),
	}
	if change != nil {
		change(&claims)
	}
	token, err := jwt.Signed(signer).Claims(claims).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// client returns a client of the agent that trusts the authority.
func (a *authority) client(t *testing.T, change func(*caclient.Config)) *caclient.Client {
	t.Helper()
	cfg := caclient.Config{
		Address: a.secure, ServerName: "istiod.istio-system.svc", ClusterID: "Kubernetes", Logger: quiet(),
		TLS: func() (*tls.Config, error) {
			return &tls.Config{RootCAs: a.rootsOfMesh, MinVersion: tls.VersionTLS12}, nil
		},
	}
	change(&cfg)
	c, err := caclient.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return c
}

func (a *authority) metric(t *testing.T, name string) float64 {
	t.Helper()
	families, err := a.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue() + f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}

func TestIssueForToken(t *testing.T) {
	t.Parallel()
	a := serve(t)
	token := a.token(t, a.tokenKey, nil)
	c := a.client(t, func(c *caclient.Config) { c.Token = func() (string, error) { return token + "\n", nil } })
	csr := newCSR(t, newKey(t, ""), web())
	elements, err := c.Sign(t.Context(), csr, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	checkLeaf(t, a.Authority, parse(t, elements[0])[0])
	if len(elements) != 2 || string(elements[1]) != string(a.RootPEM()) {
		t.Errorf("the response has %d elements, want leaf and root", len(elements))
	}
	if n := a.metric(t, "citadel_server_success_cert_issuance_count"); n != 1 {
		t.Errorf("%v certificates were counted, want 1", n)
	}
	if at := a.metric(t, "citadel_server_root_cert_expiry_timestamp"); at != float64(parse(t, elements[1])[0].NotAfter.Unix()) {
		t.Errorf("the expiry of the root is reported as %v", at)
	}
	log := a.log.String()
	if strings.Count(log, "kind=workload") != 1 || !strings.Contains(log, "identity=spiffe://cluster.local/ns/default/sa/web") {
		t.Errorf("the log is %q, want one line with the identity", log)
	}
	if strings.Contains(log, "CERTIFICATE REQUEST") || strings.Contains(log, token[:20]) {
		t.Errorf("the log contains the request or the token: %q", log)
	}
}

func TestIssueForClientCertificate(t *testing.T) {
	t.Parallel()
	a := serve(t)
	key := newKey(t, "")
	first, err := sign(t, a.Authority, newCSR(t, key, web()), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	c := a.client(t, func(c *caclient.Config) {
		c.TLS = func() (*tls.Config, error) {
			return &tls.Config{RootCAs: a.rootsOfMesh, Certificates: []tls.Certificate{{
				Certificate: [][]byte{parse(t, first[0])[0].Raw}, PrivateKey: key,
			}}}, nil
		}
	})
	second, err := c.Sign(t.Context(), newCSR(t, newKey(t, ""), web()), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	checkLeaf(t, a.Authority, parse(t, second[0])[0])
}

func TestServiceRefuses(t *testing.T) {
	t.Parallel()
	a := serve(t)
	good := newCSR(t, newKey(t, ""), web())
	foreign := web()
	foreign.Namespace = "kube-system"
	for name, tc := range map[string]struct {
		token    string
		tokenErr error
		csr      []byte
		ttl      time.Duration
		code     codes.Code
		want     string
	}{
		"expired token":  {token: a.token(t, a.tokenKey, func(c *jwt.Claims) { c.Expiry = jwt.NewNumericDate(time.Now().Add(-time.Hour)) }), code: codes.Unauthenticated, want: "expired at"},
		"other audience": {token: a.token(t, a.tokenKey, func(c *jwt.Claims) { c.Audience = jwt.Audience{"x"} }), code: codes.Unauthenticated, want: "an audience other than"},
		"other issuer":   {token: a.token(t, a.tokenKey, func(c *jwt.Claims) { c.Issuer = "x" }), code: codes.Unauthenticated, want: "an issuer other than"},
		"other key":      {token: a.token(t, newKey(t, ""), nil), code: codes.Unauthenticated, want: "not signed by a key"},
		"no token":       {tokenErr: errors.New("the file is gone"), code: codes.Unauthenticated, want: "no token was sent: the file is gone"},
		"other identity": {csr: newCSR(t, newKey(t, ""), foreign), code: codes.InvalidArgument, want: "an identity other than"},
		"no request":     {csr: []byte("x"), code: codes.InvalidArgument, want: "not PEM"},
		"too long":       {ttl: 91 * 24 * time.Hour, code: codes.InvalidArgument, want: "at most 7776000"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if tc.token == "" && tc.tokenErr == nil {
				tc.token = a.token(t, a.tokenKey, nil)
			}
			if tc.csr == nil {
				tc.csr = good
			}
			c := a.client(t, func(c *caclient.Config) { c.Token = func() (string, error) { return tc.token, tc.tokenErr } })
			_, err := c.Sign(t.Context(), tc.csr, max(tc.ttl, time.Hour))
			if status.Code(err) != tc.code || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("got error %v, want %s with %q", err, tc.code, tc.want)
			}
			if tc.token != "" && strings.Contains(err.Error(), tc.token[:20]) {
				t.Errorf("the error quotes the token: %v", err)
			}
		})
	}
}

func TestPlaintextIsRefusedOnBothSides(t *testing.T) {
	t.Parallel()
	a := serve(t)
	token := a.token(t, a.tokenKey, nil)
	for _, allow := range []bool{false, true} {
		c := a.client(t, func(c *caclient.Config) {
			c.Address, c.TLS, c.AllowPlaintextToken = a.plain, nil, allow
			c.Token = func() (string, error) { return token, nil }
		})
		_, err := c.Sign(t.Context(), newCSR(t, newKey(t, ""), web()), time.Hour)
		want := "over which the token is not sent"
		if allow {
			want = "this connection is plaintext"
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("token in plaintext allowed: %v; got error %v, want one with %q", allow, err, want)
		}
	}
	if n := a.metric(t, "citadel_server_csr_count"); n != 1 {
		t.Errorf("%v requests reached the server, want only the one that was allowed", n)
	}
	if n := a.metric(t, "citadel_server_authentication_failure_count"); n != 1 {
		t.Errorf("%v failures were counted, want 1", n)
	}
}

// TestRawRequests sends requests that the agent's client never sends.
func TestRawRequests(t *testing.T) {
	t.Parallel()
	a := serve(t)
	conn, err := grpc.NewClient(a.secure, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: a.rootsOfMesh})))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	api := securityv1alpha1.NewIstioCertificateServiceClient(conn)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+a.token(t, a.tokenKey, nil))
	u, err := url.Parse("spiffe://cluster.local/ns//sa/")
	if err != nil {
		t.Fatal(err)
	}
	half := foreignCSR(t, newKey(t, ""), &x509.CertificateRequest{URIs: []*url.URL{u}})
	good := string(newCSR(t, newKey(t, ""), web()))
	for name, tc := range map[string]struct {
		req  *securityv1alpha1.IstioCertificateRequest
		code codes.Code
		life time.Duration
	}{
		"no lifetime":       {&securityv1alpha1.IstioCertificateRequest{Csr: good}, codes.OK, 24 * time.Hour},
		"negative lifetime": {&securityv1alpha1.IstioCertificateRequest{Csr: good, ValidityDuration: -5}, codes.OK, 24 * time.Hour},
		"huge lifetime":     {&securityv1alpha1.IstioCertificateRequest{Csr: good, ValidityDuration: 1 << 62}, codes.InvalidArgument, 0},
		"empty":             {&securityv1alpha1.IstioCertificateRequest{}, codes.InvalidArgument, 0},
		"half an identity":  {&securityv1alpha1.IstioCertificateRequest{Csr: string(half)}, codes.InvalidArgument, 0},
		"another's request": {&securityv1alpha1.IstioCertificateRequest{Csr: good, Metadata: impersonate(t)}, codes.Unauthenticated, 0},
	} {
		t.Run(name, func(t *testing.T) {
			resp, err := api.CreateCertificate(ctx, tc.req)
			if status.Code(err) != tc.code {
				t.Fatalf("got error %v, want %s", err, tc.code)
			}
			if tc.code != codes.OK {
				return
			}
			leaf := parse(t, []byte(resp.GetCertChain()[0]))[0]
			if life := time.Until(leaf.NotAfter).Round(time.Minute); life != tc.life {
				t.Errorf("the lifetime of the certificate is %s, want %s", life, tc.life)
			}
		})
	}
}

func impersonate(t *testing.T) *structpb.Struct {
	t.Helper()
	s, err := structpb.NewStruct(map[string]any{"ImpersonatedIdentity": "spiffe://cluster.local/ns/a/sa/b"})
	if err != nil {
		t.Fatal(err)
	}
	return s
}
