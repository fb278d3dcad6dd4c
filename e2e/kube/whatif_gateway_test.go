// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/outrigger-mesh/outrigger/controlplane/gatewayapi"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

// proposedSteps are changes of the Gateway API, each in force when the next one is proposed. says is a
// condition that follows.
var proposedSteps = []struct{ name, text, says string }{
	{"a route without a grant", `
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web, namespace: shop}
spec:
  parentRefs: [{name: edge, namespace: edge, sectionName: http}]
  hostnames: [web.example.com]
  rules:
  - matches: [{path: {type: PathPrefix, value: /stock}}]
    backendRefs: [{name: items, namespace: stock, port: 80}]
  - timeouts: {request: 5s}
    backendRefs: [{name: web, port: 80}]
`, "HTTPRoute/shop/web: Gateway edge/edge listener http ResolvedRefs False RefNotPermitted"},
	{"the grant", `
apiVersion: gateway.networking.k8s.io/v1
kind: ReferenceGrant
metadata: {name: shop, namespace: stock}
spec: {from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: shop}], to: [{group: "", kind: Service}]}
`, "HTTPRoute/shop/web: Gateway edge/edge listener http ResolvedRefs True ResolvedRefs"},
	{"listeners and all other kinds", `
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: edge}
spec:
  gatewayClassName: istio
  addresses: [{type: IPAddress, value: 10.9.9.9}]
  listeners:
  - {name: http, port: 80, protocol: HTTP, allowedRoutes: {namespaces: {from: Selector, selector: {matchLabels: {team: shop}}}}}
  - {name: tls, port: 443, protocol: TLS, tls: {mode: Passthrough}, allowedRoutes: {namespaces: {from: All}}}
  - {name: tcp, port: 9000, protocol: TCP, allowedRoutes: {namespaces: {from: All}}}
  - {name: https, port: 8443, protocol: HTTPS, tls: {certificateRefs: [{name: missing}]}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: GRPCRoute
metadata: {name: rpc, namespace: shop}
spec:
  parentRefs: [{name: edge, namespace: edge}]
  hostnames: [rpc.example.com]
  rules: [{matches: [{method: {service: shop.Catalog}}], backendRefs: [{name: web, port: 80}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: TLSRoute
metadata: {name: secure, namespace: shop}
spec: {parentRefs: [{name: edge, namespace: edge, sectionName: tls}], hostnames: [secure.example.com], rules: [{backendRefs: [{name: web, port: 80}]}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: TCPRoute
metadata: {name: db, namespace: stock}
spec: {parentRefs: [{name: edge, namespace: edge, sectionName: tcp}], rules: [{backendRefs: [{name: items, port: 80}]}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: BackendTLSPolicy
metadata: {name: web, namespace: shop}
spec: {targetRefs: [{group: "", kind: Service, name: web}], validation: {hostname: web.example.com, wellKnownCACertificates: System}}
`, "KubernetesGateway/edge/edge: listener https ResolvedRefs False InvalidCertificateRef"},
	{"a route of a namespace without the label", `
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: stranger, namespace: stock}
spec: {parentRefs: [{name: edge, namespace: edge, sectionName: http}], rules: [{backendRefs: [{name: items, port: 80}]}]}
`, "HTTPRoute/stock/stranger: Gateway edge/edge listener http Accepted False NotAllowedByListeners"},
}

// TestWhatIfGatewayAPI proposes objects of the Gateway API, creates them, and compares what a gateway
// receives, and the statuses in the cluster, with the prediction. In the end it asks about the past.
func TestWhatIfGatewayAPI(t *testing.T) {
	t.Parallel()
	m := newGatewayMesh(t)
	ctx := testContext(t)
	w := writer{t, m.Admin()}
	m.apply("apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {team: shop}}\n")
	w.must(m.CreateNamespace(ctx, "stock"))
	w.service("shop", "web", nil)
	w.service("stock", "items", nil)
	w.pod("edge", "edge", "10.9.9.9", map[string]string{gatewayapi.NameLabel: "edge"}) // its labels are trusted
	m.apply(strings.SplitN(strings.TrimPrefix(proposedSteps[2].text, "\n"), "  - {name: tls", 2)[0])
	plane := newControl(t, m.kubeconfig, []string{"OUTRIGGER_CREDENTIALS=k8s://", "CLUSTER_ID=Kubernetes", "PILOT_ENABLE_GATEWAY_API_DEPLOYMENT_CONTROLLER=false"}, "--meshConfig", "mesh")
	plane.args = append(plane.args, "--grpcAddr", plane.host+":15010")
	w.must(os.WriteFile(filepath.Join(plane.dir, "mesh"), []byte("configSources: [{address: \"k8s://\"}]\n"), 0o600))
	w.must(plane.Start(ctx))
	store := configStore(t, m.Cluster)
	go func() { _ = store.Run(ctx) }() // it ends with the test
	gate := watchGateway(t, plane.host+":15010")
	eventually(t, ctx, "the gateway has routes", func() bool { return gate.bytes("rds") > 0 })

	ask := func(args ...string) string {
		out, _ := exec.CommandContext(ctx, program(t, "outrigger"), append(args, "--control", plane.host+":8080", "--timeout", "4m")...).CombinedOutput() // what is not there exits with 1
		return string(out)
	}
	if out := ask("history", "gtw/edge.edge"); !strings.Contains(out, "found") { // the versions of the start are recorded at once
		t.Errorf("the history of the Gateway: %s", out)
	}
	var times []string
	for _, step := range proposedSteps {
		got := plane.whatIf(t, step.text)
		if said := conditionsIn(got.Statuses); !slices.ContainsFunc(said, func(c string) bool { return strings.HasPrefix(c, step.says) }) {
			t.Errorf("%s: the conditions are %q, want %s", step.name, said, step.says)
		}
		times = append(times, time.Now().UTC().Format(time.RFC3339Nano))
		m.apply(step.text)
		eventually(t, ctx, step.name+" is in force", func() bool { return len(plane.whatIf(t, step.text).Proxies) == 0 })
		soon(t, step.name+": the gateway has received the sizes of the prediction, and the statuses are those in the cluster", func() error {
			for _, a := range got.Proxies {
				for _, d := range a.Types {
					if have := gate.bytes(d.Type); d.Type != "eds" && have != d.Bytes {
						return fmt.Errorf("%d bytes of %s, want %d", have, d.Type, d.Bytes)
					}
				}
			}
			for _, s := range got.Statuses {
				var stored []string
				if c := store.Get(model.Key{Kind: model.Kind(s.Kind), Namespace: s.Namespace, Name: s.Name}); c != nil {
					for _, condition := range gatewayapi.Conditions(c.Status) {
						stored = append(stored, conditionText(s.Ref, condition.At, condition.Type, string(condition.Status), condition.Reason, condition.Message))
					}
				}
				slices.Sort(stored)
				if want := conditionsIn([]report.Status{s}); !slices.Equal(stored, want) {
					return fmt.Errorf("conditions in the cluster %q, want %q", stored, want)
				}
			}
			return nil
		})
		// Now it is in force, so that its configuration is that of the push.
		if now := plane.whatIf(t, step.text); string(now.Static) != string(got.Static) || len(now.Static) == 0 {
			t.Errorf("%s: the configuration differs from the prediction", step.name)
		}
	}
	eventually(t, ctx, "the grant is recorded", func() bool { return strings.Contains(ask("history", "referencegrant/shop.stock"), "created") })
	request := []string{"explain", "request", "--from", "none", "--to", "edge.edge", "--port", "80", "--host", "web.example.com", "--path", "/stock"}
	if out := ask(request...); !strings.Contains(out, "outbound|80||items.stock") {
		t.Errorf("the request now: %s", out)
	}
	if out := ask(append(request, "--at", times[1])...); !strings.Contains(out, "the gateway responds with status 500") {
		t.Errorf("the request before the grant: %s", out)
	}
	if out := ask("explain", "httproute/web.shop", "--at", times[1]); !strings.Contains(out, "RDS    http.80") || !strings.Contains(out, "which are those of now") || strings.Contains(out, "cannot be computed") {
		t.Errorf("the route before the grant: %s", out)
	}
	if out := ask("explain", "grpcroute/rpc.shop", "--at", times[1]); !strings.Contains(out, "There was no GRPCRoute") {
		t.Errorf("the GRPCRoute before it existed: %s", out)
	}
}

func conditionText(of report.Ref, at, kind, status, reason, message string) string {
	return fmt.Sprintf("%s/%s/%s: %s", of.Kind, of.Namespace, of.Name, strings.TrimPrefix(strings.Join([]string{at, kind, status, reason, message}, " "), " "))
}

func conditionsIn(list []report.Status) (out []string) {
	for _, s := range list {
		for _, c := range s.Conditions {
			out = append(out, conditionText(s.Ref, c.At, c.Type, c.Status, c.Reason, c.Message))
		}
	}
	slices.Sort(out)
	return out
}

// whatIf returns the effect of a change, with the configuration of the gateway.
func (c *control) whatIf(t *testing.T, text string) (out report.WhatIf) {
	t.Helper()
	soon(t, "what-if", func() error {
		answer, err := http.PostForm("http://"+c.host+":8080/debug/whatif", url.Values{"objects": {text}, "proxyID": {"edge.edge"}})
		if err != nil {
			return err
		}
		defer func() { _ = answer.Body.Close() }() // closing cannot lose data
		return json.NewDecoder(answer.Body).Decode(&out)
	})
	return out
}

// gatewayView is the sizes of what a gateway has received, by type.
type gatewayView struct {
	mu    sync.Mutex // guards sizes
	sizes map[string]int
}

func (v *gatewayView) bytes(name string) int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.sizes[map[string]string{
		"cds": clusterType, "lds": "type.googleapis.com/envoy.config.listener.v3.Listener", "rds": "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
	}[name]]
}

// watchGateway opens a stream as a proxy of the Gateway edge.
func watchGateway(t *testing.T, address string) *gatewayView {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	meta, err := structpb.NewStruct(map[string]any{"NAMESPACE": "edge", "CLUSTER_ID": "Kubernetes", "LABELS": map[string]any{gatewayapi.NameLabel: "edge"}})
	if err != nil {
		t.Fatal(err)
	}
	v, done := &gatewayView{sizes: map[string]int{}}, make(chan struct{})
	t.Cleanup(func() {
		cancel()
		<-done
		_ = conn.Close() // the test has ended
	})
	node := &corev3.Node{Id: "router~10.9.9.9~edge.edge~edge.svc.cluster.local", Metadata: meta}
	for _, r := range []*discoveryv3.DiscoveryRequest{
		{Node: node, TypeUrl: clusterType},
		{TypeUrl: "type.googleapis.com/envoy.config.listener.v3.Listener"},
		{TypeUrl: "type.googleapis.com/envoy.config.route.v3.RouteConfiguration", ResourceNames: []string{"http.80"}},
	} {
		if err := stream.Send(r); err != nil {
			t.Fatal(err)
		}
	}
	go func() {
		defer close(done)
		for {
			answer, err := stream.Recv()
			if err != nil {
				return // the test has ended
			}
			size := 0
			for _, r := range answer.GetResources() {
				size += proto.Size(r)
			}
			v.mu.Lock()
			v.sizes[answer.GetTypeUrl()] = size
			v.mu.Unlock()
			ack := &discoveryv3.DiscoveryRequest{TypeUrl: answer.GetTypeUrl(), VersionInfo: answer.GetVersionInfo(), ResponseNonce: answer.GetNonce()}
			if strings.HasSuffix(ack.GetTypeUrl(), "RouteConfiguration") {
				ack.ResourceNames = []string{"http.80"}
			}
			if stream.Send(ack) != nil {
				return // the same
			}
		}
	}()
	return v
}
