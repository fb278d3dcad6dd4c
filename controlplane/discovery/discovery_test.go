// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"context"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// A proxy subscribes as Envoy does and has everything.
func initial(p *peer) {
	p.t.Helper()
	p.subscribe(xds.TypeCluster)
	p.wantAck("cds a=1 b=1")
	p.subscribe(xds.TypeEndpoint, "a", "b")
	p.wantAck("eds ea=1 eb=1")
	p.subscribe(xds.TypeListener)
	p.wantAck("lds l=1")
	p.subscribe(xds.TypeRoute, "r")
	p.wantAck("rds r=1")
	p.quiet() // the answers were read
}

func TestOnlyWhatChangedIsSent(t *testing.T) {
	each(t, func(_ *testing.T, h *harness, p *peer) {
		initial(p)
		p.quiet()
		h.push() // nothing changed
		p.quiet()
		h.set(xds.TypeRoute, map[string]string{"r": "r=2", "not asked for": "x"})
		h.set(xds.TypeEndpoint, map[string]string{"a": "ea=2", "b": "eb=1"})
		h.push()
		p.wantAck("eds ea=2")
		p.wantAck("rds r=2")
		p.quiet()
	})
}

func TestClustersComeAndGo(t *testing.T) {
	each(t, func(_ *testing.T, h *harness, p *peer) {
		initial(p)
		h.set(xds.TypeCluster, map[string]string{"b": "b=1", "c": "c=1"})
		h.set(xds.TypeEndpoint, map[string]string{"b": "eb=1", "c": "ec=1"})
		h.push()
		if p.delta {
			p.wantAck("cds c=1 -a")
			p.wantAck("eds -a")
		} else {
			p.wantAck("cds b=1 c=1") // missing resources are removed
		}
		p.more(xds.TypeEndpoint, "c")
		p.wantAck("eds ec=1")
		p.quiet()
	})
}

// A cluster stays until the routes that named it are removed.
func TestRoutesGoBeforeTheirClusters(t *testing.T) {
	each(t, func(_ *testing.T, h *harness, p *peer) {
		initial(p)
		h.set(xds.TypeCluster, map[string]string{"b": "b=2"})
		h.set(xds.TypeEndpoint, map[string]string{"b": "eb=1"})
		h.set(xds.TypeRoute, map[string]string{"r": "r=2"})
		h.push()
		if p.delta {
			p.wantAck("cds b=2")
		} else {
			p.wantAck("cds a=1 b=2")
		}
		p.wantAck("eds eb=1")
		p.want("rds r=2")
		p.quiet()
		p.ack(xds.TypeRoute)
		if p.delta {
			p.wantAck("cds -a")
			p.wantAck("eds -a")
		} else {
			p.wantAck("cds b=2")
		}
		p.quiet()
	})
}

// Envoy warms a changed cluster with endpoints that arrive after it, so they are sent again
// although their bytes are the same.
func TestChangedClusterGetsItsEndpointsAgain(t *testing.T) {
	each(t, func(_ *testing.T, h *harness, p *peer) {
		initial(p)
		h.set(xds.TypeCluster, map[string]string{"a": "a=2", "b": "b=1"})
		h.push()
		if p.delta {
			p.wantAck("cds a=2")
		} else {
			p.wantAck("cds a=2 b=1")
		}
		p.wantAck("eds ea=1")
		p.quiet()
	})
}

// Routes wait until the clusters that they may name are acknowledged.
func TestRoutesWaitForClusters(t *testing.T) {
	each(t, func(_ *testing.T, h *harness, p *peer) {
		initial(p)
		h.set(xds.TypeCluster, map[string]string{"a": "a=1", "b": "b=1", "c": "c=1"})
		h.set(xds.TypeRoute, map[string]string{"r": "r=2"})
		h.push()
		if p.delta {
			p.want("cds c=1")
		} else {
			p.want("cds a=1 b=1 c=1")
		}
		p.quiet()
		p.ack(xds.TypeCluster)
		p.wantAck("rds r=2")
	})
}

// While a response is unacknowledged, changes merge: the proxy receives only the newest state.
func TestOneResponseInFlight(t *testing.T) {
	each(t, func(_ *testing.T, h *harness, p *peer) {
		initial(p)
		for _, v := range []string{"r=2", "r=3", "r=4"} {
			h.set(xds.TypeRoute, map[string]string{"r": v})
			h.push()
			if v == "r=2" {
				p.want("rds r=2")
			}
		}
		p.quiet()
		p.ack(xds.TypeRoute)
		p.wantAck("rds r=4")
		p.quiet()
	})
}

// A rejected response is not sent again until something changes.
func TestRejection(t *testing.T) {
	each(t, func(_ *testing.T, h *harness, p *peer) {
		initial(p)
		h.set(xds.TypeListener, map[string]string{"l": "bad"})
		h.push()
		p.want("lds bad")
		detail := &statuspb.Status{Code: 13, Message: "cannot bind"}
		if p.delta {
			p.must(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: xds.TypeListener, ResponseNonce: p.nonce[xds.TypeListener], ErrorDetail: detail})
		} else {
			p.must(&discoveryv3.DiscoveryRequest{TypeUrl: xds.TypeListener, ResponseNonce: p.nonce[xds.TypeListener], ErrorDetail: detail})
		}
		p.quiet()
		h.push()
		p.quiet()
		h.set(xds.TypeListener, map[string]string{"l": "good"})
		h.push()
		p.wantAck("lds good")
	})
}

// An answer to an older response changes nothing.
func TestStaleNonce(t *testing.T) {
	each(t, func(_ *testing.T, h *harness, p *peer) {
		initial(p)
		h.set(xds.TypeRoute, map[string]string{"r": "r=2"})
		h.push()
		p.want("rds r=2")
		last := p.nonce[xds.TypeRoute]
		p.nonce[xds.TypeRoute] = "0"
		p.ack(xds.TypeRoute)
		h.set(xds.TypeRoute, map[string]string{"r": "r=3"})
		h.push()
		p.quiet()
		p.nonce[xds.TypeRoute] = last
		p.ack(xds.TypeRoute)
		p.wantAck("rds r=3")
	})
}

// A proxy that reconnects with current resources does not receive them again.
func TestResumeSotW(t *testing.T) {
	t.Parallel()
	h := start(t, nil)
	h.set(xds.TypeCluster, map[string]string{"a": "a=1"})
	h.set(xds.TypeEndpoint, map[string]string{"a": "ea=1", "b": "eb=1"})
	h.push()
	first := h.connect(t, false)
	first.subscribe(xds.TypeCluster)
	first.wantAck("cds a=1")
	first.subscribe(xds.TypeEndpoint, "a")
	first.wantAck("eds ea=1")

	again := h.connect(t, false)
	again.vers = first.vers
	again.subscribe(xds.TypeCluster)
	again.subscribe(xds.TypeEndpoint, "a")
	again.quiet()
	h.set(xds.TypeCluster, map[string]string{"a": "a=2"})
	h.push()
	again.wantAck("cds a=2")
	again.wantAck("eds ea=1")

	other := h.connect(t, false)
	other.vers = first.vers
	other.subscribe(xds.TypeEndpoint, "a", "b") // the version is not for these names
	other.wantAck("eds ea=1 eb=1")
}

func TestResumeDelta(t *testing.T) {
	t.Parallel()
	h := start(t, nil)
	h.set(xds.TypeCluster, map[string]string{"a": "a=1", "b": "b=2"})
	h.set(xds.TypeEndpoint, map[string]string{"a": "ea=1", "b": "eb=2"})
	h.push()
	version := func(typeURL, name string) string {
		return versionOf(h.Generate(nil, nil, typeURL).Get(name).Hash)
	}
	p := h.connect(t, true)
	p.must(&discoveryv3.DeltaDiscoveryRequest{
		Node: p.node, TypeUrl: xds.TypeCluster,
		InitialResourceVersions: map[string]string{"a": version(xds.TypeCluster, "a"), "b": "old", "gone": "1"},
	})
	p.wantAck("cds b=2 -gone")
	p.quiet()
}

// Requested resources that do not exist are reported once.
func TestDeltaMissing(t *testing.T) {
	t.Parallel()
	h := start(t, nil)
	h.set(xds.TypeEndpoint, map[string]string{"a": "ea=1"})
	h.push()
	p := h.connect(t, true)
	p.subscribe(xds.TypeEndpoint, "a", "nobody")
	p.wantAck("eds ea=1 -nobody")
	h.push()
	p.quiet()
	h.set(xds.TypeEndpoint, map[string]string{"a": "ea=1", "nobody": "en=1"})
	h.push()
	p.wantAck("eds en=1")
	p.must(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: xds.TypeEndpoint, ResourceNamesUnsubscribe: []string{"a"}})
	p.quiet() // it was read
	h.set(xds.TypeEndpoint, map[string]string{"a": "ea=2", "nobody": "en=1"})
	h.push()
	p.quiet()
}

func TestUnsubscribeSotW(t *testing.T) {
	t.Parallel()
	h := start(t, nil)
	h.set(xds.TypeEndpoint, map[string]string{"a": "ea=1"})
	h.push()
	p := h.connect(t, false)
	p.subscribe(xds.TypeEndpoint, "a")
	p.wantAck("eds ea=1")
	p.names[xds.TypeEndpoint] = nil
	p.ack(xds.TypeEndpoint)
	p.quiet() // it was read
	h.set(xds.TypeEndpoint, map[string]string{"a": "ea=2"})
	h.push()
	p.quiet()
}

// fixed is an Authenticator with one answer.
type fixed struct {
	caller *authn.Caller
	err    error
}

func (f fixed) Authenticate(context.Context) (*authn.Caller, error) { return f.caller, f.err }

func TestRefusals(t *testing.T) {
	t.Parallel()
	shop := fixed{caller: &authn.Caller{ID: certs.ID{TrustDomain: "cluster.local", Namespace: "default", ServiceAccount: "shop"}}}
	for name, tc := range map[string]struct {
		auth authn.Authenticator
		id   string
		meta map[string]any
		idle bool // no snapshot yet
		code codes.Code
		says string
	}{
		"welcome":               {auth: shop, code: codes.OK},
		"not ready":             {idle: true, code: codes.Unavailable, says: "still loading"},
		"nobody":                {auth: fixed{err: authn.ErrUnauthenticated}, code: codes.Unauthenticated},
		"other namespace":       {auth: shop, meta: map[string]any{"NAMESPACE": "bank"}, code: codes.PermissionDenied, says: `claims the namespace "bank"`},
		"other service account": {auth: shop, meta: map[string]any{"SERVICE_ACCOUNT": "root"}, code: codes.PermissionDenied, says: `"root"`},
		"no node id":            {id: "-", code: codes.InvalidArgument, says: "node.id"},
		"bad node id":           {id: "sidecar~127.0.0.1", code: codes.InvalidArgument, says: "2 parts"},
		"gateway":               {id: "router~127.0.0.1~a.default~c", meta: map[string]any{"INTERCEPTION_MODE": ""}, code: codes.OK},
		"gateway of another":    {auth: shop, id: "router~127.0.0.1~a.b~c", meta: map[string]any{"NAMESPACE": "bank"}, code: codes.PermissionDenied, says: "bank"},
		"waypoint":              {id: "waypoint~127.0.0.1~a.b~c", code: codes.FailedPrecondition, says: `"waypoint"`},
		"interception":          {meta: map[string]any{"INTERCEPTION_MODE": "TCP"}, code: codes.FailedPrecondition, says: "ISTIO_META_INTERCEPTION_MODE"},
		"bad metadata":          {meta: map[string]any{"HTTP_PROXY_PORT": "many"}, code: codes.InvalidArgument, says: `"many"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := start(t, tc.auth)
			if !tc.idle {
				h.push()
			}
			p := h.connect(t, false)
			p.node = shopNode(t, tc.meta)
			switch tc.id {
			case "":
			case "-":
				p.node = nil
			default:
				p.node.Id = tc.id
			}
			// The stream may be refused before the request is sent.
			err := p.send(&discoveryv3.DiscoveryRequest{Node: p.node, TypeUrl: xds.TypeCluster})
			if tc.code == codes.OK {
				if err != nil {
					t.Fatal(err)
				}
				p.want("cds")
				return
			}
			for range p.got { // until the stream ends
				t.Error("got a response")
			}
			err, _ = p.err.Load().(error)
			if status.Code(err) != tc.code || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("stream ended with %v, want %s that says %q", err, tc.code, tc.says)
			}
		})
	}
}
