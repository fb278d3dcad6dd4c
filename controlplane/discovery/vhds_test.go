// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

func withAgent(n *corev3.Node, name string, major, minor uint32) *corev3.Node {
	n.UserAgentName = name
	n.UserAgentVersionType = &corev3.Node_UserAgentBuildVersion{UserAgentBuildVersion: &corev3.BuildVersion{
		Version: &typev3.SemanticVersion{MajorNumber: major, MinorNumber: minor},
	}}
	return n
}

// apart is a generator that separates virtual hosts from routes for proxies with VHDS.
type apart struct{ *table }

func (g apart) Generate(mesh *snapshot.Mesh, proxy *model.Proxy, typeURL string) *xds.Set {
	if typeURL == xds.TypeVirtualHost && (proxy == nil || !proxy.VHDS) {
		return noResources
	}
	return g.table.Generate(mesh, proxy, typeURL)
}

// Only Envoys that are known to support them, over delta, receive virtual hosts as separate
// resources.
func TestWhoHasVHDS(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name         string
		off, delta   bool
		agent        string
		major, minor uint32
		want         string
	}{
		{"envoy", false, true, "envoy", 1, 39, "vhds x=1"},
		{"oldest", false, true, "envoy", 1, 37, "vhds x=1"},
		{"newer", false, true, "envoy", 2, 0, "vhds x=1"},
		{"older", false, true, "envoy", 1, 36, "vhds"},
		{"no version", false, true, "envoy", 0, 0, "vhds"},
		{"another client", false, true, "gRPC Go", 1, 80, "vhds"},
		{"state of the world", false, false, "envoy", 1, 39, "vhds"},
		{"turned off", true, true, "envoy", 1, 39, "vhds"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			h := &harness{table: &table{}}
			h.serve(t, Config{Generator: apart{h.table}, Workers: 2, NoVHDS: tc.off}, nil, insecure.NewCredentials(), insecure.NewCredentials())
			h.set(xds.TypeRoute, map[string]string{"r": "r=1"})
			h.set(xds.TypeVirtualHost, map[string]string{"r/x": "x=1"})
			h.push()
			p := h.connect(t, tc.delta)
			p.node = withAgent(p.node, tc.agent, tc.major, tc.minor)
			p.subscribe(xds.TypeRoute, "r")
			p.wantAck("rds r=1")
			p.subscribe(xds.TypeVirtualHost)
			p.wantAck(tc.want)
			p.quiet()
		})
	}
}

func startHosts(t *testing.T) (*harness, *peer) {
	t.Helper()
	t.Parallel()
	h := start(t, nil)
	h.set(xds.TypeCluster, map[string]string{"a": "a=1"})
	h.set(xds.TypeEndpoint, map[string]string{"a": "ea=1"})
	h.set(xds.TypeListener, map[string]string{"l": "l=1"})
	h.set(xds.TypeRoute, map[string]string{"r": "r=1", "s": "s=1"})
	h.set(xds.TypeVirtualHost, map[string]string{"r/x": "x=1", "r/y": "y=1", "s/z": "z=1"})
	h.push()
	return h, h.newEnvoy(t)
}

func (h *harness) newEnvoy(t *testing.T) *peer {
	t.Helper()
	p := h.connect(t, true)
	p.node = withAgent(p.node, "envoy", 1, 39)
	return p
}

// join sends the requests of an Envoy until it has the hosts of route r.
func (p *peer) joinHosts() {
	p.t.Helper()
	p.subscribe(xds.TypeCluster)
	p.wantAck("cds a=1")
	p.subscribe(xds.TypeListener)
	p.wantAck("lds l=1")
	p.subscribe(xds.TypeRoute, "r")
	p.want("rds r=1")
	p.subscribe(xds.TypeVirtualHost)
	p.quiet() // not before the route is taken
	p.ack(xds.TypeRoute)
	p.wantAck("vhds x=1 y=1")
	p.quiet() // nothing of routes that it did not request
}

// Changed, new and removed virtual hosts are sent without others, together, and after the clusters
// that they may name.
func TestHostsChange(t *testing.T) {
	h, p := startHosts(t)
	p.joinHosts()
	h.set(xds.TypeVirtualHost, map[string]string{"r/x": "x=2", "r/y": "y=1", "s/z": "z=2"})
	h.push()
	p.wantAck("vhds x=2")
	h.set(xds.TypeCluster, map[string]string{"b": "b=1"})
	h.set(xds.TypeVirtualHost, map[string]string{"r/x": "x=3", "r/n": "n=1", "s/z": "z=2"})
	h.push()
	p.want("cds b=1") // a stays as long as a virtual host may name it
	p.quiet()
	p.ack(xds.TypeCluster)
	p.want("vhds n=1 x=3 -r/y")
	p.quiet()
	p.ack(xds.TypeVirtualHost)
	p.wantAck("cds -a")
	p.quiet()
}

// Envoy rejects a response as a whole without naming a resource: its resources are then sent in
// parts.
func TestHostsRefused(t *testing.T) {
	h, p := startHosts(t)
	p.joinHosts()
	h.set(xds.TypeVirtualHost, map[string]string{"r/x": "bad", "r/n": "n=1"})
	h.push()
	p.want("vhds n=1 bad -r/y")
	p.nack(xds.TypeVirtualHost, "Duplicate entry of domain")
	p.wantAck("vhds n=1 -r/y")
	p.want("vhds bad")
	p.nack(xds.TypeVirtualHost, "Duplicate entry of domain")
	p.quiet()
	h.set(xds.TypeListener, map[string]string{"l": "l=2"})
	h.push()
	p.wantAck("lds l=2")
	p.quiet()
	h.set(xds.TypeVirtualHost, map[string]string{"r/x": "x=1", "r/n": "n=1"})
	h.push()
	p.wantAck("vhds x=1") // it has that, and acknowledges it
	h.set(xds.TypeVirtualHost, map[string]string{"r/x": "x=2", "r/n": "n=1"})
	h.push()
	p.wantAck("vhds x=2")
	p.quiet()
}

// Envoy requests virtual hosts once. Those of routes that it requests later, or again, are pushed.
func TestHostsOfLaterRoutes(t *testing.T) {
	h, p := startHosts(t)
	p.joinHosts()
	p.more(xds.TypeRoute, "s")
	p.want("rds s=1")
	p.quiet()
	p.ack(xds.TypeRoute)
	p.wantAck("vhds z=1")
	p.drop(xds.TypeRoute, "s")
	p.wantAck("vhds -s/z") // otherwise it would report later that it has it
	h.set(xds.TypeVirtualHost, map[string]string{"r/x": "x=1", "r/y": "y=1", "s/z": "z=2"})
	h.push()
	p.quiet()
	p.more(xds.TypeRoute, "s")
	p.wantAck("rds s=1")
	p.wantAck("vhds z=2")
	p.more(xds.TypeRoute, "s") // it was unsubscribed and subscribed in one request
	p.wantAck("rds s=1")
	p.wantAck("vhds z=2")
	p.quiet()
}

// drop unsubscribes from a name.
func (p *peer) drop(typeURL, name string) {
	p.t.Helper()
	p.must(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResourceNamesUnsubscribe: []string{name}})
}

// The hosts of a removed route stay while its listener drains.
func TestHostsOfDrainingListener(t *testing.T) {
	h, p := startHosts(t)
	p.joinHosts()
	h.set(xds.TypeListener, map[string]string{"m": "m=1"})
	h.set(xds.TypeRoute, map[string]string{"s": "s=1"})
	h.set(xds.TypeVirtualHost, map[string]string{"s/z": "z=1"})
	h.push()
	p.wantAck("lds m=1 -l")
	p.wantAck("rds -r")
	p.quiet()
	p.more(xds.TypeRoute, "s")
	p.wantAck("rds s=1")
	p.wantAck("vhds z=1")
	p.drop(xds.TypeRoute, "r")
	p.wantAck("vhds -r/x -r/y")
	p.quiet()
}

// A proxy that reconnects receives the changes since, and nothing else.
func TestHostsResume(t *testing.T) {
	h, p := startHosts(t)
	h.resume(p, xds.TypeCluster, map[string]string{"a": ""})
	h.resume(p, xds.TypeListener, map[string]string{"l": ""})
	h.resume(p, xds.TypeRoute, map[string]string{"r": ""}, "r")
	h.resume(p, xds.TypeVirtualHost, map[string]string{"r/x": "", "r/y": "old", "r/gone": "old"})
	p.wantAck("vhds y=1 -r/gone")
	p.quiet()
}

func TestHostsResumeUnchanged(t *testing.T) {
	h, p := startHosts(t)
	h.resume(p, xds.TypeRoute, map[string]string{"r": ""}, "r")
	h.resume(p, xds.TypeVirtualHost, map[string]string{"r/x": "", "r/y": ""})
	p.quiet()
	h.set(xds.TypeVirtualHost, map[string]string{"r/x": "x=2", "r/y": "y=1"})
	h.push()
	p.wantAck("vhds x=2")
	p.quiet()
}

// Virtual hosts that a proxy reports for a route that it does not have count as missing: it
// received them before the route. It must not continue to report them.
func TestHostsResumeWithoutRoute(t *testing.T) {
	h, p := startHosts(t)
	h.resume(p, xds.TypeRoute, nil, "r")
	p.want("rds r=1")
	h.resume(p, xds.TypeVirtualHost, map[string]string{"r/x": "", "r/gone": "old", "s/z": ""})
	p.quiet()
	p.ack(xds.TypeRoute)
	p.wantAck("vhds x=1 y=1 -r/gone -s/z")
	p.quiet()
}

// Virtual hosts may be requested before the routes: those that the proxy has are not affected.
func TestHostsResumeBeforeRoutes(t *testing.T) {
	h, p := startHosts(t)
	h.resume(p, xds.TypeVirtualHost, map[string]string{"r/x": "", "r/y": "old"})
	p.quiet()
	h.resume(p, xds.TypeRoute, map[string]string{"r": ""}, "r")
	p.wantAck("vhds y=1")
	p.quiet()
}

// A proxy that reconnects with virtual hosts to a control plane that sends none keeps them until
// its listener uses other routes.
func TestHostsResumeWhereThereAreNone(t *testing.T) {
	h, p := startHosts(t)
	h.set(xds.TypeListener, map[string]string{"l": "l=2"})
	h.set(xds.TypeRoute, map[string]string{"whole": "whole=1"})
	h.set(xds.TypeVirtualHost, nil)
	h.push()
	h.resume(p, xds.TypeListener, map[string]string{"l": "old"})
	p.wantAck("lds l=2")
	h.resume(p, xds.TypeRoute, map[string]string{"r": "old"}, "r")
	p.wantAck("rds -r")
	h.resume(p, xds.TypeVirtualHost, map[string]string{"r/x": "old"})
	p.quiet()
	p.more(xds.TypeRoute, "whole")
	p.wantAck("rds whole=1")
	p.quiet()
	p.drop(xds.TypeRoute, "r")
	p.wantAck("vhds -r/x")
	p.quiet()
}
