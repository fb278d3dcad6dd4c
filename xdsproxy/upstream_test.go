// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xdsproxy

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// names runs a DNS server that returns the addresses for every name, and returns the server's
// address.
func names(t *testing.T, addresses ...string) (server string) {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.77.51.4:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		a := new(dns.Msg)
		a.SetReply(q)
		if q.Question[0].Qtype == dns.TypeA {
			for _, address := range addresses {
				a.Answer = append(a.Answer, &dns.A{
					Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 1}, A: net.ParseIP(address),
				})
			}
		}
		_ = w.WriteMsg(a) // if this fails, the test times out
	})}
	started := make(chan struct{})
	s.NotifyStartedFunc = func() { close(started) }
	done := make(chan error, 1)
	go func() { done <- s.ActivateAndServe() }()
	<-started
	t.Cleanup(func() {
		if err := errors.Join(s.Shutdown(), <-done); err != nil {
			t.Error(err)
		}
	})
	return conn.LocalAddr().String()
}

// TestSeveralAddresses checks that all addresses of a name are tried. Addresses that refuse
// connections or do not respond must not block the others, and streams are distributed over those
// that respond.
func TestSeveralAddresses(t *testing.T) {
	t.Parallel()
	first := listen(t, "127.77.51.5:0")
	port := first.Addr().(*net.TCPAddr).Port
	second := listen(t, fmt.Sprintf("127.77.51.6:%d", port))
	silent := listen(t, fmt.Sprintf("127.77.51.7:%d", port)) // accepts connections and sends nothing
	t.Cleanup(func() { _ = silent.Close() })
	server := names(t, "127.77.51.5", "127.77.51.6", "127.77.51.7", "127.77.51.8") // the last one has no listener
	cps := []*controlPlane{newControlPlane(), newControlPlane()}
	cps[0].start(t, first)
	cps[1].start(t, second)
	address := fmt.Sprintf("istiod.test.:%d", port)
	r := startRig(t, Config{Upstream: UpstreamConfig{Address: address}}, true)
	r.proxy.upstream.target = "dns://" + server + "/" + address
	var met [2]int
	for range 40 {
		e := r.envoy(t)
		e.ask(clusterType)
		select {
		case <-cps[0].got:
			met[0]++
		case <-cps[1].got:
			met[1]++
		case <-time.After(2 * time.Minute):
			t.Fatal("no control plane was reached within 2 minutes")
		}
		_ = e.conn.Close()
		if min(met[0], met[1]) > 0 {
			return
		}
	}
	t.Errorf("40 streams went to %v, want some to each", met)
}

// authority signs the certificates of a control plane.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{key: key}
	a.cert = a.sign(t, &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "root"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}, &key.PublicKey)
	return a
}

func (a *authority) sign(t *testing.T, c *x509.Certificate, key any) *x509.Certificate {
	t.Helper()
	parent := a.cert
	if parent == nil {
		parent = c
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, key, a.key)
	if err != nil {
		t.Fatal(err)
	}
	out, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (a *authority) server(t *testing.T, name string) *tls.Config {
	t.Helper()
	c := a.sign(t, &x509.Certificate{
		SerialNumber: big.NewInt(2), DNSNames: []string{name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}, &a.key.PublicKey)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{c.Raw}, PrivateKey: a.key}}, MinVersion: tls.VersionTLS12}
}

func (a *authority) roots() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// TestRootsAndTokenAreReadAgain checks that root certificates and token are read before each dial,
// so that a control plane with a new root is reached without a restart.
func TestRootsAndTokenAreReadAgain(t *testing.T) {
	t.Parallel()
	before, after := newAuthority(t), newAuthority(t)
	serving := atomic.Pointer[tls.Config]{}
	serving.Store(before.server(t, "istiod.istio-system.svc"))
	roots := atomic.Pointer[x509.CertPool]{}
	roots.Store(before.roots())
	var mu sync.Mutex
	token := "one"
	cp := newControlPlane()
	l := listen(t, "127.77.51.2:0")
	g := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			c := serving.Load().Clone()
			c.NextProtos = []string{"h2"}
			return c, nil
		},
	})))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(g, cp)
	go func() { _ = g.Serve(l) }()
	t.Cleanup(g.Stop)
	reg := prometheus.NewRegistry()
	r := startRig(t, Config{Registerer: reg, Upstream: UpstreamConfig{
		Address: l.Addr().String(), ServerName: "istiod.istio-system.svc", Headers: map[string]string{"x-team": "shop"},
		TLS: func() (*tls.Config, error) {
			return &tls.Config{RootCAs: roots.Load(), MinVersion: tls.VersionTLS12}, nil
		},
		Token: func() (string, error) {
			mu.Lock()
			defer mu.Unlock()
			return token, nil
		},
	}}, false)
	e := r.envoy(t)
	e.ask(clusterType)
	receive(t, cp.got, "request")
	if md := receive(t, cp.headers, "metadata"); !slices.Equal(md.Get("authorization"), []string{"Bearer one"}) || !slices.Equal(md.Get("x-team"), []string{"shop"}) {
		t.Errorf("metadata %v", md)
	}
	_ = e.conn.Close()
	serving.Store(after.server(t, "istiod.istio-system.svc"))
	mu.Lock()
	token = "two"
	mu.Unlock()
	e = r.envoy(t)
	e.ask(clusterType)
	eventually(t, "the old root does not verify the new certificate", func() bool {
		return gauge(t, reg, "outrigger_agent_xds_failed_attempts") >= 2 && strings.Contains(r.proxy.Status().Failure, "certificate")
	})
	if gauge(t, reg, "outrigger_agent_xds_backoff_seconds") > maxBackoff.Seconds()*2 {
		t.Error("the pause is longer than the maximum")
	}
	roots.Store(after.roots())
	receive(t, cp.got, "request after the root was replaced")
	if md := receive(t, cp.headers, "metadata"); !slices.Equal(md.Get("authorization"), []string{"Bearer two"}) {
		t.Errorf("metadata %v", md)
	}
	cp.answers <- &discoveryv3.DiscoveryResponse{TypeUrl: clusterType, Nonce: "1"}
	e.wants(clusterType, "1")
	if n := gauge(t, reg, "outrigger_agent_xds_failed_attempts"); n != 0 {
		t.Errorf("%v failed attempts after a success", n)
	}
}

func TestKeepaliveDefaults(t *testing.T) {
	t.Parallel()
	if c := (UpstreamConfig{}).withDefaults(); c.KeepaliveTime != 30*time.Second || c.KeepaliveTimeout != 10*time.Second {
		t.Errorf("defaults %v", c)
	}
	c := UpstreamConfig{KeepaliveTime: time.Minute, KeepaliveTimeout: time.Second}.withDefaults()
	if c.KeepaliveTime != time.Minute || c.KeepaliveTimeout != time.Second {
		t.Errorf("changed to %v", c)
	}
}

// TestSizes checks that messages of tens of megabytes pass in both directions.
func TestSizes(t *testing.T) {
	t.Parallel()
	const request, response = 30e6, 100e6
	cp := newControlPlane()
	l := listen(t, "127.77.51.2:0")
	g := grpc.NewServer(grpc.MaxRecvMsgSize(1 << 30))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(g, cp)
	go func() { _ = g.Serve(l) }()
	t.Cleanup(g.Stop)
	r := startRig(t, Config{Upstream: UpstreamConfig{Address: l.Addr().String()}}, true)
	e := r.envoy(t)
	large := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, InitialResourceVersions: map[string]string{"n": strings.Repeat("v", request)}}
	e.send(large)
	same(t, receive(t, cp.got, "large request"), large)
	answer := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: clusterType, Nonce: "1", RemovedResources: []string{strings.Repeat("x", response)}}
	cp.answers <- answer
	same(t, e.wants(clusterType, "1"), answer)
}

// gauge returns the value of a gauge.
func gauge(t *testing.T, reg *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}
