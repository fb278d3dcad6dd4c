// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/structpb"
)

const (
	typeListener = "type.googleapis.com/envoy.config.listener.v3.Listener"
	typeEndpoint = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
	typeHealth   = "type.googleapis.com/istio.v1.HealthInformation"
)

const shopService = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: shop}
spec:
  hosts: [web.shop.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  workloadSelector: {labels: {app: web}}
`

func machineFile(name string) []byte {
	return fmt.Appendf(nil, `apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: web-%s, namespace: shop}
spec: {address: 127.77.63.%[1]s, serviceAccount: web, labels: {app: web}}
`, name)
}

// adsStream is an ADS stream of the service account shop/web, over TLS.
type adsStream struct {
	discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient
	answers chan string
}

func (i *issuer) stream(t *testing.T, s *Server, address string) *adsStream {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(s.identity.authority.RootPEM())
	conn, err := grpc.NewClient(s.ports.listeners.secure.Addr().String(), grpc.WithTransportCredentials(credentials.NewClientTLSFromCert(pool, "")))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // nothing is left to read
	md, err := structpb.NewStruct(map[string]any{"NAMESPACE": "shop", "INTERCEPTION_MODE": "NONE", "INSTANCE_IPS": address})
	if err != nil {
		t.Fatal(err)
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+i.token(t, "istio-ca"))
	ads, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	a := &adsStream{ads, make(chan string, 100)}
	a.send(t, &discoveryv3.DiscoveryRequest{
		TypeUrl: typeListener, Node: &corev3.Node{Id: "sidecar~" + address + "~web.shop~shop.svc.cluster.local", Metadata: md},
	})
	go func() {
		defer close(a.answers)
		for {
			answer, err := a.Recv()
			if err != nil {
				return
			}
			if answer.GetTypeUrl() != typeEndpoint {
				continue
			}
			for _, res := range answer.GetResources() {
				var cla endpointv3.ClusterLoadAssignment
				if err := res.UnmarshalTo(&cla); err != nil {
					a.answers <- err.Error()
					return
				}
				var addresses []string
				for _, group := range cla.GetEndpoints() {
					for _, e := range group.GetLbEndpoints() {
						addresses = append(addresses, e.GetEndpoint().GetAddress().GetSocketAddress().GetAddress())
					}
				}
				a.answers <- strings.Join(addresses, " ")
			}
			// Only this goroutine sends, once endpoints were requested.
			if err := a.Send(&discoveryv3.DiscoveryRequest{
				TypeUrl: typeEndpoint, ResourceNames: endpointNames(), VersionInfo: answer.GetVersionInfo(), ResponseNonce: answer.GetNonce(),
			}); err != nil {
				return
			}
		}
	}()
	return a
}

func endpointNames() []string { return []string{"outbound|80||web.shop.svc.cluster.local"} }

func (a *adsStream) send(t *testing.T, q *discoveryv3.DiscoveryRequest) {
	t.Helper()
	if err := a.Send(q); err != nil {
		t.Fatal(err)
	}
}

// want waits until the endpoints have the given addresses.
func (a *adsStream) want(t *testing.T, what, addresses string) {
	t.Helper()
	last := "none"
	for end := time.After(2 * time.Minute); last != addresses; {
		select {
		case got, ok := <-a.answers:
			if !ok {
				t.Fatalf("%s: the stream ended while waiting for %q", what, addresses)
			}
			last = got
		case <-end:
			t.Fatalf("%s: timeout: endpoints: got %q, want %q", what, last, addresses)
		}
	}
}

func waitUntil(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("condition not met within 2 minutes: %s", what)
		}
	}
}

// metric waits until a metric has a value.
func (s *Server) metric(t *testing.T, line string) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
		answer, err := http.Get("http://" + s.ports.listeners.http.Addr().String() + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close() // the body was read completely
		if strings.Contains(string(text), "\n"+line+"\n") {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("timeout waiting for the metric %q in\n%s", line, text)
		}
	}
}

// TestHealthOfMachines checks that an agent's report removes its machine from the endpoints that
// others receive, and adds it again. That must also apply to the endpoints of an object created
// later.
func TestHealthOfMachines(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, map[string][]byte{filepath.Join(dir, "web.yaml"): []byte(shopService), filepath.Join(dir, "1.yaml"): machineFile("21"), filepath.Join(dir, "2.yaml"): machineFile("22")})
	i := newIssuer(t)
	s := serve(t, func(c *Config) {
		c.ConfigDir = dir
		c.Callers.JWTRule = fmt.Sprintf(`{"issuer":"tests","audiences":["istio-ca"],"jwksUri":%q}`, i.url+"/keys")
		c.Callers.Hosts = []string{testHost}
	})
	waitUntil(t, "the first snapshot", s.discovery.Ready)
	client := i.stream(t, s, "127.77.63.99")
	client.send(t, &discoveryv3.DiscoveryRequest{TypeUrl: typeEndpoint, ResourceNames: endpointNames()})
	client.want(t, "at the start", "127.77.63.21 127.77.63.22")
	s.metric(t, "outrigger_control_unhealthy_workloads 0")

	down := &discoveryv3.DiscoveryRequest{TypeUrl: typeHealth, ErrorDetail: &rpcstatus.Status{Code: 13, Message: "connection refused"}}
	one, three := i.stream(t, s, "127.77.63.21"), i.stream(t, s, "127.77.63.23")
	one.send(t, down)
	client.want(t, "one is unhealthy", "127.77.63.22")
	s.metric(t, "outrigger_control_unhealthy_workloads 1")
	three.send(t, down) // there is no object for it yet
	write(t, map[string][]byte{filepath.Join(dir, "3.yaml"): machineFile("23")})
	s.metric(t, "outrigger_control_unhealthy_workloads 2")
	three.send(t, &discoveryv3.DiscoveryRequest{TypeUrl: typeHealth})
	client.want(t, "three is healthy", "127.77.63.22 127.77.63.23")
	four := i.stream(t, s, "127.77.63.24")
	four.send(t, down)
	waitUntil(t, "four is connected", func() bool { return s.discovery.Connected() == 4 })
	if err := four.CloseSend(); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, "four is disconnected", func() bool { return s.discovery.Connected() == 3 })
	write(t, map[string][]byte{filepath.Join(dir, "4.yaml"): machineFile("24")})
	client.want(t, "a disconnected agent has no effect on a new entry", "127.77.63.22 127.77.63.23 127.77.63.24")
	one.send(t, &discoveryv3.DiscoveryRequest{TypeUrl: typeHealth})
	client.want(t, "one is healthy again", "127.77.63.21 127.77.63.22 127.77.63.23 127.77.63.24")
	one.send(t, down)
	client.want(t, "one is unhealthy again", "127.77.63.22 127.77.63.23 127.77.63.24")
	if err := os.Remove(filepath.Join(dir, "1.yaml")); err != nil {
		t.Fatal(err)
	}
	s.metric(t, "outrigger_control_unhealthy_workloads 0")
}
