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

// script is a server that answers as a test says. Each type is answered with
// nothing when it is asked for.
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
			return status.Errorf(codes.InvalidArgument, "a subscription has %v", q)
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
		t.Fatal("no stream came")
		return nil
	}
}

// send sends objects and returns the answer.
func (s *script) send(t *testing.T, g grpc.ServerStream, r *discoveryv3.DiscoveryResponse) *discoveryv3.DiscoveryRequest {
	t.Helper()
	if err := g.SendMsg(r); err != nil {
		t.Fatal(err)
	}
	select {
	case q := <-s.requests:
		if q.GetResponseNonce() != r.GetNonce() || q.GetTypeUrl() != r.GetTypeUrl() {
			t.Fatalf("the answer to %s is %v", r.GetNonce(), q)
		}
		return q
	case <-time.After(2 * time.Minute):
		t.Fatal("no answer came to " + r.GetNonce())
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

// Bad resources of many shapes: each is rejected with a sentence, and what is
// good beside it is in force.
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
			t.Errorf("%d: the answer is %v, want one with %s", i, detail, tc.says)
		}
		if len(detail.GetMessage()) > 1000 {
			t.Errorf("%d: the answer has %d bytes", i, len(detail.GetMessage()))
		}
		if q.GetVersionInfo() != "" {
			t.Errorf("%d: the version is %q", i, q.GetVersionInfo())
		}
		if address := addressOf(store, "good"); address != "10.0.0.1" {
			t.Errorf("%d: the good one is %q", i, address)
		}
	}
	// Nothing is left of it when all is good, and versions of Istio's messages
	// that are the same on the wire are taken.
	older := encoded(t, workload("good", "10.0.0.5"))
	older.Body.TypeUrl = "type.googleapis.com/istio.networking.v1beta1.WorkloadEntry"
	q := s.send(t, g, full("last", wrap(t, older)))
	if q.GetErrorDetail() != nil || q.GetVersionInfo() != "vlast" || len(store.Problems()) > 0 || addressOf(store, "good") != "10.0.0.5" {
		t.Errorf("the answer is %v, the problems %v", q, store.Problems())
	}
}

func addressOf(s *Store, name string) string { return address(s.Get(entryKey(name))) }

// What cannot be read at all may be the new version of any object: none counts
// as gone.
func TestGarbageTakesNothing(t *testing.T) {
	t.Parallel()
	s, address := newScript(t)
	store := openStore(t, address, Config{}, nil)
	run(t, store)
	g := s.next(t)
	a, b := wrap(t, encoded(t, workload("a", "10.0.0.1"))), wrap(t, encoded(t, workload("b", "10.0.0.2")))
	s.send(t, g, full("1", a, b))
	s.send(t, g, full("2", a, &anypb.Any{TypeUrl: resourceType, Value: []byte{0xff}}))
	if addressOf(store, "b") != "10.0.0.2" || len(store.Problems()) != 1 {
		t.Errorf("b is %q, the problems are %v", addressOf(store, "b"), store.Problems())
	}
	s.send(t, g, full("3", a))
	if addressOf(store, "b") != "" || len(store.Problems()) != 0 {
		t.Errorf("b is %q, the problems are %v", addressOf(store, "b"), store.Problems())
	}
}

// Many faults make one answer of bounded size.
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
		t.Errorf("the answer has %d bytes: %s", len(text), text)
	}
	if n := len(store.Problems()); n != 5000 {
		t.Errorf("there are %d problems", n)
	}
}

// The same rejected content again is answered later and later; other content
// at once.
func TestRejectionWaits(t *testing.T) {
	t.Parallel()
	s, address := newScript(t)
	store := openStore(t, address, Config{}, nil)
	run(t, store)
	g := s.next(t)
	bad, worse := wrap(t, encoded(t, workload("a", ""))), wrap(t, encoded(t, workload("b", "")))
	s.send(t, g, full("1", bad))
	start := time.Now()
	s.send(t, g, full("2", bad))
	if took := time.Since(start); took < firstRejectWait-50*time.Millisecond {
		t.Errorf("the second answer came after %s", took)
	}
	start = time.Now()
	s.send(t, g, full("3", worse))
	if took := time.Since(start); took > firstRejectWait/2 {
		t.Errorf("the answer to something else came after %s", took)
	}
}

// Responses of types that nobody asked for, and nonces that repeat, do no
// harm.
func TestStrangeResponses(t *testing.T) {
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
			t.Errorf("response %d: the address is %s", i, got)
		}
	}
}

// A server that ends the stream in the midst is asked again for everything;
// the reason is reported. If it is that the connection is probed too often, that is
// done less often.
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
			t.Errorf("told of %v, want %s", err, says)
		}
		if addressOf(store, fmt.Sprintf("w%d", i)) == "" {
			t.Error("the end of the stream took an object")
		}
	}
	s.next(t)
	finish()
	if store.lasting != 2*keepAlive {
		t.Errorf("it probes a silent connection after %s", store.lasting)
	}
}

// A full state of 30 MB arrives.
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
		t.Errorf("the answer is %v; %d objects are there", q.GetErrorDetail(), len(store.List(model.WasmPlugin, "")))
	}
	t.Logf("a response of %d MB was sent, applied and answered in %s", proto.Size(r)>>20, time.Since(start))
}

// A server that takes connections and never says anything is not waited for
// forever; the end of the context is noticed at any time.
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
		t.Errorf("Run ended after %s", took)
	}
	_ = c.Close() // the test has ended
}
