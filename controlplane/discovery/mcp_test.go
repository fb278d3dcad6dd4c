// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	grpccredentials "google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	mcpv1alpha1 "istio.io/api/mcp/v1alpha1"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/config/mcp"
	"github.com/outrigger-mesh/outrigger/controlplane/config/memory"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery/mcpserver"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// The types in the order in which Istio 1.18 requests them.
const (
	entryType   = "networking.istio.io/v1alpha3/ServiceEntry"
	machineType = "networking.istio.io/v1alpha3/WorkloadEntry"
	classType   = "gateway.networking.k8s.io/v1beta1/GatewayClass"
)

// mcpHarness is a server over TLS with a store of objects.
type mcpHarness struct {
	*harness
	store   *memory.Store
	mesh    *snapshot.Mesh
	objects *mcpserver.Server
}

func startMCP(t *testing.T, caller *authn.Caller, encrypted bool, readers ...string) *mcpHarness {
	t.Helper()
	h := &mcpHarness{
		harness: &harness{table: &table{}}, store: memory.New("memory://"),
		mesh: &snapshot.Mesh{Config: &meshv1alpha1.MeshConfig{RootNamespace: "one"}},
	}
	server, client := insecure.NewCredentials(), insecure.NewCredentials()
	if encrypted {
		root := mint(t, "root")
		s, c := root.issue(t, "server").tls(root)
		server, client = grpccredentials.NewTLS(s), grpccredentials.NewTLS(c)
	}
	var auth authn.Authenticator
	if caller != nil {
		auth = fixed{caller: caller}
	}
	h.objects = mcpserver.New(mcpserver.Config{Objects: h.store, Readers: readers})
	h.serve(t, Config{Generator: h.table, Workers: 2, Objects: h.objects}, auth, server, client)
	h.server.Push(h.mesh, model.Change{All: true})
	return h
}

func account(namespace, name string) *authn.Caller {
	return &authn.Caller{ID: certs.ID{TrustDomain: "cluster.local", Namespace: namespace, ServiceAccount: name}}
}

// reader connects as a control plane, with the node that Istio's client sends.
func (h *mcpHarness) reader(t *testing.T, delta bool) *peer {
	t.Helper()
	p := h.connect(t, delta)
	md, err := structpb.NewStruct(map[string]any{"GENERATOR": "api", "ISTIO_REVISION": "default", "ISTIO_VERSION": "65536.65536.65536"})
	if err != nil {
		t.Fatal(err)
	}
	p.node = &corev3.Node{Id: "sidecar~127.77.111.9~istiod.mesh~mesh.svc.cluster.local", Metadata: md}
	p.describer = describeObject
	return p
}

// describeObject returns "name=content" of a resource.
func describeObject(t *testing.T, res *anypb.Any) string {
	t.Helper()
	m, err := res.UnmarshalNew()
	if err != nil {
		t.Fatal(err)
	}
	if mesh, ok := m.(*meshv1alpha1.MeshConfig); ok {
		return "mesh=" + mesh.GetRootNamespace()
	}
	r := m.(*mcpv1alpha1.Resource)
	body, err := r.GetBody().UnmarshalNew()
	if err != nil {
		t.Fatal(err)
	}
	content := ""
	switch b := body.(type) {
	case *networkingv1alpha3.WorkloadEntry:
		content = b.GetAddress()
	case *networkingv1alpha3.ServiceEntry:
		content = b.GetHosts()[0] + fmt.Sprint(b.GetPorts()[0].GetNumber())
	case *structpb.Struct:
		content = b.GetFields()["controllerName"].GetStringValue()
	}
	return r.GetMetadata().GetName() + "=" + content
}

// write writes an object, or removes it if it has no spec, and pushes.
func (h *mcpHarness) write(t *testing.T, c *model.Config) {
	t.Helper()
	var err error
	switch {
	case c.Spec == nil:
		err = h.store.Delete(t.Context(), c.Key, "")
	case h.store.Get(c.Key) == nil:
		_, err = h.store.Create(t.Context(), c)
	default:
		_, err = h.store.Update(t.Context(), c)
	}
	if err != nil {
		t.Fatal(err)
	}
	h.server.Push(h.mesh, model.NewChange(c.Key))
}

func mcpEntry(name, address string) *model.Config {
	c := &model.Config{Key: model.Key{Kind: model.WorkloadEntry, Namespace: "shop", Name: name}}
	if address != "" {
		c.Spec = &networkingv1alpha3.WorkloadEntry{Address: address}
	}
	return c
}

// eachReader runs a test for both kinds of stream.
func eachReader(t *testing.T, test func(t *testing.T, h *mcpHarness, p *peer)) {
	t.Helper()
	t.Parallel()
	for name, delta := range map[string]bool{"sotw": false, "delta": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := startMCP(t, account("mesh", "istiod"), true, "mesh/*")
			test(t, h, h.reader(t, delta))
		})
	}
}

func TestMCPPushes(t *testing.T) {
	eachReader(t, func(t *testing.T, h *mcpHarness, p *peer) {
		h.write(t, mcpEntry("a", "10.0.0.1"))
		h.write(t, &model.Config{
			Key: model.Key{Kind: model.GatewayClass, Name: "edge"}, Spec: &gatewayv1.GatewayClassSpec{ControllerName: "example.org/c"},
		})
		p.subscribe(mcp.MeshConfigType)
		p.wantAck("other mesh=one")
		p.subscribe(machineType)
		p.wantAck("other shop/a=10.0.0.1")
		p.subscribe(classType)
		p.wantAck("other /edge=example.org/c")
		p.subscribe(entryType) // an empty response also counts
		p.wantAck("other")
		for _, unknown := range []string{"networking.istio.io/v9/Sidecar", "example.org/v1/Thing", "x"} {
			p.subscribe(unknown)
			p.wantAck("other")
		}
		// Only the kind that changed is sent: all of it, or what changed.
		h.write(t, mcpEntry("b", "10.0.0.2"))
		want := map[bool][]string{
			false: {"other shop/a=10.0.0.1 shop/b=10.0.0.2", "other shop/a=10.0.0.3 shop/b=10.0.0.2", "other shop/a=10.0.0.3"},
			true:  {"other shop/b=10.0.0.2", "other shop/a=10.0.0.3", "other -shop/b"},
		}[p.delta]
		p.wantAck(want[0])
		h.write(t, mcpEntry("a", "10.0.0.3"))
		p.wantAck(want[1])
		h.write(t, mcpEntry("b", ""))
		p.wantAck(want[2])
		p.quiet()
		// A status is not sent.
		c := mcpEntry("a", "10.0.0.3")
		sch, _ := schema.Of(c.Kind)
		c.Status = sch.NewStatus()
		if _, err := h.store.UpdateStatus(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		h.server.Push(h.mesh, model.NewChange(c.Key))
		p.quiet()
		h.mesh = &snapshot.Mesh{Config: &meshv1alpha1.MeshConfig{RootNamespace: "two"}}
		h.server.Push(h.mesh, model.Change{All: true})
		p.wantAck("other mesh=two")
		p.quiet()
	})
}

// One response of a type is on the way: what changes meanwhile merges. What
// was rejected is not sent again until something changes.
func TestMCPOneInFlight(t *testing.T) {
	eachReader(t, func(t *testing.T, h *mcpHarness, p *peer) {
		p.subscribe(machineType)
		p.want("other")
		h.write(t, mcpEntry("a", "10.0.0.1"))
		h.write(t, mcpEntry("b", "10.0.0.2"))
		h.write(t, mcpEntry("a", ""))
		p.quiet()
		p.ack(machineType)
		p.want("other shop/b=10.0.0.2")
		p.nack(machineType, "it is not good")
		p.quiet()
		h.write(t, mcpEntry("c", "10.0.0.3"))
		if p.delta {
			p.wantAck("other shop/c=10.0.0.3")
		} else {
			p.wantAck("other shop/b=10.0.0.2 shop/c=10.0.0.3")
		}
	})
}

// A client that never acknowledges, like Istio's client for the mesh config, still receives the
// other types.
func TestMCPUnanswered(t *testing.T) {
	eachReader(t, func(t *testing.T, h *mcpHarness, p *peer) {
		p.subscribe(mcp.MeshConfigType)
		p.want("other mesh=one")
		p.subscribe(machineType)
		p.wantAck("other")
		h.write(t, mcpEntry("a", "10.0.0.1"))
		p.wantAck("other shop/a=10.0.0.1")
	})
}

// The first request of Istio's client has a nonce of its own.
func TestMCPFirstNonce(t *testing.T) {
	t.Parallel()
	h := startMCP(t, account("mesh", "istiod"), true, "mesh/*")
	h.write(t, mcpEntry("a", "10.0.0.1"))
	p := h.reader(t, false)
	p.must(&discoveryv3.DiscoveryRequest{Node: p.node, TypeUrl: machineType, ResponseNonce: "2026-01-01 00:00:00 +0000 UTC"})
	p.wantAck("other shop/a=10.0.0.1")
	h.write(t, mcpEntry("a", "10.0.0.2"))
	p.wantAck("other shop/a=10.0.0.2")
}

// A delta client that reconnects receives the changes since.
func TestMCPResume(t *testing.T) {
	t.Parallel()
	h := startMCP(t, account("mesh", "istiod"), true, "mesh/istiod")
	h.write(t, mcpEntry("a", "10.0.0.1"))
	h.write(t, mcpEntry("b", "10.0.0.2"))
	p := h.reader(t, true)
	p.subscribe(machineType)
	p.wantAck("other shop/a=10.0.0.1 shop/b=10.0.0.2")
	have := map[string]string{}
	for _, r := range h.objects.Resources(h.mesh, machineType).Resources {
		have[r.Name] = versionOf(r.Hash)
	}
	if err := p.end(); err != nil {
		t.Fatal(err)
	}
	for range p.got { // until the stream has ended
	}
	until(t, "the stream is gone", func() bool { return h.server.Connected() == 0 })
	h.write(t, mcpEntry("a", ""))
	h.write(t, mcpEntry("c", "10.0.0.3"))
	p = h.reader(t, true)
	p.must(&discoveryv3.DeltaDiscoveryRequest{Node: p.node, TypeUrl: machineType, InitialResourceVersions: have})
	p.wantAck("other shop/c=10.0.0.3 -shop/a")
}

// Services that no object defines become entries.
func TestMCPSynthetic(t *testing.T) {
	eachReader(t, func(t *testing.T, h *mcpHarness, p *peer) {
		entry := &model.Config{Key: model.Key{Kind: model.ServiceEntry, Namespace: "shop", Name: "own"}, Spec: &networkingv1alpha3.ServiceEntry{
			Hosts: []string{"own.test"}, Ports: []*networkingv1alpha3.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP"}},
			Resolution: networkingv1alpha3.ServiceEntry_STATIC,
		}}
		h.write(t, entry)
		service := func(port uint32) *snapshot.Services {
			ports := []model.Port{{Name: "http", Number: port, Protocol: model.ProtocolHTTP}}
			return &snapshot.Services{Sorted: []*model.Service{
				{ServiceKey: model.ServiceKey{Hostname: "own.test", Namespace: "shop"}, Ports: ports},
				{ServiceKey: model.ServiceKey{Hostname: "web.shop.svc.cluster.local", Namespace: "shop"}, Ports: ports, Registry: model.RegistryKubernetes},
			}}
		}
		h.mesh = &snapshot.Mesh{Services: service(80)}
		h.server.Push(h.mesh, model.Change{All: true})
		p.subscribe(entryType)
		p.wantAck("other shop/own=own.test80 shop/synthetic-web=web.shop.svc.cluster.local80")
		h.mesh = &snapshot.Mesh{Services: service(81)}
		h.server.Push(h.mesh, model.NewChange(model.Key{Kind: "Service", Namespace: "shop", Name: "web"}))
		if p.delta {
			p.wantAck("other shop/synthetic-web=web.shop.svc.cluster.local81")
		} else {
			p.wantAck("other shop/own=own.test80 shop/synthetic-web=web.shop.svc.cluster.local81")
		}
	})
}

// Allowed callers: encrypted, authenticated, in the claimed namespace, and in the list.
func TestMCPReaders(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		caller    *authn.Caller
		plaintext bool
		readers   []string
		says      string // empty: it may
	}{
		"in the list":             {caller: account("mesh", "istiod"), readers: []string{"other/x", "mesh/istiod"}},
		"all of a namespace":      {caller: account("mesh", "any"), readers: []string{"mesh/*"}},
		"another account":         {caller: account("mesh", "any"), readers: []string{"mesh/istiod"}, says: "mesh/any to OUTRIGGER_MCP_READERS"},
		"another namespace":       {caller: account("shop", "istiod"), readers: []string{"shop/*"}, says: "claims the namespace"},
		"nobody":                  {caller: account("mesh", "istiod"), says: "OUTRIGGER_MCP_READERS"},
		"not encrypted":           {caller: account("mesh", "istiod"), plaintext: true, readers: []string{"mesh/*"}, says: "TLS"},
		"a port for everybody":    {plaintext: true, readers: []string{"mesh/*"}, says: "TLS"},
		"TLS and nobody is asked": {readers: []string{"mesh/*"}, says: "TLS"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := startMCP(t, tc.caller, !tc.plaintext, tc.readers...)
			for _, delta := range []bool{false, true} {
				p := h.reader(t, delta)
				p.subscribe(machineType)
				if tc.says == "" {
					p.wantAck("other")
					continue
				}
				refused(t, p, codes.PermissionDenied, tc.says)
			}
		})
	}
}

// refused wants a stream to end.
func refused(t *testing.T, p *peer, code codes.Code, says string) {
	t.Helper()
	select {
	case m, ok := <-p.got:
		if ok {
			t.Fatalf("it was answered with %v", m)
		}
	case <-time.After(2 * time.Minute):
		t.Fatal("the stream did not end within 2 minutes")
	}
	err, _ := p.err.Load().(error)
	if status.Code(err) != code || !strings.Contains(err.Error(), says) {
		t.Errorf("the stream ended with %v, want %s and %q", err, code, says)
	}
}

// A stream for objects receives no resources of proxies, in particular no secrets, and a bounded
// number of types.
func TestMCPOnlyObjects(t *testing.T) {
	t.Parallel()
	h := startMCP(t, account("mesh", "istiod"), true, "mesh/*")
	h.set(xds.TypeCluster, map[string]string{"a": "a=1"})
	for typeURL := range shortTypes {
		p := h.reader(t, false)
		p.subscribe(machineType)
		p.wantAck("other")
		p.subscribe(typeURL, "a")
		refused(t, p, codes.InvalidArgument, "GENERATOR=api")
	}
	p := h.reader(t, false)
	for i := range maxTypes {
		p.subscribe(fmt.Sprintf("example.org/v1/T%d", i))
		p.wantAck("other")
	}
	p.subscribe("example.org/v1/more")
	refused(t, p, codes.ResourceExhausted, "more than 200 types")
	// A control plane without objects has none to serve.
	h = startMCP(t, account("mesh", "istiod"), true, "mesh/*")
	h.server.objects = nil
	p = h.reader(t, false)
	p.subscribe(machineType)
	refused(t, p, codes.PermissionDenied, "does not serve its objects")
}
