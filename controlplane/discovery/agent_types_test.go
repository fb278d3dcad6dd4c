// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"slices"
	"sort"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery/debug/debugtest"
	"github.com/outrigger-mesh/outrigger/controlplane/generate"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
	"github.com/outrigger-mesh/outrigger/xdsproxy/nds"
)

// agentWord describes a response to an agent: names with their addresses, or the subjects of roots.
func agentWord(t *testing.T, res *anypb.Any) string {
	t.Helper()
	var words []string
	switch res.TypeUrl {
	case xds.TypeNameTable:
		table, err := nds.Unmarshal(res.Value)
		if err != nil {
			t.Fatal(err)
		}
		for name, host := range table.Hosts {
			words = append(words, name+"="+strings.Join(host.IPs, ",")+"@"+host.Registry)
		}
	case xds.TypeProxyConfig:
		var pc meshv1alpha1.ProxyConfig
		if err := res.UnmarshalTo(&pc); err != nil {
			t.Fatal(err)
		}
		for _, text := range pc.GetCaCertificatesPem() {
			chain, err := certs.ParseChain([]byte(text))
			if err != nil || len(chain) != 1 {
				t.Fatalf("%d certificates in one text: %v", len(chain), err)
			}
			words = append(words, chain[0].Subject.CommonName)
		}
	case xds.TypeStruct:
		var patch structpb.Struct
		if err := res.UnmarshalTo(&patch); err != nil {
			t.Fatal(err)
		}
		for name := range patch.GetFields() {
			words = append(words, name)
		}
	default:
		return res.TypeUrl
	}
	sort.Strings(words)
	return strings.Join(words, " ")
}

// eachAgent runs a test for both kinds of stream, with the real generator.
func eachAgent(t *testing.T, test func(t *testing.T, h *harness, p *peer)) {
	t.Helper()
	t.Parallel()
	for name, delta := range map[string]bool{"sotw": false, "delta": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := &harness{}
			cfg := Config{Generator: generate.New(generate.Config{}), Workers: 2}
			h.serve(t, cfg, nil, insecure.NewCredentials(), insecure.NewCredentials())
			h.server.Push(snapshotOf(nil, nil), model.Change{All: true})
			p := h.connect(t, delta)
			p.describer = agentWord
			test(t, h, p)
		})
	}
}

// askBare requests a type as an agent does: without node, names or version.
func (p *peer) askBare(typeURL string) {
	p.t.Helper()
	if p.delta {
		p.must(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL})
		return
	}
	p.must(&discoveryv3.DiscoveryRequest{TypeUrl: typeURL})
}

func TestNameTable(t *testing.T) {
	eachAgent(t, func(t *testing.T, h *harness, p *peer) {
		a, b := debugtest.External("a", "240.0.0.1"), debugtest.External("b", "240.0.0.2", "2001:db8::2", "10.0.0.0/8")
		mesh := snapshotOf(nil, nil, a)
		h.server.Push(mesh, model.Change{All: true})
		p.subscribe(xds.TypeCluster)
		p.ack(p.any())
		p.askBare(xds.TypeNameTable)
		p.wantAck("nds a.example.com=240.0.0.1@External")
		mesh = snapshotOf(mesh, nil, a, b)
		h.server.Push(mesh, model.Change{All: true})
		p.ack(p.any()) // the cluster of b
		p.wantAck("nds a.example.com=240.0.0.1@External b.example.com=240.0.0.2,2001:db8::2@External")
		h.server.Push(snapshotOf(mesh, mint(t, "root").chain, a, b), model.Change{All: true})
		p.quiet()
	})
}

// An agent receives the bundle once it exists, and its changes, but never an empty one.
func TestTrustBundle(t *testing.T) {
	eachAgent(t, func(t *testing.T, h *harness, p *peer) {
		one, two := mint(t, "one"), mint(t, "two")
		p.subscribe(xds.TypeRoute, "nobody") // opens the stream
		p.ack(p.any())
		p.askBare(xds.TypeProxyConfig)
		p.quiet()
		push := func(roots ...[]byte) {
			h.server.Push(snapshotOf(h.server.mesh.Load().Mesh, slices.Concat(roots...)), model.Change{All: true})
		}
		push(one.chain)
		p.wantAck("pcds one")
		push(two.chain, one.chain, two.chain)
		p.wantAck("pcds one two")
		push(one.chain, two.chain)
		p.quiet() // the same in another order
		push()
		p.quiet()
		push([]byte("-----BEGIN CERTIFICATE-----\nbroken"))
		p.quiet()
		push(two.chain)
		p.wantAck("pcds two")
	})
}

// A gateway receives the bundle, but no names.
func TestAgentOfGateway(t *testing.T) {
	eachAgent(t, func(t *testing.T, h *harness, p *peer) {
		p.node = gatewayNode(t, nil)
		h.server.Push(snapshotOf(nil, mint(t, "root").chain, debugtest.External("a", "240.0.0.1")), model.Change{All: true})
		p.subscribe(xds.TypeCluster)
		p.ack(p.any()) // the cluster of a
		p.subscribe(xds.TypeListener)
		p.wantAck("lds")
		p.askBare(xds.TypeNameTable)
		p.quiet()
		p.askBare(xds.TypeProxyConfig)
		p.wantAck("pcds root")
	})
}

// TestBootstrapPatch checks that an agent receives the patches of its bootstrap, also if there are
// none, and that an agent that asks for a whole bootstrap has no answer.
func TestBootstrapPatch(t *testing.T) {
	eachAgent(t, func(t *testing.T, h *harness, p *peer) {
		p.subscribe(xds.TypeBootstrap, node.BootstrapPatch)
		p.wantAck("bds ")
		value, err := structpb.NewStruct(map[string]any{"stats_config": map[string]any{"stats_tags": []any{map[string]any{"tag_name": "team", "fixed_value": "shop"}}}})
		if err != nil {
			t.Fatal(err)
		}
		h.server.Push(snapshotOf(nil, nil, &model.Config{
			Key: model.Key{Kind: model.EnvoyFilter, Namespace: "default", Name: "tags"},
			Spec: &networkingv1alpha3.EnvoyFilter{ConfigPatches: []*networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectPatch{{
				ApplyTo: networkingv1alpha3.EnvoyFilter_BOOTSTRAP, Patch: &networkingv1alpha3.EnvoyFilter_Patch{Operation: networkingv1alpha3.EnvoyFilter_Patch_MERGE, Value: value},
			}}},
		}), model.Change{All: true})
		p.wantAck("bds stats_config")
		other := h.connect(t, p.delta)
		other.subscribe(xds.TypeBootstrap)
		other.quiet()
	})
}
