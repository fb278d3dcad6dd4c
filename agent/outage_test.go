// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package agent

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"log/slog"
	"math"
	"math/big"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/sds"
	"github.com/outrigger-mesh/outrigger/xdsproxy"
	"github.com/outrigger-mesh/outrigger/xdsproxy/lastgood"
)

func TestOutage(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 5, 1, 3, 0, 0, 0, time.UTC)
	const fail, missing, empty, keys = "new connections fail", "changes are missing", "a new Envoy stays empty", "new keys are missing"
	for name, c := range map[string]struct {
		has  holdings
		want []lasting
	}{
		"all": {
			holdings{identity: now.Add(1), revocation: now.Add(2), lastGood: now.Add(3), names: true, relay: xdsproxy.Status{LastResponse: now}},
			[]lasting{
				{What: "identity", Until: now.Add(1), Then: fail},
				{What: "revocations", Until: now.Add(2), Then: "covered peers are refused"},
				{What: "configuration", Then: missing},
				{What: "last good", Until: now.Add(3), Then: empty},
				{What: "token keys", Then: keys},
				{What: "names", Then: missing},
			},
		},
		"nothing": {holdings{}, []lasting{
			{What: "identity", Missing: true, Then: fail},
			{What: "configuration", Missing: true, Then: missing},
			{What: "last good", Missing: true, Then: empty},
			{What: "token keys", Missing: true, Then: keys},
			{What: "names", Missing: true, Then: missing},
		}},
		"last good, the identity elsewhere": {holdings{external: true, relay: xdsproxy.Status{LastGood: true}}, []lasting{
			{What: "identity", Missing: true, Then: "another SDS server manages it"},
			{What: "configuration", Then: missing},
			{What: "last good", Missing: true, Then: empty},
			{What: "token keys", Then: keys},
			{What: "names", Missing: true, Then: missing},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(c.want, c.has.outage(now).Parts); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// signer is a certificate authority whose certificates are valid for a time.
type signer struct {
	key  crypto.Signer
	root *x509.Certificate
	away atomic.Bool
}

func newSigner(t *testing.T) *signer { return newSignerFor(t, 1000*time.Hour) }

// newSignerFor returns an authority whose root is valid for a time.
func newSignerFor(t *testing.T, life time.Duration) *signer {
	t.Helper()
	key, err := certs.NewKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	root := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "root"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(life),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign, SubjectKeyId: []byte{1},
	}
	der, err := x509.CreateCertificate(rand.Reader, root, root, key.Public(), key)
	if err == nil {
		root, err = x509.ParseCertificate(der)
	}
	if err != nil {
		t.Fatal(err)
	}
	return &signer{key: key, root: root}
}

func (s *signer) sign(_ context.Context, request []byte, ttl time.Duration) ([][]byte, error) {
	if s.away.Load() {
		return nil, errors.New("away")
	}
	block, _ := pem.Decode(request)
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, err
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(ttl), URIs: csr.URIs,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, s.root, csr.PublicKey, s.key)
	return [][]byte{pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.root.Raw})}, err
}

// handshake lets a peer that trusts the authority verify a certificate by the clock of now.
func (s *signer) handshake(cert *tls.Certificate) error {
	roots := x509.NewCertPool()
	roots.AddCert(s.root)
	server, client := net.Pipe()
	defer func() { _, _ = server.Close(), client.Close() }() // nothing is left to read
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = tls.Server(server, &tls.Config{Certificates: []tls.Certificate{*cert}}).Handshake() // the client has the reason
		_ = server.Close()                                                                      // see above
	}()
	err := tls.Client(client, &tls.Config{InsecureSkipVerify: true, VerifyConnection: func(state tls.ConnectionState) error {
		_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots}) // as a peer of the mesh, which compares no host
		return err
	}}).Handshake()
	_ = client.Close() // see above
	<-done
	return err
}

// configure records a configuration that Envoy accepts.
func configure(t *testing.T, rec *lastgood.Recording) {
	t.Helper()
	frame := func(m proto.Message) mem.BufferSlice {
		raw, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return mem.BufferSlice{mem.SliceBuffer(raw)}
	}
	for _, resource := range []proto.Message{&clusterv3.Cluster{Name: "a"}, &listenerv3.Listener{Name: "a"}} {
		one, err := anypb.New(resource)
		if err != nil {
			t.Fatal(err)
		}
		typeURL := one.GetTypeUrl()
		rec.Request(frame(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, Node: &corev3.Node{Id: "n"}}))
		rec.Response(frame(&discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURL, Nonce: typeURL, Resources: []*discoveryv3.Resource{{Name: "a", Version: "1", Resource: one}}}))
		rec.Request(frame(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResponseNonce: typeURL}))
	}
}

// TestOutageClock compares the metric with what happens. The clock of the test passes three lifetimes,
// in which everything is renewed; then control plane and authority are away. What the metric says at
// any time holds to 2 s: until then a peer accepts the certificate, and Envoy could start with the last
// good configuration, after it not any more.
func TestOutageClock(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		const life, maxAge, exact = 5 * time.Minute, 20 * time.Minute, 2 * time.Second
		ctx, cancel := context.WithCancel(t.Context())
		authority := newSigner(t)
		id := certs.ID{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "web"}
		w, err := sds.NewWorkload(sds.WorkloadConfig{ID: id, TTL: life, Sign: authority.sign, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		store, err := lastgood.Open(lastgood.Config{Dir: filepath.Join(dir, "data"), KeyDir: filepath.Join(dir, "key"), Identity: "web", MaxAge: maxAge})
		if err != nil {
			t.Fatal(err)
		}
		var running sync.WaitGroup
		running.Go(func() { _ = w.Run(ctx) }) // the error is that of the context
		running.Go(func() { _ = store.Run(ctx) })
		defer running.Wait()
		defer cancel()
		b := &builder{cfg: &settings{}, parts: &parts{workload: w, lastGood: store}}
		b.cfg.env.LastGood.MaxAge = maxAge
		left := func() map[string]float64 { return gathered(t, outageCollector{b.kept}) }
		rec := store.Record(true)
		configure(t, rec)
		ends := map[string]func() error{
			"identity": func() error {
				if cert := w.Certificate(); cert != nil {
					return authority.handshake(cert)
				}
				return errors.New("there is no certificate")
			},
			"last_good": store.Usable,
		}
		time.Sleep(2 * time.Second) // the configuration has settled
		for range 3 * int(life/(10*time.Second)) {
			time.Sleep(10 * time.Second)
			synctest.Wait()
			if n := left(); n["identity"] < life.Seconds()/4 || n["last_good"] < 1 {
				t.Fatalf("while all is renewed, the metric is %v", n)
			}
		}
		authority.away.Store(true)
		rec.Close()
		synctest.Wait()
		said, begin := left(), time.Now()
		for _, what := range []string{"identity", "last_good"} {
			end := begin.Add(time.Duration(said[what] * float64(time.Second)))
			time.Sleep(time.Until(end) - exact)
			synctest.Wait()
			if err := ends[what](); err != nil {
				t.Errorf("%s has ended %s before the metric of %v: %v", what, exact, said, err)
			}
			if n := left()[what]; math.Abs(n-exact.Seconds()) > 0.01 {
				t.Errorf("%s: %v s are left %s before the end", what, n, exact)
			}
			time.Sleep(2 * exact)
			synctest.Wait()
			if err := ends[what](); err == nil {
				t.Errorf("%s has not ended %s after the metric of %v", what, exact, said)
			}
		}
		if n := left(); n["identity"] >= 0 || n["last_good"] >= 0 {
			t.Errorf("after all has ended, the metric is %v", n)
		}
	})
}

// gathered returns the values of a collector by part.
func gathered(t *testing.T, c prometheus.Collector) map[string]float64 {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(c)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			out[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
		}
	}
	return out
}

// TestOutageMetric checks which parts the metric has.
func TestOutageMetric(t *testing.T) {
	t.Parallel()
	got := gathered(t, outageCollector{func() holdings {
		return holdings{identity: time.Now().Add(time.Hour), relay: xdsproxy.Status{LastGood: true}}
	}})
	if len(got) != 3 || got["identity"] > 3601 || got["identity"] < 3000 || !math.IsInf(got["configuration"], 1) || !math.IsInf(got["token_keys"], 1) {
		t.Errorf("the metric is %v", got)
	}
}
