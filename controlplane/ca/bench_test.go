// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ca_test

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/url"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	securityv1alpha1 "istio.io/api/security/v1alpha1"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/ca"
)

// wantShare is the minimum speed of signing, relative to a bare x509.CreateCertificate. Signing
// includes parsing and checking the request, auditing and limits.
const wantShare = 0.7

// BenchmarkSign compares answering requests with calling x509.CreateCertificate on one core. It
// alternates between the two, so that other load on the machine affects both equally.
func BenchmarkSign(b *testing.B) {
	for _, tc := range []struct{ issuer, leaf certs.KeyType }{
		{certs.ECDSAP256, certs.ECDSAP256},
		{certs.ECDSAP256, certs.RSA2048},
		{certs.RSA2048, certs.ECDSAP256},
		{certs.RSA2048, certs.RSA2048},
	} {
		b.Run(fmt.Sprintf("issuer=%s/csr=%s", tc.issuer, tc.leaf), func(b *testing.B) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
			a := open(b, func(c *ca.Config) { c.Root.KeyType = tc.issuer })
			key := newKey(b, tc.leaf)
			csr := newCSR(b, key, web())
			bare := bareSigner(b, tc.issuer, key.Public())
			service := directService(b, a)
			compare(b, bare, func() error {
				_, err := a.Sign(b.Context(), csr, web(), time.Hour)
				return err
			}, func() error { return service(string(csr)) })
		})
	}
}

// compare alternates between the functions. It reports the median speed of the others relative to
// the first.
func compare(b *testing.B, bare, sign, serve func() error) {
	b.Helper()
	const turn = 20
	took := func(f func() error) float64 {
		start := time.Now()
		for range turn {
			if err := f(); err != nil {
				b.Fatal(err)
			}
		}
		return time.Since(start).Seconds() / turn
	}
	var bares, signs, serves, shares []float64
	for b.Loop() {
		x, y, z := took(bare), took(sign), took(serve)
		bares, signs, serves, shares = append(bares, x), append(signs, y), append(serves, z), append(shares, x/z)
	}
	share := median(shares)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(1/median(bares), "bare/s")
	b.ReportMetric(1/median(signs), "sign/s")
	b.ReportMetric(1/median(serves), "service/s")
	b.ReportMetric(share, "share")
	if len(shares) >= 20 && share < wantShare {
		b.Errorf("the service answers at %.0f %% of the speed of a bare x509.CreateCertificate, want %.0f %%", share*100, wantShare*100)
	}
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

// bareSigner returns a function that only calls x509.CreateCertificate.
func bareSigner(b *testing.B, issuerType certs.KeyType, pub crypto.PublicKey) func() error {
	b.Helper()
	issuerKey := newKey(b, issuerType)
	parent := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	parent.Subject.Organization = []string{"cluster.local"}
	der, err := x509.CreateCertificate(rand.Reader, parent, parent, issuerKey.Public(), issuerKey)
	if err != nil {
		b.Fatal(err)
	}
	if parent, err = x509.ParseCertificate(der); err != nil {
		b.Fatal(err)
	}
	uri, err := url.Parse(web().String())
	if err != nil {
		b.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: new(big.Int).Lsh(big.NewInt(1), 127), NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour), URIs: []*url.URL{uri},
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	if _, ok := pub.(*rsa.PublicKey); ok {
		tmpl.KeyUsage |= x509.KeyUsageKeyEncipherment
	}
	return func() error {
		_, err := x509.CreateCertificate(rand.Reader, tmpl, parent, pub, issuerKey)
		return err
	}
}

// directService returns a function that calls a Service without a network. The caller is fixed;
// everything else is as in production.
func directService(b *testing.B, a *ca.Authority) func(csr string) error {
	b.Helper()
	caller := &authn.Caller{ID: web(), Method: authn.MethodClientCertificate}
	service, err := ca.NewService(ca.ServiceConfig{
		Authority: a, Authenticate: func(context.Context) (*authn.Caller, error) { return caller, nil },
		CallerLimit: ca.Limit{PerSecond: 1e9, Burst: 1e9}, TotalLimit: ca.Limit{PerSecond: 1e9, Burst: 1e9},
		Logger: slog.New(slog.NewJSONHandler(io.Discard, nil)),
	})
	if err != nil {
		b.Fatal(err)
	}
	ctx := peer.NewContext(b.Context(), &peer.Peer{AuthInfo: credentials.TLSInfo{}, Addr: &net.TCPAddr{IP: net.IPv4(127, 77, 45, 1), Port: 1}})
	return func(csr string) error {
		_, err := service.CreateCertificate(ctx, &securityv1alpha1.IstioCertificateRequest{Csr: csr, ValidityDuration: 3600})
		return err
	}
}

// BenchmarkRenewal renews the certificates of 10,000 agents. Each agent dials, authenticates with
// its current certificate, and verifies the new one.
func BenchmarkRenewal(b *testing.B) {
	const agents = 10000
	for b.Loop() {
		b.ReportMetric(renewAll(b, agents, time.Hour).Seconds(), "s/10000-agents")
	}
	b.ReportMetric(0, "ns/op")
}

func TestManyAgentsRenew(t *testing.T) {
	t.Parallel()
	renewAll(t, 200, 10*time.Minute)
}

// renewAll issues each agent a certificate with the given lifetime and renews all of them over the
// network. It fails if one expires.
func renewAll(t testing.TB, agents int, life time.Duration) time.Duration {
	t.Helper()
	a := open(t, nil)
	byCert, err := authn.NewClientCertificate("cluster.local")
	if err != nil {
		t.Fatal(err)
	}
	service, err := ca.NewService(ca.ServiceConfig{Authority: a, Authenticate: byCert.Authenticate, Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := a.ServerCertificate([]string{"istiod.istio-system.svc"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	address := listenOn(t, "127.77.45.1:0", service, grpc.Creds(credentials.NewTLS(cfg)))
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(a.RootPEM())

	all := make([]*renewing, agents)
	inParallel(agents, func(i int) { all[i] = newRenewing(t, a, i, life) })
	if t.Failed() {
		return 0
	}
	start := time.Now()
	inParallel(agents, func(i int) {
		if err := all[i].renew(t.Context(), address, roots); err != nil {
			t.Errorf("agent %d: %v", i, err)
		} else if time.Now().After(all[i].until) {
			t.Errorf("agent %d: its certificate expired before it was renewed", i)
		}
	})
	return time.Since(start)
}

// inParallel calls f for each number below n, several at a time.
func inParallel(n int, f func(i int)) {
	todo := make(chan int)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for i := range todo {
				f(i)
			}
		})
	}
	for i := range n {
		todo <- i
	}
	close(todo)
	wg.Wait()
}

// renewing is an agent with a certificate that expires soon.
type renewing struct {
	id    certs.ID
	csr   string
	old   tls.Certificate
	until time.Time
}

func newRenewing(t testing.TB, a *ca.Authority, i int, life time.Duration) *renewing {
	t.Helper()
	r := &renewing{id: certs.ID{TrustDomain: "cluster.local", Namespace: "default", ServiceAccount: fmt.Sprintf("agent-%d", i)}}
	key, err := certs.NewKey(certs.ECDSAP256)
	if err != nil {
		t.Error(err)
		return r
	}
	csr, err := certs.NewCSR(key, r.id)
	if err != nil {
		t.Error(err)
		return r
	}
	first, err := a.Sign(t.Context(), csr, r.id, life)
	if err != nil {
		t.Error(err)
		return r
	}
	block, _ := pem.Decode(first.Chain[0])
	r.csr, r.until, r.old = string(csr), first.NotAfter, tls.Certificate{Certificate: [][]byte{block.Bytes}, PrivateKey: key}
	return r
}

// renew dials like an agent and accepts the response only if it verifies.
func (r *renewing) renew(ctx context.Context, address string, roots *x509.CertPool) error {
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		RootCAs: roots, ServerName: "istiod.istio-system.svc", Certificates: []tls.Certificate{r.old}, MinVersion: tls.VersionTLS13,
	})))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // closing cannot lose data: the response was read
	resp, err := securityv1alpha1.NewIstioCertificateServiceClient(conn).CreateCertificate(ctx,
		&securityv1alpha1.IstioCertificateRequest{Csr: r.csr, ValidityDuration: 86400})
	if err != nil {
		return err
	}
	chain, err := certs.ParseChain([]byte(resp.GetCertChain()[0]))
	if err != nil {
		return err
	}
	if got, err := certs.CertificateID(chain[0]); err != nil || got != r.id {
		return fmt.Errorf("the certificate is for %v", got)
	}
	_, err = chain[0].Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	return err
}
