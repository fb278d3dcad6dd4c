// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"
)

const (
	typeCluster  = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	typeListener = "type.googleapis.com/envoy.config.listener.v3.Listener"
	typeEndpoint = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
	typeHealth   = "type.googleapis.com/istio.v1.HealthInformation"
)

// proxyClient is a stream that subscribes to clusters and listeners, and acknowledges, rejects or
// ignores the responses as configured.
type proxyClient struct {
	stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient

	mu     sync.Mutex // guards the fields below, and serializes sends
	silent bool       // leaves responses unanswered
	reason string     // rejects responses; "" acknowledges them
	held   []*discoveryv3.DiscoveryResponse
}

// ads opens a stream of shop/web on the plaintext port, and returns a function that closes it.
func (c *control) ads(t *testing.T, address string) (discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient, *corev3.Node, func()) {
	t.Helper()
	conn, err := grpc.NewClient(c.plaintext(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // the test has ended
	return adsOn(t.Context(), t, conn, address)
}

// adsOn opens a stream of shop/web on a connection, and returns a function that closes it.
func adsOn(ctx context.Context, t *testing.T, conn *grpc.ClientConn, address string) (discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient, *corev3.Node, func()) {
	t.Helper()
	metadata, err := structpb.NewStruct(map[string]any{"NAMESPACE": "shop", "SERVICE_ACCOUNT": "web", "INTERCEPTION_MODE": "NONE", "INSTANCE_IPS": address})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	return stream, &corev3.Node{Id: "sidecar~" + address + "~web.shop~shop.svc.cluster.local", Metadata: metadata}, cancel
}

// proxy connects a proxy that acknowledges everything.
func (c *control) proxy(t *testing.T, address string) *proxyClient {
	t.Helper()
	stream, node, _ := c.ads(t, address)
	return acknowledging(t, stream, node)
}

// provenProxy is like proxy, and proves with a token that it is shop/web.
func (c *control) provenProxy(t *testing.T, cluster *Cluster, address string) *proxyClient {
	t.Helper()
	if err := cluster.CreateServiceAccount(t.Context(), "shop", "web"); err != nil {
		t.Fatal(err)
	}
	ctx := withToken(t.Context(), istioToken(t, cluster, "shop", "web", nil), "Kubernetes")
	stream, node, _ := adsOn(ctx, t, c.dial(t, waitRoots(t, cluster, "shop")), address)
	return acknowledging(t, stream, node)
}

// acknowledging subscribes to clusters and listeners, and acknowledges everything.
func acknowledging(t *testing.T, stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient, node *corev3.Node) *proxyClient {
	t.Helper()
	p := &proxyClient{stream: stream}
	for _, typeURL := range []string{typeCluster, typeListener} {
		if err := p.stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: typeURL, Node: node}); err != nil {
			t.Fatal(err)
		}
	}
	go func() {
		for {
			r, err := p.stream.Recv()
			if err != nil {
				return // the test has ended, or the control plane has exited
			}
			p.mu.Lock()
			if p.silent {
				p.held = append(p.held, r)
			} else {
				p.answer(r)
			}
			p.mu.Unlock()
		}
	}()
	return p
}

// answer acknowledges or rejects a response. The caller holds mu.
func (p *proxyClient) answer(r *discoveryv3.DiscoveryResponse) {
	q := &discoveryv3.DiscoveryRequest{TypeUrl: r.GetTypeUrl(), VersionInfo: r.GetVersionInfo(), ResponseNonce: r.GetNonce()}
	if p.reason != "" {
		q.ErrorDetail = &rpcstatus.Status{Code: 13, Message: p.reason}
	}
	_ = p.stream.Send(q) // Recv returns the error
}

func (p *proxyClient) silence(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.silent = on; on {
		return
	}
	for _, r := range p.held {
		p.answer(r)
	}
	p.held = nil
}

// reject makes the client reject what it receives; with reason "", acknowledge it.
func (p *proxyClient) reject(reason string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reason = reason
}

func (p *proxyClient) report(t *testing.T, q *discoveryv3.DiscoveryRequest) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	q.TypeUrl = typeHealth
	if err := p.stream.Send(q); err != nil {
		t.Fatal(err)
	}
}

func (p *proxyClient) healthy(t *testing.T) {
	t.Helper()
	p.report(t, &discoveryv3.DiscoveryRequest{})
}

func (p *proxyClient) unhealthy(t *testing.T, why string) {
	t.Helper()
	p.report(t, &discoveryv3.DiscoveryRequest{ErrorDetail: &rpcstatus.Status{Code: 13, Message: why}})
}

// endpoints returns those of a cluster, received on a separate stream.
func (c *control) endpoints(t *testing.T, cluster string) string {
	t.Helper()
	stream, node, end := c.ads(t, "10.1.9.9")
	defer end()
	if err := stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: typeEndpoint, Node: node, ResourceNames: []string{cluster}}); err != nil {
		t.Fatal(err)
	}
	answer, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var addresses []string
	for _, res := range answer.GetResources() {
		var all endpointv3.ClusterLoadAssignment
		if err := res.UnmarshalTo(&all); err != nil {
			t.Fatal(err)
		}
		for _, group := range all.GetEndpoints() {
			for _, e := range group.GetLbEndpoints() {
				addresses = append(addresses, e.GetEndpoint().GetAddress().GetSocketAddress().GetAddress())
			}
		}
	}
	slices.Sort(addresses)
	return strings.Join(addresses, " ")
}

// body returns the response to GET on the HTTP port.
func (c *control) body(t *testing.T, path string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.host+":8080"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }() // the body was read completely
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// value returns the sum of the samples of a metric with the given prefix.
func (c *control) value(t *testing.T, line string) (sum float64) {
	t.Helper()
	for text := range strings.Lines(c.body(t, "/metrics")) {
		text = strings.TrimSuffix(text, "\n")
		if at := strings.LastIndexByte(text, ' '); strings.HasPrefix(text, line) && at > 0 {
			n, err := strconv.ParseFloat(text[at+1:], 64)
			if err != nil {
				t.Fatalf("the metric %q: %v", text, err)
			}
			sum += n
		}
	}
	return sum
}
