// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	securityv1alpha1 "istio.io/api/security/v1alpha1"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/ca"
)

const testHost = "127.77.53.254"

// testConfig returns the configuration of a control plane with its own directories and the default
// settings. It has the ports secure and http.
func testConfig(t *testing.T) Config {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "config"), 0o700); err != nil {
		t.Fatal(err)
	}
	return Config{
		Version: "test", Domain: "cluster.local", Namespace: "istio-system", Revision: "default", PodName: "control",
		ConfigDir: filepath.Join(dir, "config"), StateDir: filepath.Join(dir, "ca"),
		Mesh:                  MeshConfig{File: filepath.Join(dir, "mesh"), NetworksFile: filepath.Join(dir, "networks")},
		Cluster:               ClusterConfig{Use: ClusterAuto, ID: "Kubernetes", QPS: 80, Burst: 160, NoRegistries: true, Election: true, WriteRoots: true, WriteWebhooks: true},
		Listen:                ListenConfig{Secure: testHost + ":0", HTTP: testHost + ":0"},
		TLS:                   TLSConfig{Provider: CertProviderIstiod},
		Keepalive:             KeepaliveConfig{Interval: 30 * time.Second, Timeout: 10 * time.Second},
		ConnectionsPerAddress: DefaultConnectionsPerAddress, Shutdown: 10 * time.Second, DebugHTTP: true,
		DebounceAfter: 100 * time.Millisecond, DebounceMax: 10 * time.Second, PushWorkers: 2, CanaryPush: true, VHDS: true,
		CA: CAConfig{
			Enabled: true, PluginDir: filepath.Join(dir, "cacerts"), DefaultTTL: 24 * time.Hour, MaxTTL: 2160 * time.Hour,
			Root: ca.RootConfig{TTL: 87600 * time.Hour, Check: time.Hour, Grace: 20, KeyType: certs.ECDSAP256}, CallerRate: 10, IdentityRate: 100,
		},
		Status: StatusConfig{On: true, Workers: 100, Burst: 500, QPS: 100}, Health: true,
		GatewayAPI:   GatewayAPIConfig{On: true, Status: true, IngressNamespace: "istio-system"},
		Registration: RegistrationConfig{On: true, Grace: 10 * time.Second},
	}
}

// makeServer builds a control plane from testConfig, modified by set.
func makeServer(t *testing.T, set func(*Config)) (*Server, error) {
	t.Helper()
	cfg := testConfig(t)
	if set != nil {
		set(&cfg)
	}
	return New(t.Context(), cfg, slog.New(slog.DiscardHandler))
}

// serve runs a control plane until the test ends.
func serve(t *testing.T, set func(*Config)) *Server {
	t.Helper()
	s, err := makeServer(t, set)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestServerRefuses(t *testing.T) {
	t.Parallel()
	mesh := filepath.Join(t.TempDir(), "mesh")
	if err := os.WriteFile(mesh, []byte("caCertificates: [{spiffeBundleUrl: https://x/bundle}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		set  func(*Config)
		says string
	}{
		"signers without a cluster": {set: func(c *Config) { c.CA.Signer.External, c.CA.Signer.Name = RegistrationAuthority, "a/b" }, says: "there is no cluster"},
		"issuer without audience":   {set: func(c *Config) { c.Callers.Issuer = "https://issuer.test" }, says: "TOKEN_ISSUER: AUDIENCE is empty"},
		"keys in plaintext": {set: func(c *Config) {
			c.Callers.JWTRule = `{"issuer":"i","audiences":["a"],"jwksUri":"http://10.0.0.1/keys"}`
		}, says: "JWT_RULE"},
		"a rule that cannot be read": {set: func(c *Config) { c.Callers.JWTRule = `{` }, says: "JWT_RULE"},
		"no kubeconfig":              {set: func(c *Config) { c.Cluster.Kubeconfig = "/nowhere" }, says: "/nowhere"},
		"no own certificate":         {set: func(c *Config) { c.TLS.CertFile, c.TLS.KeyFile = "/nowhere/crt", "/nowhere/key" }, says: "/nowhere/crt"},
		"custom without files":       {set: func(c *Config) { c.TLS.Provider = CertProviderCustom }, says: "--tlsCertFile"},
		"insecure suite":             {set: func(c *Config) { c.TLS.Suites = []string{"NULL"} }, says: `"NULL"`},
		"no deny list":               {set: func(c *Config) { c.DenyList = "/nowhere/deny" }, says: "OUTRIGGER_DENY_LIST: deny list /nowhere/deny"},
		"missing bundle":             {set: func(c *Config) { c.Mesh.File = mesh }, says: `names the bundle "https://x/bundle"`},
	} {
		_, err := makeServer(t, tc.set)
		if err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: got error %v, want one with %q", name, err, tc.says)
		}
	}
}

// issuer serves keys over HTTP and signs tokens.
type issuer struct {
	url    string
	signer jose.Signer
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: "1"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	set, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "1", Algorithm: "ES256", Use: "sig"}}})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", testHost+":0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(set) // a client that disconnected needs no response
	})}
	go func() { _ = server.Serve(l) }()      // returns when the server is closed
	t.Cleanup(func() { _ = server.Close() }) // nothing is left to write
	return &issuer{url: "http://" + l.Addr().String(), signer: signer}
}

func (i *issuer) token(t *testing.T, audience string) string {
	t.Helper()
	token, err := jwt.Signed(i.signer).Claims(jwt.Claims{
		Issuer: "tests", Subject: "system:serviceaccount:shop:web", Audience: jwt.Audience{audience},
		IssuedAt: jwt.NewNumericDate(time.Now()), Expiry: jwt.NewNumericDate(time.Now().Add(time.Hour)),
	}).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// TestTokenOfIssuer checks that a token of an issuer with a key set URL is accepted for a
// certificate.
func TestTokenOfIssuer(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	s := serve(t, func(c *Config) {
		c.Callers.JWTRule = fmt.Sprintf(`{"issuer":"tests","audiences":["istio-ca"],"jwksUri":%q}`, i.url+"/keys")
		c.Callers.Hosts = []string{testHost}
	})
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(s.identity.authority.RootPEM())
	conn, err := grpc.NewClient(s.ports.listeners.secure.Addr().String(), grpc.WithTransportCredentials(credentials.NewClientTLSFromCert(pool, "")))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // nothing is left to read
	id := certs.ID{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "web"}
	key, err := certs.NewKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := certs.NewCSR(key, id)
	if err != nil {
		t.Fatal(err)
	}
	for audience, code := range map[string]codes.Code{"istio-ca": codes.OK, "vault": codes.Unauthenticated} {
		ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+i.token(t, audience)), 20*time.Second)
		answer, err := securityv1alpha1.NewIstioCertificateServiceClient(conn).CreateCertificate(ctx, &securityv1alpha1.IstioCertificateRequest{Csr: string(csr)}, grpc.WaitForReady(true))
		cancel()
		if status.Code(err) != code {
			t.Fatalf("%s: got error %v, want %s", audience, err, code)
		}
		if err != nil {
			continue
		}
		chain, err := certs.ParseChain([]byte(answer.GetCertChain()[0]))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := certs.CertificateID(chain[0]); err != nil || got != id {
			t.Errorf("the certificate is for %v, error %v", got, err)
		}
	}
}

// TestServesOwnCertificate checks that the control plane serves the certificate from files with the
// configured cipher suites, that sessions are resumed, and that clients receive its roots.
func TestServesOwnCertificate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "crt"), filepath.Join(dir, "key")
	cert, key := newPair(t, "mine", true)
	write(t, map[string][]byte{certFile: cert, keyFile: key})
	s := serve(t, func(c *Config) {
		c.TLS.CertFile = certFile
		c.TLS.KeyFile = keyFile
		c.TLS.RootFile = certFile
		c.TLS.Suites = []string{"TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"}
		c.TLS.Provider = "custom"
	})
	if roots := string(s.identity.authority.RootPEM()); !strings.Contains(roots, string(cert)) || strings.Count(roots, "BEGIN") != 2 {
		t.Errorf("roots of the mesh: got %s", roots)
	}
	if len(s.identity.rootFiles) != 1 || s.identity.rootFiles[0].Path() != certFile {
		t.Errorf("followed files with roots: got %v", s.identity.rootFiles)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(cert)
	sessions := tls.NewLRUClientSessionCache(1)
	for n := range 3 {
		conn, err := tls.Dial("tcp", s.ports.listeners.secure.Addr().String(), &tls.Config{
			RootCAs: pool, ServerName: "mine", MaxVersion: tls.VersionTLS12, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}, ClientSessionCache: sessions,
		})
		if err != nil {
			t.Fatal(err)
		}
		state := conn.ConnectionState()
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		if state.CipherSuite != tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384 || state.DidResume != (n > 0) {
			t.Errorf("connection %d: got suite %s, resumed %v", n, tls.CipherSuiteName(state.CipherSuite), state.DidResume)
		}
	}
	if _, err := tls.Dial("tcp", s.ports.listeners.secure.Addr().String(), &tls.Config{
		RootCAs: pool, ServerName: "mine", MaxVersion: tls.VersionTLS12, MinVersion: tls.VersionTLS12,
		CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256},
	}); err == nil {
		t.Error("a cipher suite that is not configured was accepted")
	}
}
