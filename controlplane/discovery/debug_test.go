// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	grpccredentials "google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery/debug"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery/debug/debugtest"
	"github.com/outrigger-mesh/outrigger/controlplane/generate"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// turns authenticates each caller as the one that the test sets.
type turns struct{ now atomic.Pointer[authn.Caller] }

func (a *turns) Authenticate(context.Context) (*authn.Caller, error) { return a.now.Load(), nil }

// debugHarness is a server with real content, and an identity for each stream.
type debugHarness struct {
	*harness
	auth  *turns
	delta bool
}

func startDebug(t *testing.T, delta bool) *debugHarness {
	t.Helper()
	h := &debugHarness{harness: &harness{}, auth: &turns{}, delta: delta}
	root := mint(t, "root")
	server, client := root.issue(t, "server").tls(root)
	h.serve(t, Config{Generator: generate.New(generate.Config{}), Workers: 2}, h.auth, grpccredentials.NewTLS(server), grpccredentials.NewTLS(client))
	h.server.Push(snapshotOf(nil, nil, debugtest.External("a", "240.0.0.1")), model.Change{All: true})
	return h
}

// join connects a proxy of a namespace and waits until it has its clusters.
func (h *debugHarness) join(t *testing.T, name, namespace string) *peer {
	t.Helper()
	return h.joinWith(t, name, namespace, "NONE")
}

// joinWith is join for a proxy that intercepts connections in a mode.
func (h *debugHarness) joinWith(t *testing.T, name, namespace, mode string) *peer {
	t.Helper()
	return h.joinAs(t, fmt.Sprintf("sidecar~127.1.0.2~%s.%s~%s.svc.cluster.local", name, namespace, namespace), namespace, mode)
}

// joinAs is joinWith for a proxy with an id.
func (h *debugHarness) joinAs(t *testing.T, id, namespace, mode string) *peer {
	t.Helper()
	h.auth.now.Store(&authn.Caller{ID: certs.ID{TrustDomain: "cluster.local", Namespace: namespace, ServiceAccount: "shop"}})
	p := h.connect(t, h.delta)
	p.node = shopNode(t, map[string]any{"NAMESPACE": namespace, "CLUSTER_ID": "here", "INTERCEPTION_MODE": mode})
	p.node.Id = id
	p.describer = func(*testing.T, *anypb.Any) string { return "" }
	p.subscribe(xds.TypeCluster)
	p.any()
	return p
}

// question sends a query as an agent does, and returns the response.
func (p *peer) question(typeURL string, names ...string) []*anypb.Any {
	p.t.Helper()
	if p.delta {
		p.must(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResourceNamesSubscribe: names})
	} else {
		p.must(&discoveryv3.DiscoveryRequest{TypeUrl: typeURL, ResourceNames: names})
	}
	var m proto.Message
	select {
	case m = <-p.got:
	case <-time.After(2 * time.Minute):
	}
	var out []*anypb.Any
	switch r := m.(type) {
	case *discoveryv3.DiscoveryResponse:
		if r.TypeUrl != typeURL {
			p.t.Fatalf("got %v", r)
		}
		return r.Resources
	case *discoveryv3.DeltaDiscoveryResponse:
		if r.TypeUrl != typeURL {
			p.t.Fatalf("got %v", r)
		}
		for _, res := range r.Resources {
			out = append(out, res.Resource)
		}
		return out
	}
	p.t.Fatalf("no answer to %s %v: %v", typeURL, names, p.err.Load())
	return nil
}

// body returns a response in JSON.
func (p *peer) body(names ...string) string {
	p.t.Helper()
	all := p.question(debug.Type, names...)
	if len(all) != 1 || all[0].TypeUrl != debug.Type || !json.Valid(all[0].Value) {
		p.t.Fatalf("%v: got %v", names, all)
	}
	return string(all[0].Value)
}

func eachDebug(t *testing.T, test func(t *testing.T, h *debugHarness)) {
	t.Helper()
	t.Parallel()
	for name, delta := range map[string]bool{"sotw": false, "delta": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, startDebug(t, delta))
		})
	}
}

// TestDebugSyncz follows a proxy from its first response to its answers.
func TestDebugSyncz(t *testing.T) {
	eachDebug(t, func(t *testing.T, h *debugHarness) {
		p := h.join(t, "shop", "default")
		status := func() string {
			var c statusv3.ClientConfig
			all := p.question(debug.Type + "/syncz")
			if len(all) != 1 {
				t.Fatalf("got %v", all)
			}
			if err := all[0].UnmarshalTo(&c); err != nil {
				t.Fatal(err)
			}
			if c.Node.Id != "shop.default" || c.Node.Metadata.Fields["CLUSTER_ID"].GetStringValue() != "here" {
				t.Errorf("node %v", c.Node)
			}
			var words []string
			for _, x := range c.GenericXdsConfigs {
				words = append(words, shortType(x.TypeUrl)+"="+x.ConfigStatus.String())
			}
			return strings.Join(words, " ")
		}
		const others = " eds=NOT_SENT ecds=NOT_SENT lds=NOT_SENT rds=NOT_SENT"
		if got := status(); got != "cds=STALE"+others {
			t.Errorf("before the answer: %s", got)
		}
		p.nack(xds.TypeCluster, "Error adding/updating cluster(s) BlackHoleCluster: no such thing, outbound|80||a.example.com: no such thing")
		if got := status(); got != "cds=ERROR"+others {
			t.Errorf("after the rejection: %s", got)
		}
		if text := p.body("syncz"); !strings.Contains(text, `"cds": "code 13: Error adding/updating cluster(s) BlackHoleCluster: no such thing, `) || !strings.Contains(text, `"cluster_sent"`) {
			t.Errorf("got %s", text)
		}
		h.server.Push(snapshotOf(nil, nil, debugtest.External("b", "240.0.0.2")), model.Change{All: true})
		p.ack(p.any())
		if got := status(); got != "cds=SYNCED"+others {
			t.Errorf("after the answer: %s", got)
		}
	})
}

// TestDebugContent checks the configuration that a proxy should have.
func TestDebugContent(t *testing.T) {
	eachDebug(t, func(t *testing.T, h *debugHarness) {
		h.join(t, "other", "default")
		p := h.join(t, "shop", "default")
		for _, names := range [][]string{nil, {"other.default"}} {
			all := p.question(debug.Type+"/config_dump", names...)
			if len(all) != 5 {
				t.Fatalf("%v: got %d parts", names, len(all))
			}
			var clusters adminv3.ClustersConfigDump
			if err := all[0].UnmarshalTo(&clusters); err != nil || len(clusters.DynamicActiveClusters) == 0 || clusters.VersionInfo == "" {
				t.Errorf("%v: clusters %v, %v", names, &clusters, err)
			}
		}
		for name, want := range map[string]string{
			"config_dump?proxyID=other.default": `"type.googleapis.com/envoy.admin.v3.ClustersConfigDump"`,
			"config_dump":                       `a.example.com`,
			"ndsz":                              `"a.example.com"`,
			"/ndsz?proxyID=shop.default":        `240.0.0.1`,
			"edsz":                              `127.77.54.9`,
			"connections":                       `"totalClients": 2`,
			"list":                              `"config_dump"`,
		} {
			if got := p.body(name); !strings.Contains(got, want) {
				t.Errorf("%s: %s lacks %s", name, got, want)
			}
		}
		// The stream continues, and an acknowledgement causes no response.
		p.must(answerTo(h.delta))
		p.ack(xds.TypeCluster)
		h.server.Push(snapshotOf(nil, nil, debugtest.External("b", "240.0.0.2")), model.Change{All: true})
		if got := p.any(); got != xds.TypeCluster {
			t.Errorf("got %s", got)
		}
	})
}

func answerTo(delta bool) proto.Message {
	if delta {
		return &discoveryv3.DeltaDiscoveryRequest{TypeUrl: debug.Type, ResponseNonce: "1"}
	}
	return &discoveryv3.DiscoveryRequest{TypeUrl: debug.Type, ResponseNonce: "1", ResourceNames: []string{"list"}}
}

// TestDebugAccess sends queries of workloads about those of other namespaces.
func TestDebugAccess(t *testing.T) {
	eachDebug(t, func(t *testing.T, h *debugHarness) {
		h.join(t, "vault", "bank")
		p := h.join(t, "shop", "default")
		root := h.join(t, "op", "istio-system")
		for name, want := range map[string]string{
			"config_dump?proxyID=vault.bank": "no proxy", "ndsz?proxyID=vault.bank": "no proxy", "edsz?proxyID=vault.bank": "no proxy",
			"registryz": "for callers of the namespace istio-system", "mesh": "istio-system", "configz": "istio-system", "endpointz": "istio-system",
			"adsz?push=true": "a push is for callers", "explain?kind=VirtualService&namespace=bank&name=x": "the object is in the namespace", "explain?proxyID=vault.bank": "no proxy", "push_status": "istio-system",
			"nonsense": "it must be one of: adsz, analyze, changes, clusterz, config_distribution", "": "it must be one of", "%zz": "cannot be read",
			strings.Repeat("x", 1<<10+1): "at most 1024 are allowed",
		} {
			if got := p.body(name); !strings.Contains(got, `"error": `) || !strings.Contains(got, want) {
				t.Errorf("%.40s: got %s, want an error with %q", name, got, want)
			}
		}
		if got := p.body("list", "mesh"); !strings.Contains(got, "one query") {
			t.Errorf("two questions: %s", got)
		}
		if got := p.question(debug.Type+"/config_dump", "vault.bank"); len(got) != 1 || !strings.Contains(string(got[0].Value), "no proxy") {
			t.Errorf("got %v", got)
		}
		for _, name := range []string{"syncz", "connections"} {
			if got := p.body(name); strings.Contains(got, "bank") || !strings.Contains(got, "shop.default") {
				t.Errorf("%s: %s", name, got)
			}
			if got := root.body(name); !strings.Contains(got, "vault.bank") || !strings.Contains(got, "shop.default") {
				t.Errorf("%s of root: %s", name, got)
			}
		}
		for name, want := range map[string]string{
			"config_dump?proxyID=vault.bank": "a.example.com", "registryz": "a.example.com", "push_status": "[]", "mesh": "{",
		} {
			if got := root.body(name); !strings.Contains(got, want) || strings.Contains(got, `"error"`) {
				t.Errorf("%s of root: %s", name, got)
			}
		}
	})
}

// TestDebugLimit sends more queries than a user does.
func TestDebugLimit(t *testing.T) {
	eachDebug(t, func(t *testing.T, h *debugHarness) {
		p := h.join(t, "shop", "default")
		refused := 0
		for range 3 * debug.Burst {
			if strings.Contains(p.body("list"), "too many queries") {
				refused++
			}
		}
		if refused == 0 {
			t.Error("all queries were answered, want some refused")
		}
	})
}

// TestDebugNeedsIdentity sends a query on an unauthenticated stream.
func TestDebugNeedsIdentity(t *testing.T) {
	t.Parallel()
	for name, auth := range map[string]authn.Authenticator{"anybody": nil, "in the clear": gatewayCaller} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := &harness{table: &table{}}
			h.serve(t, Config{Generator: h.table, Workers: 1}, auth, insecure.NewCredentials(), insecure.NewCredentials())
			h.push()
			p := h.connect(t, false)
			p.node = &corev3.Node{Id: "router~127.77.54.2~gateway-1.default~default.svc.cluster.local"}
			p.subscribe(xds.TypeCluster)
			p.any()
			if got := p.body("syncz"); !strings.Contains(got, "connect to the port with TLS") {
				t.Errorf("got %s", got)
			}
		})
	}
}
