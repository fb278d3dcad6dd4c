// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xdsproxy

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/outrigger-mesh/outrigger/e2e/ownnet"
)

func TestMain(m *testing.M) {
	if socket := os.Getenv(socketVariable); socket != "" {
		runAsEnvoy(socket)
		return
	}
	goleak.VerifyTestMain(ownnet.Tests(m))
}

const clusterType = "type.googleapis.com/envoy.config.cluster.v3.Cluster"

// controlPlane is a control plane based on the generated gRPC code. Each stream passes its requests
// to got and sends the messages from answers. If respond is set, each stream sends its own responses
// instead, because a response for one stream must not reach the next one.
type controlPlane struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	got     chan proto.Message
	answers chan proto.Message
	respond func(request proto.Message) proto.Message // nil means no response; set before start
	headers chan metadata.MD
	fail    chan error // ends a stream
	streams atomic.Int32
}

func newControlPlane() *controlPlane {
	return &controlPlane{
		got: make(chan proto.Message, 10), answers: make(chan proto.Message, 10),
		headers: make(chan metadata.MD, 10), fail: make(chan error),
	}
}

func (c *controlPlane) StreamAggregatedResources(s discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	return c.serve(s, func() (proto.Message, error) { return s.Recv() })
}

func (c *controlPlane) DeltaAggregatedResources(s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	return c.serve(s, func() (proto.Message, error) { return s.Recv() })
}

func (c *controlPlane) serve(s grpc.ServerStream, recv func() (proto.Message, error)) error {
	md, _ := metadata.FromIncomingContext(s.Context())
	c.headers <- md
	c.streams.Add(1)
	defer c.streams.Add(-1)
	ended, responses := make(chan error, 1), make(chan proto.Message)
	go func() {
		for {
			m, err := recv()
			if err != nil {
				ended <- err
				return
			}
			if c.respond == nil {
				c.got <- m
			} else if m = c.respond(m); m != nil {
				select {
				case responses <- m:
				case <-s.Context().Done():
				}
			}
		}
	}()
	for {
		select {
		case <-s.Context().Done():
			return nil
		case err := <-ended:
			return err
		case err := <-c.fail:
			return err
		case m := <-c.answers:
			if err := s.SendMsg(m); err != nil {
				return err
			}
		case m := <-responses:
			if err := s.SendMsg(m); err != nil {
				return err
			}
		}
	}
}

// start serves the control plane on a listener until the test ends.
func (c *controlPlane) start(t *testing.T, l net.Listener) *grpc.Server {
	t.Helper()
	g := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(g, c)
	go func() { _ = g.Serve(l) }()
	t.Cleanup(g.Stop)
	return g
}

func listen(t *testing.T, address string) net.Listener {
	t.Helper()
	l, err := ownnet.Listen(address)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// startProxy runs a relay and returns a client of its socket.
func startProxy(t *testing.T, cfg Config) discoveryv3.AggregatedDiscoveryServiceClient {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "XDS")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Listener = l
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	return discoveryv3.NewAggregatedDiscoveryServiceClient(conn)
}

func receive[T any](t *testing.T, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(2 * time.Minute):
		t.Fatalf("no %s within 2 minutes", what)
		panic("unreachable")
	}
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for !is() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 2 minutes: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

func same(t *testing.T, got, want proto.Message) {
	t.Helper()
	if !proto.Equal(got, want) { // cmp.Diff takes a minute over 9 MB
		t.Errorf("the relay changed the message: got a %T of %d bytes, want %d bytes", got, proto.Size(got), proto.Size(want))
	}
}

func TestRelaySotW(t *testing.T) {
	t.Parallel()
	cp := newControlPlane()
	l := listen(t, "127.0.0.1:0")
	cp.start(t, l)
	client := startProxy(t, Config{Upstream: UpstreamConfig{
		Address: l.Addr().String(), ClusterID: "Kubernetes", Headers: map[string]string{"x-team": "shop"},
		Token: func() (string, error) { return "secret", nil },
	}})
	s, err := client.StreamAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	req := &discoveryv3.DiscoveryRequest{TypeUrl: clusterType, Node: &corev3.Node{Id: "sidecar~1.2.3.4~a.b~c"}}
	if err := s.Send(req); err != nil {
		t.Fatal(err)
	}
	same(t, receive(t, cp.got, "request"), req)
	md := receive(t, cp.headers, "metadata")
	if got := md.Get("clusterid"); len(got) != 1 || got[0] != "Kubernetes" {
		t.Errorf("clusterid %q", got)
	}
	if got := md.Get("x-team"); len(got) != 1 || got[0] != "shop" {
		t.Errorf("x-team %q", got)
	}
	if got := md.Get("authorization"); got != nil {
		t.Error("the token was sent over plaintext")
	}
	// A large response passes, because gRPC's default limit of 4 MiB does not apply.
	big := &discoveryv3.DiscoveryResponse{TypeUrl: clusterType, Nonce: "1", VersionInfo: "v", Resources: []*anypb.Any{{TypeUrl: clusterType, Value: make([]byte, 9<<20)}}}
	cp.answers <- big
	got, err := s.Recv()
	if err != nil {
		t.Fatal(err)
	}
	same(t, got, big)
}

func TestRelayDeltaAndRejection(t *testing.T) {
	t.Parallel()
	cp := newControlPlane()
	l := listen(t, "127.0.0.1:0")
	cp.start(t, l)
	reg := prometheus.NewRegistry()
	var out lockedBuffer
	client := startProxy(t, Config{
		Upstream: UpstreamConfig{Address: l.Addr().String()}, Registerer: reg,
		Logger: slog.New(slog.NewTextHandler(&out, nil)),
	})
	s, err := client.DeltaAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	req := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResponseNonce: "1", ErrorDetail: &status.Status{Code: 13, Message: "no such thing"}}
	if err := s.Send(req); err != nil {
		t.Fatal(err)
	}
	same(t, receive(t, cp.got, "request"), req)
	answer := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: clusterType, Nonce: "2", RemovedResources: []string{"gone"}}
	cp.answers <- answer
	got, err := s.Recv()
	if err != nil {
		t.Fatal(err)
	}
	same(t, got, answer)
	if !strings.Contains(out.String(), "no such thing") {
		t.Errorf("envoy's reason is not in the log:\n%s", out.String())
	}
	if n := counter(t, reg, "outrigger_agent_xds_rejected_total"); n != 1 {
		t.Errorf("%v rejections counted, want 1", n)
	}
}

// TestWaitsForControlPlane checks that Envoy's stream stays open while the control plane is down,
// and is served once it is up.
func TestWaitsForControlPlane(t *testing.T) {
	t.Parallel()
	l := listen(t, "127.0.0.1:0")
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	client := startProxy(t, Config{Upstream: UpstreamConfig{Address: address}, Registerer: reg})
	s, err := client.StreamAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	req := &discoveryv3.DiscoveryRequest{TypeUrl: clusterType}
	if err := s.Send(req); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a failed connection is counted", func() bool {
		return counter(t, reg, "istio_agent_istiod_connection_failures") > 0
	})
	cp := newControlPlane()
	cp.start(t, listen(t, address))
	same(t, receive(t, cp.got, "request after the control plane came"), req)
}

// TestUpstreamEnds checks that an error of the upstream stream ends Envoy's stream with the same
// reason.
func TestUpstreamEnds(t *testing.T) {
	t.Parallel()
	cp := newControlPlane()
	l := listen(t, "127.0.0.1:0")
	cp.start(t, l)
	client := startProxy(t, Config{Upstream: UpstreamConfig{Address: l.Addr().String()}})
	s, err := client.StreamAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(&discoveryv3.DiscoveryRequest{TypeUrl: clusterType}); err != nil {
		t.Fatal(err)
	}
	receive(t, cp.got, "request")
	cp.fail <- grpcstatus.Error(codes.PermissionDenied, "who are you")
	_, err = s.Recv()
	if grpcstatus.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "who are you") {
		t.Errorf("envoy's stream ended with %v, want Unavailable with the reason", err)
	}
}

// TestNewestStreamWins checks that a newer downstream stream ends the older one.
func TestNewestStreamWins(t *testing.T) {
	t.Parallel()
	cp := newControlPlane()
	l := listen(t, "127.0.0.1:0")
	cp.start(t, l)
	client := startProxy(t, Config{Upstream: UpstreamConfig{Address: l.Addr().String()}})
	open := func() discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient {
		s, err := client.StreamAggregatedResources(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Send(&discoveryv3.DiscoveryRequest{TypeUrl: clusterType}); err != nil {
			t.Fatal(err)
		}
		receive(t, cp.got, "request")
		return s
	}
	old := open()
	newer := open()
	if _, err := old.Recv(); grpcstatus.Code(err) != codes.Aborted {
		t.Errorf("the older stream ended with %v, want Aborted", err)
	}
	eventually(t, "the control plane has lost the older stream", func() bool { return cp.streams.Load() == 1 })
	cp.answers <- &discoveryv3.DiscoveryResponse{TypeUrl: clusterType}
	if _, err := newer.Recv(); err != nil {
		t.Errorf("the newer stream: %v", err)
	}
}

func TestNewRefusesBadAddress(t *testing.T) {
	t.Parallel()
	l := listen(t, "127.0.0.1:0")
	defer func() { _ = l.Close() }()
	if _, err := New(Config{Listener: l, Upstream: UpstreamConfig{Address: "istiod"}}); err == nil || !strings.Contains(err.Error(), `"istiod"`) {
		t.Errorf("got %v, want an error that names the address", err)
	}
}

// counter sums a metric over its labels.
func counter(t *testing.T, reg *prometheus.Registry, name string) (sum float64) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// lockedBuffer is an in-memory log that is safe for concurrent use.
type lockedBuffer struct {
	mu sync.Mutex // guards b
	b  strings.Builder
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
