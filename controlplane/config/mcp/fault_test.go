// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mcp

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	extensionsv1alpha1 "istio.io/api/extensions/v1alpha1"
	mcpv1alpha1 "istio.io/api/mcp/v1alpha1"
	networkingv1beta1 "istio.io/api/networking/v1beta1"

	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// script is a server whose responses are sent by the test. It answers the first request for each
// type with an empty response.
type script struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	streams  chan discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer
	requests chan *discoveryv3.DiscoveryRequest
	end      chan error
}

func (s *script) StreamAggregatedResources(g discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	for range len(schema.All()) + 1 {
		q, err := g.Recv()
		if err != nil {
			return err
		}
		if q.GetResponseNonce() != "" || q.GetVersionInfo() != "" || len(q.GetResourceNames()) > 0 {
			return status.Errorf(codes.InvalidArgument, "unexpected fields in a first request: %v", q)
		}
		if q.GetNode().GetMetadata().GetFields()["GENERATOR"].GetStringValue() != "api" {
			return status.Error(codes.InvalidArgument, "no GENERATOR")
		}
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			q, err := g.Recv()
			if err != nil {
				return
			}
			s.requests <- q
		}
	}()
	s.streams <- g
	select {
	case err := <-s.end:
		return err
	case <-ended:
		return nil
	}
}

func newScript(t *testing.T) (s *script, address string) {
	t.Helper()
	s = &script{
		streams:  make(chan discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer, 10),
		requests: make(chan *discoveryv3.DiscoveryRequest, 1000), end: make(chan error, 1),
	}
	l, err := net.Listen("tcp", testHost+":0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(g, s)
	done := make(chan error, 1)
	go func() { done <- g.Serve(l) }()
	t.Cleanup(func() {
		g.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s, l.Addr().String()
}

// next returns the next stream.
func (s *script) next(t *testing.T) discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer {
	t.Helper()
	select {
	case g := <-s.streams:
		return g
	case <-time.After(2 * time.Minute):
		t.Fatal("timeout waiting for a stream")
		return nil
	}
}

// send sends a response and returns the ACK or NACK.
func (s *script) send(t *testing.T, g grpc.ServerStream, r *discoveryv3.DiscoveryResponse) *discoveryv3.DiscoveryRequest {
	t.Helper()
	if err := g.SendMsg(r); err != nil {
		t.Fatal(err)
	}
	select {
	case q := <-s.requests:
		if q.GetResponseNonce() != r.GetNonce() || q.GetTypeUrl() != r.GetTypeUrl() {
			t.Fatalf("the request after response %s is %v", r.GetNonce(), q)
		}
		return q
	case <-time.After(2 * time.Minute):
		t.Fatal("timeout waiting for the ACK or NACK of response " + r.GetNonce())
		return nil
	}
}

func wrap(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func full(nonce string, resources ...*anypb.Any) *discoveryv3.DiscoveryResponse {
	return &discoveryv3.DiscoveryResponse{TypeUrl: workloadType, VersionInfo: "v" + nonce, Nonce: nonce, Resources: resources}
}

// TestBadResources sends invalid resources of many forms. Each must be rejected with a sentence,
// and the valid ones of the same response must be in force.
func TestBadResources(t *testing.T) {
	t.Parallel()
	s, address := newScript(t)
	store := openStore(t, address, Config{}, nil)
	run(t, store)
	g := s.next(t)
	good := wrap(t, encoded(t, workload("good", "10.0.0.1")))
	renamed := func(name string) *anypb.Any {
		m := encoded(t, workload("x", "10.0.0.2"))
		m.Metadata.Name = name
		return wrap(t, m)
	}
	with := func(body *anypb.Any) *anypb.Any {
		m := encoded(t, workload("x", "10.0.0.2"))
		m.Body = body
		return wrap(t, m)
	}
	for i, tc := range []struct {
		bad  *anypb.Any
		says string
	}{
		{&anypb.Any{TypeUrl: resourceType, Value: []byte{0xff, 0x01, 0xff}}, "resource 1: it cannot be read"},
		{nil, `resource 1: it is a ""`},
		{&anypb.Any{TypeUrl: "type.googleapis.com/istio.mesh.v1alpha1.MeshConfig"}, "it must be a istio.mcp.v1alpha1.Resource"},
		{wrap(t, &mcpv1alpha1.Resource{}), `resource 1: metadata.name is ""`},
		{renamed("a/b/c"), `metadata.name is "a/b/c": it must be namespace/name`},
		{renamed("name"), `metadata.name is "name"`},
		{renamed("shop/"), `metadata.name is "shop/"`},
		{renamed("/x"), "metadata.namespace is"},
		{renamed("shop/UPPER"), "metadata.name is"},
		{renamed("shop/good"), `"shop/good": it is a duplicate`},
		{renamed(strings.Repeat("x", 5000)), `xxx"...: it must`},
		{with(nil), `"shop/x": body is missing`},
		{with(wrap(t, &structpb.Struct{})), `body is a "type.googleapis.com/google.protobuf.Struct": it must be a istio.networking.v1alpha3.WorkloadEntry`},
		{with(wrap(t, &extensionsv1alpha1.WasmPlugin{})), "it must be a istio.networking.v1alpha3.WorkloadEntry"},
		{with(&anypb.Any{TypeUrl: "type.googleapis.com/istio.networking.v1alpha3.WorkloadEntry", Value: []byte("\x0a\x01\xff")}), "body cannot be read"},
		{with(wrap(t, &networkingv1beta1.WorkloadEntry{Address: "10.0.0.1", Weight: 1, Ports: map[string]uint32{"http": 70000}})), "spec.ports"},
	} {
		nonce := fmt.Sprint(i)
		q := s.send(t, g, full(nonce, good, tc.bad))
		detail := q.GetErrorDetail()
		if detail.GetCode() != int32(codes.InvalidArgument) || !strings.Contains(detail.GetMessage(), tc.says) || strings.Contains(detail.GetMessage(), "\u00a0") {
			t.Errorf("%d: the NACK is %v, want one with %s", i, detail, tc.says)
		}
		if len(detail.GetMessage()) > 1000 {
			t.Errorf("%d: the NACK has %d bytes, want at most 1000", i, len(detail.GetMessage()))
		}
		if q.GetVersionInfo() != "" {
			t.Errorf("%d: the version is %q, want none", i, q.GetVersionInfo())
		}
		if address := addressOf(store, "good"); address != "10.0.0.1" {
			t.Errorf("%d: address of the valid object: got %q, want 10.0.0.1", i, address)
		}
	}
	// A valid response clears all problems. Versions of Istio's messages with the same encoding are
	// accepted.
	older := encoded(t, workload("good", "10.0.0.5"))
	older.Body.TypeUrl = "type.googleapis.com/istio.networking.v1beta1.WorkloadEntry"
	q := s.send(t, g, full("last", wrap(t, older)))
	if q.GetErrorDetail() != nil || q.GetVersionInfo() != "vlast" || len(store.Problems()) > 0 || addressOf(store, "good") != "10.0.0.5" {
		t.Errorf("the request is %v with problems %v, want an ACK and none", q, store.Problems())
	}
}

func addressOf(s *Store, name string) string { return address(s.Get(entryKey(name))) }

// TestGarbageRemovesNothing checks that a resource that cannot be decoded keeps all objects in
// force, because it could be the new version of any of them.
func TestGarbageRemovesNothing(t *testing.T) {
	t.Parallel()
	s, address := newScript(t)
	store := openStore(t, address, Config{}, nil)
	run(t, store)
	g := s.next(t)
	a, b := wrap(t, encoded(t, workload("a", "10.0.0.1"))), wrap(t, encoded(t, workload("b", "10.0.0.2")))
	s.send(t, g, full("1", a, b))
	s.send(t, g, full("2", a, &anypb.Any{TypeUrl: resourceType, Value: []byte{0xff}}))
	if addressOf(store, "b") != "10.0.0.2" || len(store.Problems()) != 1 {
		t.Errorf("after garbage: b is %q, the problems are %v", addressOf(store, "b"), store.Problems())
	}
	s.send(t, g, full("3", a))
	if addressOf(store, "b") != "" || len(store.Problems()) != 0 {
		t.Errorf("after a valid response: b is %q, the problems are %v", addressOf(store, "b"), store.Problems())
	}
}

// TestManyFaults checks that a NACK with many faults has a bounded size.
func TestManyFaults(t *testing.T) {
	t.Parallel()
	s, address := newScript(t)
	store := openStore(t, address, Config{}, nil)
	run(t, store)
	g := s.next(t)
	var bad []*anypb.Any
	for i := range 5000 {
		bad = append(bad, wrap(t, encoded(t, workload(fmt.Sprintf("w%d", i), strings.Repeat("x", 1000)))))
	}
	text := s.send(t, g, full("1", bad...)).GetErrorDetail().GetMessage()
	if len(text) > 10_000 || !strings.HasSuffix(text, "and 4980 more") {
		t.Errorf("the NACK has %d bytes: %s", len(text), text)
	}
	if n := len(store.Problems()); n != 5000 {
		t.Errorf("%d problems, want 5000", n)
	}
}

// TestRepeatedRejectionIsDelayed checks that repeated content is rejected with increasing delays,
// and different content immediately.
func TestRepeatedRejectionIsDelayed(t *testing.T) {
	t.Parallel()
	s, address := newScript(t)
	store := openStore(t, address, Config{}, nil)
	run(t, store)
	g := s.next(t)
	bad := wrap(t, encoded(t, workload("a", "")))
	s.send(t, g, full("1", bad))
	start := time.Now()
	s.send(t, g, full("2", bad))
	if took := time.Since(start); took < firstRejectWait-50*time.Millisecond {
		t.Errorf("the second NACK was sent after %s, want at least %s", took, firstRejectWait)
	}
	// On a busy machine a response may be late, but not each of them.
	fastest := time.Hour
	for i := range 5 {
		start = time.Now()
		s.send(t, g, full(fmt.Sprint(3+i), wrap(t, encoded(t, workload(fmt.Sprint("b-", i), "")))))
		fastest = min(fastest, time.Since(start))
	}
	if fastest > firstRejectWait/2 {
		t.Errorf("responses to different content were sent after at least %s, want no delay", fastest)
	}
}

// TestUnrequestedResponses checks that responses of unrequested types and repeated nonces have no
// effect.
func TestUnrequestedResponses(t *testing.T) {
	t.Parallel()
	s, address := newScript(t)
	store := openStore(t, address, Config{}, nil)
	run(t, store)
	g := s.next(t)
	for _, typeURL := range []string{"", "x", "type.googleapis.com/envoy.config.cluster.v3.Cluster", strings.Repeat("y", 10000)} {
		if err := g.SendMsg(&discoveryv3.DiscoveryResponse{TypeUrl: typeURL, Nonce: "n", VersionInfo: "1"}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 3 {
		s.send(t, g, full("same", wrap(t, encoded(t, workload("a", fmt.Sprintf("10.0.0.%d", i))))))
		if got := addressOf(store, "a"); got != fmt.Sprintf("10.0.0.%d", i) {
			t.Errorf("response %d: got address %s", i, got)
		}
	}
}

// TestServerEndsStream checks that a store whose stream ends requests everything again and reports
// the reason. If the reason is too many pings, it sends fewer.
func TestServerEndsStream(t *testing.T) {
	t.Parallel()
	s, address := newScript(t)
	store := openStore(t, address, Config{}, nil)
	told := make(chan error, 100)
	store.SetWatchErrorHandler(func(err error) { told <- err })
	finish := run(t, store)
	for i, end := range []error{nil, status.Error(codes.ResourceExhausted, "come again"), status.Error(codes.Unavailable, "too_many_pings")} {
		g := s.next(t)
		s.send(t, g, full(fmt.Sprint(i), wrap(t, encoded(t, workload(fmt.Sprintf("w%d", i), "10.0.0.1")))))
		s.end <- end
		says := "the server ended the stream"
		if end != nil {
			says = status.Convert(end).Message()
		}
		if err := <-told; !strings.Contains(err.Error(), says) {
			t.Errorf("reported %v, want %s", err, says)
		}
		if addressOf(store, fmt.Sprintf("w%d", i)) == "" {
			t.Error("an object was removed at the end of the stream")
		}
	}
	s.next(t)
	finish()
	if store.lasting != 2*keepAlive {
		t.Errorf("keepalive: got %s, want twice the default", store.lasting)
	}
}

// TestLargeResponse checks that a full state of 30 MB is accepted.
func TestLargeResponse(t *testing.T) {
	t.Parallel()
	s, address := newScript(t)
	store := openStore(t, address, Config{}, nil)
	run(t, store)
	g := s.next(t)
	const plugins = 30
	r := &discoveryv3.DiscoveryResponse{TypeUrl: "extensions.istio.io/v1alpha1/WasmPlugin", VersionInfo: "1", Nonce: "1"}
	for i := range plugins {
		r.Resources = append(r.Resources, wrap(t, encoded(t, &model.Config{
			Key: model.Key{Kind: model.WasmPlugin, Namespace: "shop", Name: fmt.Sprintf("p%d", i)},
			Spec: &extensionsv1alpha1.WasmPlugin{
				Url:          "oci://registry.example/filter:1",
				PluginConfig: &structpb.Struct{Fields: map[string]*structpb.Value{"rules": structpb.NewStringValue(strings.Repeat("x", 1<<20))}},
			},
		})))
	}
	if size := proto.Size(r); size < 30e6 {
		t.Fatalf("the response has %d bytes", size)
	}
	start := time.Now()
	if q := s.send(t, g, r); q.GetErrorDetail() != nil || len(store.List(model.WasmPlugin, "")) != plugins {
		t.Errorf("error detail %v, %d objects; want an ACK and all objects", q.GetErrorDetail(), len(store.List(model.WasmPlugin, "")))
	}
	t.Logf("a response of %d MB was sent, applied and answered in %s", proto.Size(r)>>20, time.Since(start))
}

// TestSilentServer checks that a store stops waiting for a server that accepts connections and
// never responds, and that it always reacts to the end of its context.
func TestSilentServer(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", testHost+":0")
	if err != nil {
		t.Fatal(err)
	}
	taken := make(chan net.Conn, 10)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			taken <- c
		}
	}()
	t.Cleanup(func() { _ = l.Close() }) // the test has ended
	store := openStore(t, l.Addr().String(), Config{}, nil)
	end := run(t, store)
	c := <-taken
	start := time.Now()
	end()
	if took := time.Since(start); took > time.Minute {
		t.Errorf("Run returned after %s, want at most a minute", took)
	}
	_ = c.Close() // the test has ended
}
