// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package caclient_test

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	securityv1alpha1 "istio.io/api/security/v1alpha1"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/e2e/ownnet"
	"github.com/outrigger-mesh/outrigger/sds/caclient"
)

// TestMain sets a proxy that must not be used. It is set for all tests, because net/http reads the
// setting only once; it would not apply to loopback addresses.
func TestMain(m *testing.M) {
	if err := os.Setenv("HTTPS_PROXY", "http://127.0.0.1:1"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(ownnet.Tests(m))
}

func TestEnvironmentProxyIsIgnored(t *testing.T) {
	t.Parallel()
	c := newClient(t, caclient.Config{Address: "nowhere.invalid:15012", TLS: trust(nil)})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if _, err := c.Sign(ctx, []byte("request"), time.Hour); err == nil || strings.Contains(err.Error(), "dial tcp 127.0.0.1:1:") {
		t.Errorf("error = %v, want one of the name itself", err)
	}
}

const serverName = "istiod.istio-system.svc"

// service records requests and sends the response that a test configures.
type service struct {
	securityv1alpha1.UnimplementedIstioCertificateServiceServer
	answer func(*securityv1alpha1.IstioCertificateRequest, metadata.MD) ([]string, error)
}

func (s *service) CreateCertificate(ctx context.Context, req *securityv1alpha1.IstioCertificateRequest) (*securityv1alpha1.IstioCertificateResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	chain, err := s.answer(req, md)
	return &securityv1alpha1.IstioCertificateResponse{CertChain: chain}, err
}

// selfSigned returns a self-signed server certificate, which is its own root.
func selfSigned(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := certs.NewKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{serverName}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

// leafPEM returns a certificate with the given lifetime.
func leafPEM(t *testing.T, from, to time.Time) string {
	t.Helper()
	key, err := certs.NewKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: from, NotAfter: to}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return string(certs.EncodeChain(cert))
}

// listen serves on an address ("127.77.44.2:0" for any port) until stop is called.
func listen(t *testing.T, address string, s *service, cert tls.Certificate) (at string, stop func()) {
	t.Helper()
	return serveTLS(t, address, s, &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12})
}

func serveTLS(t *testing.T, address string, s *service, cfg *tls.Config) (at string, stop func()) {
	t.Helper()
	l, err := ownnet.Listen(address)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(cfg)))
	securityv1alpha1.RegisterIstioCertificateServiceServer(server, s)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	var stopped atomic.Bool
	stop = func() {
		if stopped.Swap(true) {
			return
		}
		server.Stop()
		if err := <-done; err != nil && !errors.Is(err, grpc.ErrServerStopped) { // it may not have been started
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	return l.Addr().String(), stop
}

func newClient(t *testing.T, cfg caclient.Config) *caclient.Client {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
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

func trust(pool *x509.CertPool) func() (*tls.Config, error) {
	return func() (*tls.Config, error) { return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, nil }
}

func two(*securityv1alpha1.IstioCertificateRequest, metadata.MD) ([]string, error) {
	return []string{"leaf", "root"}, nil
}

func TestSignSendsWhatIstioSends(t *testing.T) {
	t.Parallel()
	cert, pool := selfSigned(t)
	var got *securityv1alpha1.IstioCertificateRequest
	var md metadata.MD
	address, _ := listen(t, "127.77.44.2:0", &service{answer: func(req *securityv1alpha1.IstioCertificateRequest, m metadata.MD) ([]string, error) {
		got, md = req, m
		return two(req, m)
	}}, cert)
	reg := prometheus.NewRegistry()
	c := newClient(t, caclient.Config{
		Address: address, ServerName: serverName, TLS: trust(pool), ClusterID: "Kubernetes", CertSigner: "signer", Registerer: reg,
		Token: func() (string, error) { return " a.b.c\n", nil },
	})
	chain, err := c.Sign(t.Context(), []byte("request"), 90*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if len(chain) != 2 || string(chain[0]) != "leaf" || string(chain[1]) != "root" {
		t.Errorf("got chain %q, want leaf and root", chain)
	}
	if got.GetCsr() != "request" || got.GetValidityDuration() != 5400 || got.GetMetadata().GetFields()["CertSigner"].GetStringValue() != "signer" {
		t.Errorf("request: got %v", got)
	}
	if a, id := md.Get("authorization"), md.Get("ClusterID"); len(a) != 1 || a[0] != "Bearer a.b.c" || len(id) != 1 || id[0] != "Kubernetes" {
		t.Errorf("got authorization %q, ClusterID %q", a, id)
	}
	families, err := reg.Gather()
	if err != nil || len(families) != 1 || families[0].GetName() != "istio_agent_outgoing_latency" || families[0].GetMetric()[0].GetCounter().GetValue() <= 0 {
		t.Errorf("metrics: got %v, error %v", families, err)
	}
}

func TestSignErrors(t *testing.T) {
	t.Parallel()
	cert, pool := selfSigned(t)
	_, otherPool := selfSigned(t)
	answers := func(chain []string, err error) *service {
		return &service{answer: func(*securityv1alpha1.IstioCertificateRequest, metadata.MD) ([]string, error) { return chain, err }}
	}
	for name, tc := range map[string]struct {
		service *service
		change  func(*caclient.Config)
		wantErr string
	}{
		"one certificate":          {answers([]string{"leaf"}, nil), nil, "the response has 1 certificates"},
		"no certificate":           {answers(nil, nil), nil, "the response has 0 certificates"},
		"the response has a token": {answers(nil, status.Error(codes.Unauthenticated, "bad token a.b.c")), nil, "bad token [token]"},
		"unknown root":             {answers(nil, nil), func(c *caclient.Config) { c.TLS = trust(otherPool) }, "certificate signed by unknown authority"},
		"other name":               {answers(nil, nil), func(c *caclient.Config) { c.ServerName = "other.test" }, "not other.test"},
		"root cannot be read": {answers(nil, nil), func(c *caclient.Config) {
			c.TLS = func() (*tls.Config, error) { return nil, errors.New("root-cert.pem is gone") }
		}, "root-cert.pem is gone"},
		"damaged token, refused": {answers(nil, status.Error(codes.Unauthenticated, "unknown caller")), func(c *caclient.Config) {
			c.Token = func() (string, error) { return "a\x00b", nil }
		}, "unknown caller (no token was sent: it contains a byte"},
		"plaintext": {answers(nil, nil), func(c *caclient.Config) { c.TLS = nil }, "use the authority's TLS port"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address, _ := listen(t, "127.77.44.2:0", tc.service, cert)
			cfg := caclient.Config{Address: address, ServerName: serverName, TLS: trust(pool), Token: func() (string, error) { return "a.b.c", nil }}
			if tc.change != nil {
				tc.change(&cfg)
			}
			_, err := newClient(t, cfg).Sign(t.Context(), []byte("request"), time.Hour)
			if err == nil || !strings.Contains(err.Error(), tc.wantErr) || !strings.Contains(err.Error(), address) {
				t.Fatalf("got error %v, want one with %q and %s", err, tc.wantErr, address)
			}
			if strings.Contains(err.Error(), "a.b.c") {
				t.Errorf("the error contains the token: %v", err)
			}
		})
	}
	if _, err := caclient.New(caclient.Config{Address: "istiod"}); err == nil || !strings.Contains(err.Error(), "host:port") {
		t.Errorf("an address without a port: got error %v", err)
	}
}
