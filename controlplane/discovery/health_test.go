// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/anypb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/generate"
	"github.com/outrigger-mesh/outrigger/controlplane/health"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// report reports the health of the application, as an agent does; no message means that it is
// healthy.
func (p *peer) report(message string) {
	p.t.Helper()
	var why *rpcstatus.Status
	if message != "" {
		why = &rpcstatus.Status{Code: 13, Message: message}
	}
	if p.delta {
		p.must(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeHealth, ErrorDetail: why})
		return
	}
	p.must(&discoveryv3.DiscoveryRequest{TypeUrl: typeHealth, ErrorDetail: why})
}

// leave ends the stream and waits until the server has noticed.
func (p *peer) leave(h *harness) {
	p.t.Helper()
	until(p.t, "the stream has begun", func() bool { return h.server.Connected() > 0 }) // others may be notified of the proxy before
	left := h.server.Connected() - 1
	if err := p.end(); err != nil {
		p.t.Fatal(err)
	}
	until(p.t, "the stream ends", func() bool { return h.server.Connected() == left })
}

// A report on an unauthenticated port has no effect, neither before the stream nor on it.
func TestHealthNeedsIdentity(t *testing.T) {
	t.Parallel()
	for name, delta := range map[string]bool{"sotw": false, "delta": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := &harness{table: &table{}}
			h.serve(t, Config{Generator: h.table, Workers: 2, OnHealth: func(p *model.Proxy, _ bool, message string) {
				t.Errorf("health of %s = %q, want no report", p.ID, message)
			}}, nil, insecure.NewCredentials(), insecure.NewCredentials())
			h.push()
			p := h.connect(t, delta)
			p.report("it is down")
			p.subscribe(xds.TypeCluster)
			p.wantAck("cds")
			p.report("it is down")
			p.quiet()
		})
	}
}

// Reports on an application's health are forwarded at any time, and not acknowledged.
func TestHealth(t *testing.T) {
	t.Parallel()
	for name, delta := range map[string]bool{"sotw": false, "delta": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reports := make(chan string, 10)
			h := &harness{table: &table{}}
			h.serve(t, Config{Generator: h.table, Workers: 2, OnHealth: func(p *model.Proxy, healthy bool, message string) {
				reports <- fmt.Sprint(p.ID, " ", healthy, " ", message)
			}}, shopCaller, insecure.NewCredentials(), insecure.NewCredentials())
			h.push()
			p := h.connect(t, delta)
			p.report("too early to count")
			p.report("before the first subscription")
			p.subscribe(xds.TypeCluster)
			p.wantAck("cds")
			p.report("")
			p.report("connection refused")
			p.report(strings.Repeat("x", 1000))
			want := []string{
				"shop-1.default false before the first subscription", "shop-1.default true ", "shop-1.default false connection refused",
				"shop-1.default false " + strings.Repeat("x", 300) + "… (1000 bytes)",
			}
			var got []string
			for range want {
				select {
				case r := <-reports:
					got = append(got, r)
				case <-time.After(2 * time.Minute):
					t.Fatalf("got only %q", got)
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			p.quiet()
		})
	}
}

// The end of a stream is reported after its last health report. A proxy that names no service account
// counts as one with its proven account.
func TestHealthOfCaller(t *testing.T) {
	t.Parallel()
	events := make(chan string, 10)
	h := &harness{table: &table{}}
	vm := fixed{caller: &authn.Caller{ID: certs.ID{TrustDomain: "cluster.local", Namespace: "default", ServiceAccount: "vm"}}}
	h.serve(t, Config{
		Generator: h.table, Workers: 2,
		OnHealth: func(p *model.Proxy, healthy bool, _ string) {
			events <- fmt.Sprint(p.Namespace, " ", p.ServiceAccount, " ", p.WorkloadEntry, " ", p.AutoRegisterGroup, " ", p.Network, " ", healthy)
		},
		OnGone: func(p *model.Proxy) { events <- "gone " + p.ServiceAccount },
	}, vm, insecure.NewCredentials(), insecure.NewCredentials())
	h.push()
	p := h.connect(t, false)
	p.node = shopNode(t, map[string]any{"SERVICE_ACCOUNT": "", "WORKLOAD_ENTRY": "vm-1", "AUTO_REGISTER_GROUP": "vms", "NETWORK": "net"})
	p.subscribe(xds.TypeCluster)
	p.wantAck("cds")
	p.report("connection refused")
	p.leave(h)
	for _, want := range []string{"default vm vm-1 vms net false", "gone vm"} {
		select {
		case got := <-events:
			if got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		case <-time.After(2 * time.Minute):
			t.Fatalf("not within 2 minutes: %q", want)
		}
	}
}

// machines is a mesh with one service on two machines, and the pipeline of its snapshots without
// delays.
type machines struct {
	*harness
	mu      sync.Mutex // guards mesh
	mesh    *snapshot.Mesh
	reports *health.Table
	objects []*model.Config
}

const machineHost = "db.default.svc.cluster.local"

func newMachines(t *testing.T) *machines {
	t.Helper()
	m := &machines{harness: &harness{}, objects: []*model.Config{
		{Key: model.Key{Kind: model.ServiceEntry, Namespace: "default", Name: "db"}, Spec: &networkingv1alpha3.ServiceEntry{
			Hosts: []string{machineHost}, Location: networkingv1alpha3.ServiceEntry_MESH_INTERNAL, Resolution: networkingv1alpha3.ServiceEntry_STATIC,
			Ports:            []*networkingv1alpha3.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP"}},
			WorkloadSelector: &networkingv1alpha3.WorkloadSelector{Labels: map[string]string{"app": "db"}},
		}},
		machine("vm-1", "127.77.63.11"), machine("vm-2", "127.77.63.12"),
	}}
	var err error
	if m.reports, err = health.New(health.Config{OnChange: m.build}); err != nil {
		t.Fatal(err)
	}
	cfg := Config{Generator: generate.New(generate.Config{}), Workers: 2, OnHealth: m.reports.Report, OnGone: m.reports.Gone}
	m.serve(t, cfg, byHeader{}, insecure.NewCredentials(), insecure.NewCredentials())
	m.reports.Update(m.list(model.WorkloadEntry))
	m.build(model.Change{All: true})
	return m
}

// machine is one with a service account of its own.
func machine(name, address string) *model.Config {
	return &model.Config{Key: model.Key{Kind: model.WorkloadEntry, Namespace: "default", Name: name}, Spec: &networkingv1alpha3.WorkloadEntry{
		Address: address, ServiceAccount: name, Labels: map[string]string{"app": "db"},
	}}
}

func (m *machines) list(kind model.Kind) (out []*model.Config) {
	for _, o := range m.objects {
		if o.Kind == kind {
			out = append(out, o)
		}
	}
	return out
}

// build builds and publishes what follows a change.
func (m *machines) build(change model.Change) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mesh = snapshot.Build(m.mesh, snapshot.Input{List: m.list, Unhealthy: m.reports.Unhealthy()}, change)
	m.server.Push(m.mesh, change)
}

// agentOf connects as the agent of a machine, whose Envoy requests clusters.
func (m *machines) agentOf(t *testing.T, delta bool, meta map[string]any) *peer {
	t.Helper()
	node := shopNode(t, meta)
	m.identity = node.Metadata.Fields["NAMESPACE"].GetStringValue() + "/" + node.Metadata.Fields["SERVICE_ACCOUNT"].GetStringValue()
	p := m.connect(t, delta)
	p.node, p.describer = node, func(*testing.T, *anypb.Any) string { return "-" }
	p.subscribe(xds.TypeCluster)
	p.ack(p.any())
	return p
}

func vmMeta(n string) map[string]any {
	return map[string]any{"SERVICE_ACCOUNT": "vm-" + n, "INSTANCE_IPS": "127.77.63.1" + n}
}

// endpointWord describes endpoints, and all else by its type.
func endpointWord(t *testing.T, res *anypb.Any) string {
	t.Helper()
	var cla endpointv3.ClusterLoadAssignment
	if res.TypeUrl != xds.TypeEndpoint {
		return "-"
	}
	if err := res.UnmarshalTo(&cla); err != nil {
		t.Fatal(err)
	}
	words := []string{}
	for _, group := range cla.GetEndpoints() {
		for _, e := range group.GetLbEndpoints() {
			words = append(words, e.GetEndpoint().GetAddress().GetSocketAddress().GetAddress())
		}
	}
	return "[" + strings.Join(words, " ") + "]"
}

// A machine whose agent reports an unhealthy application is removed from the endpoints of others,
// and from nothing else. The verdict survives the stream, and no agent can report for another.
func TestHealthMovesEndpoints(t *testing.T) {
	t.Parallel()
	for name, delta := range map[string]bool{"sotw": false, "delta": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachines(t)
			client := m.connect(t, delta)
			client.describer = endpointWord
			client.subscribe(xds.TypeCluster)
			client.ack(client.any())
			client.subscribe(xds.TypeEndpoint, "outbound|80||"+machineHost)
			client.wantAck("eds [127.77.63.11 127.77.63.12]")
			for _, typeURL := range []string{xds.TypeListener, xds.TypeRoute} {
				names := []string{}
				if typeURL == xds.TypeRoute {
					names = append(names, "80")
				}
				client.subscribe(typeURL, names...)
				client.ack(client.any())
			}
			vm := m.agentOf(t, delta, vmMeta("1"))
			vm.report("")
			vm.quiet()
			client.quiet() // it counted as healthy before
			vm.report("connection refused")
			client.wantAck("eds [127.77.63.12]")
			client.quiet() // no other type
			vm.report("connection reset")
			vm.quiet()
			client.quiet()
			vm.leave(m.harness)
			client.quiet() // the verdict stays

			// A proxy with its address, or one that names its entry, may not report
			// for it, or for the other.
			for _, meta := range []map[string]any{
				{"INSTANCE_IPS": "127.77.63.11,127.77.63.12"},
				{"WORKLOAD_ENTRY": "vm-1"},
				{"SERVICE_ACCOUNT": "vm-1", "NAMESPACE": "other", "INSTANCE_IPS": "127.77.63.11"},
			} {
				stranger := m.agentOf(t, delta, meta)
				stranger.report("")
				stranger.report("down with it")
				stranger.quiet()
				client.quiet()
			}

			other := m.agentOf(t, delta, map[string]any{"SERVICE_ACCOUNT": "vm-2", "WORKLOAD_ENTRY": "vm-2"})
			other.report("out of memory")
			client.wantAck("eds []")
			m.identity = "default/vm-1"
			vm = m.connect(t, delta)
			vm.node, vm.describer = shopNode(t, vmMeta("1")), func(*testing.T, *anypb.Any) string { return "-" }
			vm.report("") // before the first subscription
			vm.subscribe(xds.TypeCluster)
			vm.ack(vm.any())
			client.wantAck("eds [127.77.63.11]")
			other.report("")
			client.wantAck("eds [127.77.63.11 127.77.63.12]")
			client.quiet()
		})
	}
}
