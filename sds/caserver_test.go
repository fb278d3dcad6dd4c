// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package sds_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	securityv1alpha1 "istio.io/api/security/v1alpha1"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/e2e/ownnet"
	"github.com/outrigger-mesh/outrigger/sds"
	"github.com/outrigger-mesh/outrigger/sds/caclient"
)

const caName = "istiod.istio-system.svc"

// caServer is a certificate authority behind TLS. Callers authenticate with the token or with a
// certificate that the authority issued.
type caServer struct {
	securityv1alpha1.UnimplementedIstioCertificateServiceServer
	*authority
	address string

	mu      sync.Mutex // guards the fields below
	token   string
	stop    func()
	callers []string // how each caller authenticated
}

func (s *caServer) CreateCertificate(ctx context.Context, req *securityv1alpha1.IstioCertificateRequest) (*securityv1alpha1.IstioCertificateResponse, error) {
	by := ""
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(info.State.VerifiedChains) > 0 {
			by = "certificate"
		}
	}
	md, _ := metadata.FromIncomingContext(ctx)
	s.mu.Lock()
	if a := md.Get("authorization"); len(a) == 1 && a[0] == "Bearer "+s.token {
		by = strings.TrimSpace(by + " token")
	}
	s.callers = append(s.callers, by)
	s.mu.Unlock()
	if by == "" {
		return nil, status.Error(codes.Unauthenticated, "neither a known certificate nor a known token")
	}
	chain, err := s.Sign(ctx, []byte(req.GetCsr()), time.Duration(req.GetValidityDuration())*time.Second)
	if err != nil {
		return nil, err
	}
	return &securityv1alpha1.IstioCertificateResponse{CertChain: []string{string(chain[0]), string(chain[1])}}, nil
}

func (s *caServer) lastCaller() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.callers) == 0 {
		return ""
	}
	return s.callers[len(s.callers)-1]
}

func (s *caServer) setToken(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.token = token
}

// start serves at the address with a certificate signed by the current root.
func (s *caServer) start(t testing.TB) {
	t.Helper()
	key, err := certs.NewKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	leaf := s.leaf(key.Public(), func(c *x509.Certificate) { c.DNSNames = []string{caName} })
	pool := x509.NewCertPool()
	pool.AddCert(s.root)
	l, err := ownnet.Listen(s.address)
	if err != nil {
		t.Fatal(err)
	}
	s.address = l.Addr().String()
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{leaf.Raw}, PrivateKey: key}},
		ClientCAs:    pool, ClientAuth: tls.VerifyClientCertIfGiven, MinVersion: tls.VersionTLS12,
	})))
	securityv1alpha1.RegisterIstioCertificateServiceServer(server, s)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	var once sync.Once
	s.stop = func() {
		once.Do(func() {
			server.Stop()
			if err := <-done; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
				t.Error(err)
			}
		})
	}
	t.Cleanup(s.stop)
}

// machine is the host of an agent: the files that the agent reads, and its components.
type machine struct {
	token, roots string // paths
	workload     *sds.Workload
	log          *syncBuffer
}

func newMachine(t testing.TB, ca *caServer, change func(*sds.WorkloadConfig)) *machine {
	t.Helper()
	dir := t.TempDir()
	m := &machine{token: filepath.Join(dir, "token"), roots: filepath.Join(dir, "root-cert.pem"), log: &syncBuffer{}}
	m.provide(t, "first", ca.root)
	client, err := caclient.New(caclient.Config{
		Address: ca.address, ServerName: caName, Logger: quiet(),
		Token: func() (string, error) {
			data, err := os.ReadFile(m.token)
			return string(data), err
		},
		TLS: func() (*tls.Config, error) {
			data, err := os.ReadFile(m.roots)
			if err != nil {
				return nil, err
			}
			pool := x509.NewCertPool()
			pool.AppendCertsFromPEM(data)
			return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				if cert := m.workload.Certificate(); cert != nil {
					return cert, nil
				}
				return &tls.Certificate{}, nil
			}}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	m.workload = newWorkload(t, ca.authority, func(c *sds.WorkloadConfig) {
		c.Sign, c.TTL, c.Logger = client.Sign, time.Hour, (&rig{log: m.log}).logger()
		if change != nil {
			change(c)
		}
	})
	run(t, client)
	run(t, m.workload)
	return m
}

// provide atomically replaces the files with the token and the roots, as an operator does.
func (m *machine) provide(t testing.TB, token string, root *x509.Certificate) {
	t.Helper()
	for path, data := range map[string][]byte{m.token: []byte(token), m.roots: certs.EncodeChain(root)} {
		if err := os.WriteFile(path+".new", data, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
}

func newCAServer(t testing.TB) *caServer {
	t.Helper()
	s := &caServer{authority: newAuthority(t), address: "127.77.44.3:0", token: "first"}
	s.start(t)
	return s
}

// renewed waits for a valid certificate other than the previous one, and returns the identity.
func (m *machine) renewed(t *testing.T, before *sds.Identity) *sds.Identity {
	t.Helper()
	eventually(t, "a renewed certificate", func() bool {
		id := m.workload.Current()
		return m.workload.Certificate() != nil && (before == nil || string(id.ChainPEM) != string(before.ChainPEM))
	})
	return m.workload.Current()
}

// TestRenewalWithoutRestart renews certificates over a real connection:
//   - the first certificate is requested with the token, later ones with the certificate as well;
//   - the authority is down until the certificate has expired, and then starts again;
//   - the token is replaced on both sides, and renewals fail until both have the new one;
//   - another authority takes over, which knows neither the old certificate nor the old root.
func TestRenewalWithoutRestart(t *testing.T) {
	t.Parallel()
	ca := newCAServer(t)
	ca.set(nil, 2*time.Second)
	m := newMachine(t, ca, nil)
	id := m.renewed(t, nil)
	if by := ca.lastCaller(); by != "token" {
		t.Errorf("the first caller authenticated with %q, want the token", by)
	}
	for by := ""; by != "certificate token"; {
		before := id
		id = m.renewed(t, before)
		if by = ca.lastCaller(); by == "token" && time.Now().Before(before.NotAfter) {
			t.Fatalf("the renewal authenticated with %q, want the certificate and the token", by)
		} // otherwise, on a slow machine, the certificate expired first
	}

	ca.stop()
	eventually(t, "an expired certificate", func() bool { return m.workload.Certificate() == nil })
	ca.start(t)
	m.renewed(t, m.workload.Current())
	if by := ca.lastCaller(); by != "token" {
		t.Errorf("after the certificate had expired, the caller authenticated with %q, want the token", by)
	}

	ca.stop()
	eventually(t, "an expired certificate", func() bool { return m.workload.Certificate() == nil })
	ca.setToken("second")
	ca.start(t)
	eventually(t, "a refusal", func() bool { return strings.Contains(m.log.String(), "Unauthenticated") })
	m.provide(t, "second", ca.root)
	id = m.renewed(t, m.workload.Current())

	ca.set(nil, 20*time.Second)
	id = m.renewed(t, id)
	ca.stop()
	ca.replaceRoot()
	m.provide(t, "second", ca.root)
	ca.start(t)
	after := m.renewed(t, id)
	if time.Now().After(id.NotAfter) {
		t.Error("the new authority signed only after the old certificate had expired, although the token is sufficient")
	}
	if by := ca.lastCaller(); by != "token" {
		t.Errorf("the new authority was called with %q, want the token", by)
	}
	if string(after.RootsPEM) != string(certs.EncodeChain(ca.root)) {
		t.Error("the roots are not those of the new authority")
	}
}
