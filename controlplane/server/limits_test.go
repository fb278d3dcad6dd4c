// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	securityv1alpha1 "istio.io/api/security/v1alpha1"

	"github.com/outrigger-mesh/outrigger/internal/ratelimit"
)

// TestHeaderLimits checks that each port rejects a header that is too long before it has received
// all of it.
func TestHeaderLimits(t *testing.T) {
	t.Parallel()
	s := serve(t, func(c *Config) {
		c.Listen.Plaintext = testHost + ":0"
		c.Listen.Monitoring = testHost + ":0"
	})
	for name, l := range map[string]net.Listener{"http": s.ports.listeners.http, "monitoring": s.ports.listeners.monitoring} {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		_ = c.SetDeadline(time.Now().Add(2 * time.Minute))
		sent := make(chan int, 1)
		go func() {
			n := 0
			for ; n < 64<<20; n += 8 << 10 {
				if _, err := io.WriteString(c, map[bool]string{true: "GET /ready HTTP/1.1\r\nHost: x\r\nA: "}[n == 0]+strings.Repeat("x", 8<<10)); err != nil {
					break
				}
			}
			sent <- n
		}()
		r, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || r.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("%s: response to a long header: got %v, error %v; want 431", name, r, err)
		}
		if n := <-sent; n >= 64<<20 {
			t.Errorf("%s read a long header completely", name)
		}
	}
	for name, p := range map[string]struct {
		net.Listener
		creds credentials.TransportCredentials
	}{
		"secure":    {s.ports.listeners.secure, credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})}, // the identity of the server does not matter here
		"plaintext": {s.ports.listeners.plaintext, insecure.NewCredentials()},
	} {
		client, err := grpc.NewClient(p.Addr().String(), grpc.WithTransportCredentials(p.creds))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client.Close() })
		ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), "a", strings.Repeat("x", 100<<10)), 2*time.Minute)
		defer cancel()
		stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(client).DeltaAggregatedResources(ctx)
		if err == nil {
			_, err = stream.Recv()
		}
		// The client knows the limit from the server's settings, or the server resets the stream.
		if code := status.Code(err); code != codes.Internal && code != codes.Unavailable || strings.Contains(fmt.Sprint(err), "not ready") {
			t.Errorf("%s: response to a long header: got error %v", name, err)
		}
	}
}

// TestProbesAtConnectionLimit opens as many connections to an HTTP port as it accepts, from many
// addresses and with incomplete requests. Probes of the kubelet must still be answered.
func TestProbesAtConnectionLimit(t *testing.T) {
	t.Parallel()
	l := newLimits(slog.New(slog.DiscardHandler), Config{}, prometheus.NewRegistry())
	port := &pipes{conns: make(chan net.Conn)}
	begun := make(chan struct{})
	server := l.httpServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			begun <- struct{}{}
			_, _ = io.Copy(io.Discard, r.Body) // the body does not end
		}
		_, _ = io.WriteString(w, "ready")
	}))
	go func() { _ = server.Serve(l.httpListener("http", port)) }() // returns when the server is closed
	t.Cleanup(func() { _ = server.Close() })
	for i := range httpConnections - httpReserve {
		c := port.dial(t, fmt.Sprintf("10.0.0.%d", i/httpConnectionsPerAddress))
		if _, err := io.WriteString(c, "POST /ready HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		<-begun
	}
	c := port.dial(t, "10.1.0.1")
	_ = c.SetDeadline(time.Now().Add(2 * time.Minute)) // a pipe supports deadlines
	_, err := io.WriteString(c, "GET /ready HTTP/1.1\r\nHost: x\r\n\r\n")
	if err == nil {
		_, err = http.ReadResponse(bufio.NewReader(c), nil)
	}
	if err != nil {
		t.Errorf("the probe of the kubelet failed: %v", err)
	}
}

// TestConnectionsPerAddress checks the number of concurrent connections that are accepted from one
// address. An API server sends concurrent requests about all objects that it writes, and many
// proxies behind one address connect at the same time.
func TestConnectionsPerAddress(t *testing.T) {
	t.Parallel()
	limitsOf := func(perAddress int) *limits {
		l := newLimits(slog.New(slog.DiscardHandler), Config{ConnectionsPerAddress: perAddress}, prometheus.NewRegistry())
		l.files = 1 << 20
		return l
	}
	for name, c := range map[string]struct {
		most   int
		listen func(string, net.Listener) net.Listener
	}{
		"http":       {64, limitsOf(DefaultConnectionsPerAddress).httpListener},
		webhooksPort: {256, limitsOf(DefaultConnectionsPerAddress).httpListener},
		"grpc":       {DefaultConnectionsPerAddress, limitsOf(DefaultConnectionsPerAddress).grpcListener},
		"more":       {2000, limitsOf(2000).grpcListener},
		"fewer":      {10, limitsOf(10).grpcListener},
	} {
		port, most := &pipes{conns: make(chan net.Conn)}, c.most
		limited, accepted := c.listen(name, port), make(chan int, 1)
		go func() {
			n := 0
			for ; ; n++ {
				if _, err := limited.Accept(); err != nil {
					break
				}
			}
			accepted <- n
		}()
		for range most + 10 {
			port.dial(t, "10.0.0.1")
		}
		_ = port.Close() // closing a pipe cannot fail
		if n := <-accepted; n != most {
			t.Errorf("%s accepts %d connections from one address, want %d", name, n, most)
		}
	}
}

// pipes is an in-memory listener whose peers can have any address.
type pipes struct {
	conns chan net.Conn
	once  sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	if c, ok := <-p.conns; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.conns) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// dial connects from an address.
func (p *pipes) dial(t *testing.T, ip string) net.Conn {
	client, served := net.Pipe()
	t.Cleanup(func() { _ = client.Close() }) // it may already be closed
	p.conns <- addressed{served, &net.TCPAddr{IP: net.ParseIP(ip), Port: 1}}
	return client
}

// addressed is a connection with a given remote address.
type addressed struct {
	net.Conn
	remote net.Addr
}

func (a addressed) RemoteAddr() net.Addr { return a.remote }

func TestNewConnections(t *testing.T) {
	t.Parallel()
	for perAddress, want := range map[int]ratelimit.Limit{1: {PerSecond: 100, Burst: 512}, 512: {PerSecond: 100, Burst: 512}, 5120: {PerSecond: 1000, Burst: 5120}} {
		if got := newConnections(perAddress); got != want {
			t.Errorf("newConnections(%d) = %v, want %v", perAddress, got, want)
		}
	}
}

// TestLogFlood opens streams and requests certificates without credentials. Each must be rejected,
// and the log must stay short and contain the number of omitted lines.
func TestLogFlood(t *testing.T) {
	t.Parallel()
	var log logText
	s, err := New(t.Context(), testConfig(t), slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Logf("Run() = %v", err) // not the subject of this test
		}
	})
	waitUntil(t, "the first snapshot", s.discovery.Ready)
	client, err := grpc.NewClient(s.ports.listeners.secure.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	ads, ca := discoveryv3.NewAggregatedDiscoveryServiceClient(client), securityv1alpha1.NewIstioCertificateServiceClient(client)
	const each = 1000
	began := time.Now()
	for range each {
		stream, err := ads.StreamAggregatedResources(t.Context())
		if err == nil {
			_, err = stream.Recv()
		}
		if status.Code(err) != codes.Unauthenticated {
			t.Fatalf("a stream without credentials: got error %v, want UNAUTHENTICATED", err)
		}
		if _, err := ca.CreateCertificate(t.Context(), &securityv1alpha1.IstioCertificateRequest{}); status.Code(err) != codes.Unauthenticated {
			t.Fatalf("a certificate request without credentials: got error %v, want UNAUTHENTICATED", err)
		}
	}
	most := 2*(20+int(time.Since(began).Seconds())+1) + 100 // plus the lines of the start
	if n := log.lines(""); n > most {
		t.Errorf("%d lines in the log, want at most %d", n, most)
	}
	for end := time.Now().Add(2 * time.Minute); log.lines("log lines were suppressed") < 2; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("timeout waiting for the number of omitted lines in the log")
		}
	}
}

// logText is a log in memory.
type logText struct {
	mu sync.Mutex // guards the fields below
	b  bytes.Buffer
}

func (l *logText) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *logText) lines(with string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.b.String()) {
		if strings.Contains(line, with) {
			n++
		}
	}
	return n
}
