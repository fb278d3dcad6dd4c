// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package otel

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/DataDog/datadog-agent/pkg/proto/pbgo/trace"
	"google.golang.org/grpc"
	agentv3 "skywalking.apache.org/repo/goapi/collect/language/agent/v3"

	"github.com/outrigger-mesh/outrigger/e2e/ownnet"
)

// received are the items that a receiver has received.
type received[T any] struct {
	mu   sync.Mutex // guards list
	list []T
}

func (r *received[T]) add(items ...T) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, items...)
}

func (r *received[T]) all() []T {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.list)
}

// tracedBy runs a mesh whose workloads send spans to a provider at a port of 127.0.0.1, and sends
// requests from a client.
func tracedBy(t *testing.T, network, provider, protocol, port string) {
	t.Helper()
	const entry = `---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: receiver, namespace: observe}
spec:
  hosts: [receiver.observe.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: spans, protocol: %s}]
  endpoints: [{address: 127.0.0.1, ports: {spans: %s}}]
`
	all := "tracing: [{providers: [{name: own}], randomSamplingPercentage: 100}]"
	m := meshOf(t, mesh{network, []string{"client"}}, newCollector(t),
		"extensionProviders: [{name: own, "+provider+": {service: receiver.observe.svc.cluster.local, port: 80}}]",
		fmt.Sprintf(entry, protocol, port)+telemetryOf("client", all)+telemetryOf("catalog", all))
	for i := range eachRequests {
		if code := m.get(t, "client", fmt.Sprintf("/?%d", i)); code != http.StatusOK {
			t.Errorf("request %d: %d, want 200", i, code)
		}
	}
}

// TestEnvoyDatadog has Envoys send spans to an agent of Datadog: its decoder reads them.
func TestEnvoyDatadog(t *testing.T) {
	t.Parallel()
	var got received[*trace.Span]
	agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v0.4/traces" { // telemetry, remote configuration
			http.NotFound(w, r)
			return
		}
		var traces trace.Traces
		body, err := io.ReadAll(r.Body)
		if err == nil {
			_, err = traces.UnmarshalMsg(body)
		}
		if err != nil {
			t.Errorf("spans that the agent cannot read: %v", err)
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		for _, spans := range traces {
			got.add(spans...)
		}
		_, _ = io.WriteString(w, `{"rate_by_service": {}}`) // the client may have gone
	}))
	defer agent.Close()
	tracedBy(t, "127.77.98", "datadog", "HTTP", agent.URL[strings.LastIndexByte(agent.URL, ':')+1:])
	for i := range eachRequests {
		by := func(service string) *trace.Span {
			return await(t, 1, got.all, func(s *trace.Span) bool {
				return s.GetService() == service && strings.HasSuffix(s.GetMeta()["http.url"], fmt.Sprintf("/?%d", i))
			})[0]
		}
		sent, received := by("client.default"), by("catalog.default")
		if sent.GetTraceID() == 0 || sent.GetParentID() != 0 || received.GetTraceID() != sent.GetTraceID() || received.GetParentID() != sent.GetSpanID() {
			t.Errorf("the catalog does not continue the trace:\n%v\n%v", sent, received)
		}
		for _, s := range []*trace.Span{sent, received} {
			if s.GetName() == "" || s.GetResource() == "" || s.GetStart() <= 0 || s.GetDuration() <= 0 || s.GetError() != 0 || s.GetMeta()["http.status_code"] != "200" {
				t.Errorf("a span lacks something: %v", s)
			}
		}
	}
	if n := len(got.all()); n != 2*eachRequests {
		t.Errorf("%d spans, want %d: %v", n, 2*eachRequests, got.all())
	}
}

// skyWalking is a receiver of SkyWalking's protocol.
type skyWalking struct {
	agentv3.UnimplementedTraceSegmentReportServiceServer
	received[*agentv3.SegmentObject]
}

// Collect receives segments until the sender ends the stream.
func (s *skyWalking) Collect(stream agentv3.TraceSegmentReportService_CollectServer) error {
	for {
		segment, err := stream.Recv()
		if err != nil {
			return err
		}
		s.add(segment)
	}
}

// TestEnvoySkyWalking has Envoys send segments to a server of SkyWalking's protocol.
func TestEnvoySkyWalking(t *testing.T) {
	t.Parallel()
	l, err := ownnet.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var got skyWalking
	server := grpc.NewServer()
	agentv3.RegisterTraceSegmentReportServiceServer(server, &got)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	defer func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	address := l.Addr().String()
	tracedBy(t, "127.77.99", "skywalking", "GRPC", address[strings.LastIndexByte(address, ':')+1:])
	for i := range eachRequests {
		by := func(service string) *agentv3.SegmentObject {
			return await(t, 1, got.all, func(s *agentv3.SegmentObject) bool {
				return s.GetService() == service && slices.ContainsFunc(s.GetSpans(), func(s *agentv3.SpanObject) bool {
					return strings.HasSuffix(tagOf(s, "url"), fmt.Sprintf("/?%d", i))
				})
			})[0]
		}
		sent, received := by("client.default"), by("catalog.default")
		for _, s := range []*agentv3.SegmentObject{sent, received} {
			wellFormed(t, s)
		}
		refs := received.GetSpans()[0].GetRefs()
		if len(sent.GetSpans()[0].GetRefs()) != 0 || received.GetTraceId() != sent.GetTraceId() || len(refs) != 1 || refs[0].GetTraceId() != sent.GetTraceId() ||
			refs[0].GetParentTraceSegmentId() != sent.GetTraceSegmentId() || refs[0].GetParentService() != "client.default" || refs[0].GetParentServiceInstance() != sent.GetServiceInstance() {
			t.Errorf("the catalog does not continue the trace:\n%v\n%v", sent, received)
		}
	}
	if n := len(got.all()); n != 2*eachRequests {
		t.Errorf("%d segments, want %d: %v", n, 2*eachRequests, got.all())
	}
}

func tagOf(s *agentv3.SpanObject, key string) string {
	for _, tag := range s.GetTags() {
		if tag.GetKey() == key {
			return tag.GetValue()
		}
	}
	return ""
}

// wellFormed checks that a segment has the span of a request, and that of what the proxy sent for it.
func wellFormed(t *testing.T, s *agentv3.SegmentObject) {
	t.Helper()
	spans := s.GetSpans()
	if len(spans) != 2 || s.GetTraceId() == "" || s.GetTraceSegmentId() == "" || s.GetServiceInstance() == "" {
		t.Fatalf("a segment lacks something: %v", s)
	}
	if spans[0].GetSpanType() != agentv3.SpanType_Entry || spans[0].GetParentSpanId() != -1 ||
		spans[1].GetSpanType() != agentv3.SpanType_Exit || spans[1].GetParentSpanId() != spans[0].GetSpanId() || spans[1].GetPeer() == "" {
		t.Errorf("not an entry and its exit: %v", s)
	}
	for _, span := range spans {
		if span.GetStartTime() <= 0 || span.GetEndTime() < span.GetStartTime() || span.GetOperationName() == "" || span.GetIsError() || tagOf(span, "status_code") != "200" {
			t.Errorf("a span lacks something: %v", span)
		}
	}
}
