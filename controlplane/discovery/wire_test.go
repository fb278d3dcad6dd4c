// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	sotwv3 "github.com/envoyproxy/go-control-plane/pkg/client/sotw/v3"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// TestGoControlPlaneClient receives listeners with go-control-plane's own ADS client: it
// acknowledges, rejects, receives no response until the next change, and resumes on another
// connection.
func TestGoControlPlaneClient(t *testing.T) {
	t.Parallel()
	w := newWireMesh(t, "127.77.171.3")
	conn, err := grpc.NewClient(w.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }() // the test has ended
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	client := sotwv3.NewADSClient(ctx, shopNode(t, nil), xds.TypeListener)
	if err := client.InitConnect(conn); err != nil {
		t.Fatal(err)
	}
	ports := func() (out []uint32) {
		t.Helper()
		r, err := client.Fetch()
		if err != nil {
			t.Fatal(err)
		}
		for _, res := range r.Resources {
			l := &listenerv3.Listener{}
			decode(t, res, l)
			out = append(out, l.GetAddress().GetSocketAddress().GetPortValue())
		}
		return out
	}
	fetch := func(port uint32) {
		t.Helper()
		if got := ports(); len(got) != 1 || got[0] != port {
			t.Fatalf("the listeners have the ports %d, want %d", got, port)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	fetch(15080)
	must(client.Ack())
	w.setPort(15081)
	fetch(15081)
	must(client.Nack("no"))
	w.putOne(model.ServiceEntry, "other", wireService(propertyHost(0), "HTTP", 80)) // changes no listener
	w.setPort(15082)
	for got := []uint32(nil); !slices.Equal(got, []uint32{15082}); must(client.Ack()) {
		// What is rejected may be taken back before there is something new.
		if got = ports(); slices.Contains(got, 15081) {
			t.Fatal("what was rejected is sent again")
		}
	}
	w.restart()
	if _, err := client.Fetch(); !sotwv3.IsConnError(err) {
		t.Fatalf("the control plane is gone, and the client got %v", err)
	}
	// The client sends the nonce of the closed stream, so the server does not rely on its version
	// and may resend its resources.
	must(client.InitConnect(conn, grpc.WaitForReady(true)))
	w.setPort(15083)
	got := ports()
	if slices.Equal(got, []uint32{15082}) {
		must(client.Ack())
		got = ports()
	}
	if !slices.Equal(got, []uint32{15083}) {
		t.Fatalf("the listeners have the ports %d, want 15083", got)
	}
}

// A gRPC client removes clusters or listeners that a response lacks.
func TestWholeStateByName(t *testing.T) {
	t.Parallel()
	for _, typeURL := range []string{xds.TypeCluster, xds.TypeListener} {
		short := shortType(typeURL)
		t.Run(short, func(t *testing.T) {
			t.Parallel()
			h := start(t, nil)
			h.set(typeURL, map[string]string{"a": "a=1", "b": "b=1", "c": "c=1"})
			h.push()
			p := h.connect(t, false)
			p.subscribe(typeURL, "a", "b", "missing")
			p.wantAck(short + " a=1 b=1")
			h.set(typeURL, map[string]string{"a": "a=1", "b": "b=2", "c": "c=2"})
			h.push()
			p.wantAck(short + " a=1 b=2")
			p.more(typeURL, "c")
			p.wantAck(short + " a=1 b=2 c=2")
			h.set(typeURL, map[string]string{"b": "b=2", "c": "c=2"})
			h.push()
			p.wantAck(short + " b=2 c=2")
			h.set(typeURL, map[string]string{"b": "b=2", "c": "c=2", "missing": "m=1"})
			h.push()
			p.wantAck(short + " b=2 c=2 m=1")
			p.quiet()
		})
	}
}

// A request between a snapshot and its push is served from the new snapshot, in its order.
func TestRequestDoesNotOvertake(t *testing.T) {
	each(t, func(_ *testing.T, h *harness, p *peer) {
		p.subscribe(xds.TypeCluster)
		p.wantAck("cds a=1 b=1")
		p.quiet()
		h.set(xds.TypeCluster, map[string]string{"a": "a=1", "b": "b=1", "c": "c=1"})
		h.set(xds.TypeRoute, map[string]string{"r": "r=c"})
		h.server.mesh.Store(&published{Mesh: h.freeze(), since: time.Now()})
		p.subscribe(xds.TypeRoute, "r")
		if p.delta {
			p.want("cds c=1")
		} else {
			p.want("cds a=1 b=1 c=1")
		}
		p.quiet()
		p.ack(xds.TypeCluster)
		p.wantAck("rds r=c")
	})
}

// A proxy that reconnects with current listeners and routes receives the removal of clusters at
// once, because no acknowledgement is pending.
func TestResumeRemovesAtOnce(t *testing.T) {
	t.Parallel()
	h, p := reconnected(t)
	h.resume(p, xds.TypeCluster, map[string]string{"a": "", "b": "", "gone": "old"})
	p.quiet()
	h.resume(p, xds.TypeListener, map[string]string{"l": ""})
	h.resume(p, xds.TypeRoute, map[string]string{"r": ""}, "r")
	p.wantAck("cds -gone")
	p.quiet()
}

// Envoy acknowledges clusters once it has the endpoints of all, including those that were removed
// when it requests them.
func TestEndpointsGoneWhenAskedFor(t *testing.T) {
	t.Parallel()
	h := start(t, nil)
	h.set(xds.TypeEndpoint, map[string]string{"a": "ea=1", "b": "eb=1"})
	h.push()
	p := h.connect(t, false)
	p.subscribe(xds.TypeEndpoint, "a")
	p.wantAck("eds ea=1")
	h.set(xds.TypeEndpoint, map[string]string{"a": "ea=2"})
	h.push()
	p.wantAck("eds ea=2")
	p.more(xds.TypeEndpoint, "b")
	p.wantAck("eds \n\x01b") // the name in field 1, and nothing else
	p.quiet()
}

// TestEndpointsGoneWhileWarming removes a cluster that has just changed while an earlier endpoint
// response is unanswered. Envoy still needs endpoints to warm the changed cluster; until it has
// them, it neither acknowledges clusters nor receives routes to other clusters.
func TestEndpointsGoneWhileWarming(t *testing.T) {
	each(t, func(_ *testing.T, h *harness, p *peer) {
		initial(p)
		h.set(xds.TypeEndpoint, map[string]string{"a": "ea=1", "b": "eb=2"})
		h.push()
		p.want("eds eb=2")
		h.set(xds.TypeCluster, map[string]string{"a": "a=2", "b": "b=1"})
		h.push()
		if p.delta {
			p.want("cds a=2")
		} else {
			p.want("cds a=2 b=1")
		}
		h.set(xds.TypeCluster, map[string]string{"b": "b=1"})
		h.set(xds.TypeEndpoint, map[string]string{"b": "eb=2"})
		h.set(xds.TypeRoute, map[string]string{"r": "to b"})
		h.push()
		p.quiet()
		p.ack(xds.TypeEndpoint)
		p.wantAck("eds ea=1")
		p.quiet()
		p.ack(xds.TypeCluster)
		p.wantAck("rds to b")
		if !p.delta {
			p.wantAck("cds b=1")
		} else {
			p.wantAck("cds -a")
			p.wantAck("eds -a")
		}
		p.quiet()
	})
}

// A proxy no longer has resources that it unsubscribed from, regardless of the version in its
// request, which is that of the last response. Otherwise a listener would wait for its routes
// forever.
func TestAskedAgain(t *testing.T) {
	each(t, func(_ *testing.T, _ *harness, p *peer) {
		initial(p)
		if p.delta {
			p.must(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: xds.TypeRoute, ResourceNamesUnsubscribe: []string{"r"}})
			p.must(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: xds.TypeRoute, ResourceNamesSubscribe: []string{"r"}})
		} else {
			p.names[xds.TypeRoute] = nil
			p.ack(xds.TypeRoute)
			p.names[xds.TypeRoute] = []string{"r"}
			p.ack(xds.TypeRoute)
		}
		p.wantAck("rds r=1")
		p.quiet()
	})
}

// Names are in any number and order, and may be duplicates; the differences between two snapshots
// are found for all of them.
func TestManyNames(t *testing.T) {
	const count = 100_000
	each(t, func(t *testing.T, h *harness, p *peer) {
		names := make([]string, 0, count)
		for i := range count {
			names = append(names, "name-"+versionOf(uint64(i)*0x9e3779b97f4a7c15))
		}
		h.set(xds.TypeEndpoint, map[string]string{names[0]: "first=1", names[count-1]: "last=1"})
		h.push()
		other := h.connect(t, p.delta)
		other.subscribe(xds.TypeEndpoint, names[0])
		other.wantAck("eds first=1")
		p = h.onOwnConnection(t, p.delta)

		began := time.Now()
		p.subscribe(xds.TypeEndpoint, slices.Concat(names, names[:10])...)
		p.ack(p.any())
		h.set(xds.TypeEndpoint, map[string]string{names[0]: "first=2", names[count-1]: "last=1"})
		h.push()
		other.wantAck("eds first=2")
		p.wantAck("eds first=2")
		if p.delta {
			p.must(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: xds.TypeEndpoint, ResourceNamesUnsubscribe: names[:count-1]})
		} else {
			p.names[xds.TypeEndpoint] = names[count-1:]
			p.ack(xds.TypeEndpoint)
		}
		p.quiet()
		if took := time.Since(began); took > 2*time.Minute {
			t.Errorf("a subscription of %d names takes %s", count, took)
		}
		h.set(xds.TypeEndpoint, map[string]string{names[0]: "first=3", names[count-1]: "last=2"})
		h.push()
		other.wantAck("eds first=3")
		p.wantAck("eds last=2")
	})
}

// Unserved types receive no response, because a response without resources would have a proxy drop
// its own. The stream continues to serve the others, regardless of the number of such types, and
// stores none of them.
func TestUnservedTypes(t *testing.T) {
	const count = 2000
	each(t, func(t *testing.T, h *harness, p *peer) {
		for _, typeURL := range []string{
			"type.googleapis.com/envoy.service.runtime.v3.Runtime",
			"type.googleapis.com/envoy.config.route.v3.ScopedRouteConfiguration",
			"type.googleapis.com/istio.workload.Workload",
			"networking.istio.io/v1/ServiceEntry",
			"",
		} {
			p.subscribe(typeURL)
		}
		p.subscribe(xds.TypeCluster)
		p.wantAck("cds a=1 b=1") // and no word of the others
		long := strings.Repeat("x", maxShortText-20)
		for i := range count {
			if p.delta {
				p.must(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: long + versionOf(uint64(i)), ResponseNonce: "1"})
			} else {
				p.must(&discoveryv3.DiscoveryRequest{TypeUrl: long + versionOf(uint64(i)), ResponseNonce: "1"})
			}
		}
		h.set(xds.TypeCluster, map[string]string{"a": "a=2", "b": "b=1"})
		h.push()
		if p.delta {
			p.wantAck("cds a=2")
		} else {
			p.wantAck("cds a=2 b=1")
		}
		p.quiet()
		if got := testutil.ToFloat64(h.server.metrics.unserved); got < count {
			t.Errorf("%.0f requests are counted as not served, want at least %d", got, count)
		}
	})
}
