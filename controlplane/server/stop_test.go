// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"
)

const clusterType = "type.googleapis.com/envoy.config.cluster.v3.Cluster"

// plainServer runs a control plane with a plaintext port, and returns a function that stops it.
func plainServer(t *testing.T, set func(*Config)) (s *Server, stop func(), done chan error) {
	t.Helper()
	cfg := testConfig(t)
	cfg.Listen = ListenConfig{Plaintext: "127.77.53.20:0", HTTP: "127.77.53.20:0"}
	set(&cfg)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	s, err := New(ctx, cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	done = make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(cancel)
	for {
		if code, _ := ask(s, "/ready"); code == http.StatusOK {
			return s, cancel, done
		}
		time.Sleep(time.Millisecond) // loading an empty directory is fast
	}
}

// ask returns the response of the health port; the code is 0 if there is none.
func ask(s *Server, path string) (code int, body string) {
	resp, err := http.Get("http://" + s.ports.listeners.http.Addr().String() + path)
	if err != nil {
		return 0, ""
	}
	defer func() { _ = resp.Body.Close() }()
	b, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b)
}

// subscribe opens the stream of a proxy and receives its clusters.
func subscribe(t *testing.T, conn *grpc.ClientConn, number int) discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient {
	t.Helper()
	md, err := structpb.NewStruct(map[string]any{"NAMESPACE": "default", "INTERCEPTION_MODE": "NONE"})
	if err != nil {
		t.Fatal(err)
	}
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	node := &corev3.Node{Id: fmt.Sprintf("sidecar~127.77.53.21~p-%d.default~default.svc.cluster.local", number), Metadata: md}
	if err := stream.Send(&discoveryv3.DiscoveryRequest{Node: node, TypeUrl: clusterType}); err != nil {
		t.Fatal(err)
	}
	r, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: clusterType, ResponseNonce: r.GetNonce(), VersionInfo: r.GetVersionInfo()}); err != nil {
		t.Fatal(err)
	}
	return stream
}

func dial(t *testing.T, address string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// TestStopOrder stops a control plane with proxies. First /ready must fail while streams are still
// open, then the streams must end one after another, then the ports must close, all within the time
// limit.
func TestStopOrder(t *testing.T) {
	t.Parallel()
	const proxies, within = 60, 2 * time.Second
	s, stop, done := plainServer(t, func(c *Config) {
		c.Shutdown = within
	})
	conn := dial(t, s.ports.listeners.plaintext.Addr().String())
	ends := make(chan time.Time, proxies)
	for i := range proxies {
		stream := subscribe(t, conn, i)
		go func() {
			for err := error(nil); err == nil; {
				_, err = stream.Recv()
			}
			ends <- time.Now()
		}()
	}
	began := time.Now()
	stop()
	first := <-ends
	if code, body := ask(s, "/ready"); code != http.StatusServiceUnavailable || !strings.Contains(body, "shutting down") {
		t.Errorf("/ready while streams end: got %d %q, want 503", code, body)
	}
	last := first
	for range proxies - 1 {
		last = <-ends
	}
	if spread := last.Sub(first); spread < drainEach*proxies/2 {
		t.Errorf("%d streams ended within %s, want them spread", proxies, spread)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > within+time.Minute {
		t.Errorf("the stop took %s, want at most %s", took, within+time.Minute)
	}
	for _, l := range []net.Listener{s.ports.listeners.http, s.ports.listeners.plaintext} {
		if c, err := net.Dial("tcp", l.Addr().String()); err == nil {
			_ = c.Close()
			t.Errorf("%s still accepts connections after the stop", l.Addr())
		}
	}
}

// TestLinger stops a control plane that lingers. It must not be ready any more, but every port must
// accept new connections until the time is over. Responses must ask callers to close their
// connections.
func TestLinger(t *testing.T) {
	t.Parallel()
	const linger = 3 * time.Second
	s, stop, done := plainServer(t, func(c *Config) { c.Linger, c.Shutdown = linger, time.Second })
	conn := dial(t, s.ports.listeners.plaintext.Addr().String())
	subscribe(t, conn, 0)
	began := time.Now()
	stop()
	early := func(what string, got any) {
		t.Helper()
		if took := time.Since(began); took < linger {
			t.Errorf("%s: got %v after %s, want it to be served for %s", what, got, took, linger)
		}
	}
	for code := http.StatusOK; code == http.StatusOK; time.Sleep(time.Millisecond) {
		if code, _ = ask(s, "/ready"); code == 0 {
			early("/ready", "no answer")
		}
	}
	for open := true; open; time.Sleep(10 * time.Millisecond) {
		for _, l := range []net.Listener{s.ports.listeners.http, s.ports.listeners.plaintext} {
			c, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				early(l.Addr().String(), err)
				open = false
				continue
			}
			_ = c.Close()
		}
		resp, err := http.Get("http://" + s.ports.listeners.http.Addr().String() + "/ready")
		if err != nil {
			early("/ready", err)
			continue
		}
		_ = resp.Body.Close()
		if !resp.Close || resp.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("/ready: got %s, close: %t; want 503 and true", resp.Status, resp.Close)
		}
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestLingerIsCutShort stops a control plane that would linger for an hour, and then cuts that
// short.
func TestLingerIsCutShort(t *testing.T) {
	t.Parallel()
	hurry := make(chan struct{})
	s, stop, done := plainServer(t, func(c *Config) { c.Linger, c.Hurry, c.Shutdown = time.Hour, hurry, time.Second })
	stop()
	for code := http.StatusOK; code == http.StatusOK; time.Sleep(time.Millisecond) {
		code, _ = ask(s, "/ready")
	}
	select {
	case err := <-done:
		t.Fatalf("Run returned before the second signal: %v", err)
	default:
	}
	close(hurry)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestMovedConnection asks a proxy to move to another replica. It must also lose its connection if
// no other stream uses it, but not if it shares the connection.
func TestMovedConnection(t *testing.T) {
	t.Parallel()
	s, stop, done := plainServer(t, func(c *Config) {
		c.Replicas = []string{"127.77.53.20:1"}
	})
	address := s.ports.listeners.plaintext.Addr().String()
	alone, err := net.Dial("tcp", address) // gRPC does not show when a connection is closed
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("passthrough:///one", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return alone, nil }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	stream := subscribe(t, conn, 1)
	for s.discovery.Load() != 1 {
		time.Sleep(time.Millisecond) // its response is on the way
	}
	if code, body := ask(s, "/replicas/load"); code != http.StatusOK || !strings.Contains(body, `"proxies":1`) {
		t.Errorf("/replicas/load: got %d %s", code, body)
	}
	if !s.discovery.Shed() {
		t.Fatal("Shed() = false, want a proxy to be disconnected")
	}
	if _, err := stream.Recv(); err == nil {
		t.Error("the stream of the moved proxy is still open")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for state := conn.GetState(); state.String() == "READY"; state = conn.GetState() {
		if !conn.WaitForStateChange(ctx, state) {
			t.Fatal("the connection of the moved proxy is still open")
		}
	}

	both := dial(t, address)
	one, other := subscribe(t, both, 2), subscribe(t, both, 3)
	s.discovery.Shed()
	gone := make(chan error, 2)
	for _, st := range []discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient{one, other} {
		go func() { _, err := st.Recv(); gone <- err }()
	}
	if err := <-gone; err == nil {
		t.Error("the stream of the moved proxy received a response")
	}
	select {
	case err := <-gone:
		t.Errorf("the stream of another proxy on the connection ended: %v", err)
	case <-time.After(2 * movedGrace): // nothing should happen
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
