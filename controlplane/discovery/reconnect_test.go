// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// resume subscribes as a reconnecting proxy does: with the versions of its resources. The value
// "old" marks a resource that has changed since.
func (h *harness) resume(p *peer, typeURL string, have map[string]string, names ...string) {
	p.t.Helper()
	versions := map[string]string{}
	set := h.Generate(nil, nil, typeURL)
	for name, value := range have {
		versions[name] = "0123"
		if res := set.Get(name); res != nil && value != "old" {
			versions[name] = versionOf(res.Hash)
		}
	}
	p.must(&discoveryv3.DeltaDiscoveryRequest{
		Node: p.node, TypeUrl: typeURL, ResourceNamesSubscribe: names, InitialResourceVersions: versions,
	})
}

func reconnected(t *testing.T) (*harness, *peer) {
	t.Helper()
	h := start(t, nil)
	h.set(xds.TypeCluster, map[string]string{"a": "a=1", "b": "b=2"})
	h.set(xds.TypeEndpoint, map[string]string{"a": "ea=1", "b": "eb=1"})
	h.set(xds.TypeListener, map[string]string{"l": "l=1"})
	h.set(xds.TypeRoute, map[string]string{"r": "r=2"})
	h.push()
	return h, h.connect(t, true)
}

// A proxy reconnects and b has changed: Envoy warms the new b with endpoints that arrive after it,
// although it has them. Routes wait for that, and removed clusters stay until the routes are
// accepted.
func TestResumeMakesBeforeItBreaks(t *testing.T) {
	t.Parallel()
	h, p := reconnected(t)
	h.resume(p, xds.TypeCluster, map[string]string{"a": "", "b": "old", "gone": "old"})
	p.want("cds b=2")
	h.resume(p, xds.TypeEndpoint, map[string]string{"a": "", "b": ""}, "a", "b")
	p.wantAck("eds ea=1 eb=1")
	h.resume(p, xds.TypeListener, map[string]string{"l": ""})
	h.resume(p, xds.TypeRoute, map[string]string{"r": "old"}, "r")
	p.quiet() // Envoy acknowledges clusters once they are warm
	p.ack(xds.TypeCluster)
	p.wantAck("rds r=2")
	p.wantAck("cds -gone")
	p.quiet()
}

// Envoy requests clusters first, except when some are warming and wait for endpoints.
func TestResumeWhileWarming(t *testing.T) {
	t.Parallel()
	h, p := reconnected(t)
	h.resume(p, xds.TypeEndpoint, map[string]string{"a": "", "b": ""}, "a", "b")
	p.wantAck("eds ea=1 eb=1")
	h.resume(p, xds.TypeCluster, map[string]string{"a": "", "b": ""})
	p.quiet()
}

func TestResumeSotWSendsEndpointsOfChangedClusters(t *testing.T) {
	t.Parallel()
	h, _ := reconnected(t)
	first := h.connect(t, false)
	first.subscribe(xds.TypeCluster)
	first.wantAck("cds a=1 b=2")
	first.subscribe(xds.TypeEndpoint, "a", "b")
	first.wantAck("eds ea=1 eb=1")
	h.set(xds.TypeCluster, map[string]string{"a": "a=2", "b": "b=2"})
	h.push()

	again := h.connect(t, false)
	again.vers = first.vers
	again.subscribe(xds.TypeCluster)
	again.wantAck("cds a=2 b=2")
	again.vers[xds.TypeEndpoint] = first.vers[xds.TypeEndpoint]
	again.subscribe(xds.TypeEndpoint, "a", "b")
	again.wantAck("eds ea=1 eb=1")
}

// Without delta, endpoints that do not exist are answered with none: Envoy
// would wait for them and acknowledge no clusters. Those that a proxy has are
// left alone, as routes may still lead there.
func TestMissingEndpointsSotW(t *testing.T) {
	t.Parallel()
	h := start(t, nil)
	h.set(xds.TypeEndpoint, map[string]string{"a": "ea=1"})
	h.push()
	p := h.connect(t, false)
	none, err := proto.Marshal(&discoveryv3.Resource{Name: "nobody"}) // the same bytes: a name in field 3 ...
	if err != nil {
		t.Fatal(err)
	}
	none[0] = 1<<3 | 2 // ... moved to field 1
	p.subscribe(xds.TypeEndpoint, "a", "nobody")
	p.wantAck("eds ea=1 " + string(none))
	h.set(xds.TypeEndpoint, nil)
	h.push()
	p.quiet()
	p.nonce[xds.TypeEndpoint] = "" // as before the first response
	p.ack(xds.TypeEndpoint)
	p.wantAck("eds")
	h.set(xds.TypeEndpoint, map[string]string{"nobody": "en=1"})
	h.push()
	p.wantAck("eds en=1")
}

// A proxy that rejects routes keeps the old ones, and the clusters that they
// name.
func TestRejectedRoutesKeepTheirClusters(t *testing.T) {
	each(t, func(_ *testing.T, h *harness, p *peer) {
		initial(p)
		h.set(xds.TypeRoute, map[string]string{"r": "to a"})
		h.push()
		p.wantAck("rds to a")
		h.set(xds.TypeCluster, map[string]string{"b": "b=1"})
		h.set(xds.TypeRoute, map[string]string{"r": "bad"})
		h.push()
		p.want("rds bad")
		detail := &statuspb.Status{Code: 13, Message: "no"}
		if p.delta {
			p.must(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: xds.TypeRoute, ResponseNonce: p.nonce[xds.TypeRoute], ErrorDetail: detail})
		} else {
			// Names that a rejection adds are subscribed to anyway.
			h.set(xds.TypeRoute, map[string]string{"r": "bad", "s": "s=1"})
			h.push()
			p.must(&discoveryv3.DiscoveryRequest{
				TypeUrl: xds.TypeRoute, ResourceNames: []string{"r", "s"}, ResponseNonce: p.nonce[xds.TypeRoute], ErrorDetail: detail,
			})
			p.want("rds s=1")
			return
		}
		p.quiet()
		h.set(xds.TypeRoute, map[string]string{"r": "good"})
		h.push()
		p.wantAck("rds good")
		p.wantAck("cds -a")
	})
}

// overtaken is a Generator that publishes the next snapshot while it makes
// the routes of the one before.
type overtaken struct {
	*table
	server *Server
	next   *snapshot.Mesh
}

func (g *overtaken) Generate(mesh *snapshot.Mesh, proxy *model.Proxy, typeURL string) *xds.Set {
	set := g.table.Generate(mesh, proxy, typeURL)
	if mesh.Sequence != g.next.Sequence && typeURL == xds.TypeRoute {
		g.server.mesh.Store(&published{Mesh: g.next})
	}
	if mesh.Sequence == g.next.Sequence && typeURL == xds.TypeCluster {
		return &xds.Set{} // the next snapshot has no cluster
	}
	return set
}

// All types of one push are of one snapshot: clusters of a newer one could be
// without those that the proxy's routes name.
func TestOnePushOneSnapshot(t *testing.T) {
	t.Parallel()
	g := &overtaken{table: &table{}, next: &snapshot.Mesh{Sequence: 2}}
	g.set(xds.TypeCluster, map[string]string{"a": "a=1"})
	g.set(xds.TypeListener, map[string]string{"l": "l=1"})
	g.set(xds.TypeRoute, map[string]string{"r": "r=1"})
	server, err := New(Config{Generator: g, Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	g.server = server
	var sent int
	st := &stream{
		server: server, proxy: &model.Proxy{}, delta: true, log: server.log, subs: map[string]*subscription{},
		sendMsg: func(any) error { sent++; return nil }, mesh: &published{Mesh: &snapshot.Mesh{Sequence: 1}},
	}
	server.mesh.Store(st.mesh)
	for _, typeURL := range []string{xds.TypeCluster, xds.TypeListener, xds.TypeRoute} {
		sub := newSubscription(typeURL, server.shared)
		sub.wildcard, sub.comparedWith, sub.base = true, g.table.Generate(nil, nil, typeURL), g.table.Generate(nil, nil, typeURL)
		st.subs[typeURL] = sub
	}
	if err := st.push(); err != nil {
		t.Fatal(err)
	}
	if sent != 0 {
		t.Errorf("%d responses sent, want none: nothing changed in the snapshot of the push", sent)
	}
}

// A proxy that reconnects with all current resources is synced, although nothing is sent to it:
// after a restart the control plane knows the state of its proxies as before.
func TestResumedIsSynced(t *testing.T) {
	t.Parallel()
	h, p := reconnected(t)
	h.resume(p, xds.TypeCluster, map[string]string{"a": "", "b": ""})
	h.resume(p, xds.TypeListener, map[string]string{"l": ""})
	h.resume(p, xds.TypeRoute, map[string]string{"r": ""}, "r")
	p.quiet()
	h.wantStates(t, map[string]report.State{xds.TypeCluster: report.Synced, xds.TypeListener: report.Synced, xds.TypeRoute: report.Synced, xds.TypeEndpoint: report.NotSent, xds.TypeExtension: report.NotSent})
}

// TestResumedIsSyncedSotW does the same without delta.
func TestResumedIsSyncedSotW(t *testing.T) {
	t.Parallel()
	h, _ := reconnected(t)
	first := h.connect(t, false)
	first.subscribe(xds.TypeListener)
	first.wantAck("lds l=1")
	first.subscribe(xds.TypeRoute, "r")
	first.wantAck("rds r=2")
	first.leave(h)
	again := h.connect(t, false)
	again.vers = first.vers
	again.subscribe(xds.TypeListener)
	again.subscribe(xds.TypeRoute, "r")
	again.quiet()
	h.wantStates(t, map[string]report.State{xds.TypeListener: report.Synced, xds.TypeRoute: report.Synced, xds.TypeCluster: report.NotSent})
}

// wantStates compares the states of types on the connected proxies.
func (h *harness) wantStates(t *testing.T, want map[string]report.State) {
	t.Helper()
	h.server.mu.Lock()
	defer h.server.mu.Unlock()
	for st := range h.server.streams {
		for typeURL, state := range want {
			if got := st.typeState(typeURL).State(); got != state {
				t.Errorf("%s is %s, want %s", shortType(typeURL), got, state)
			}
		}
	}
}
