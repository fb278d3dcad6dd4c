// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"fmt"
	"math"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"github.com/google/go-cmp/cmp"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/registry"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// clusters are the services of a test platform.
type clusters []*registry.PlatformService

func (c clusters) Services() []*registry.PlatformService { return c }

func (c clusters) Service(namespace, name string) *registry.PlatformService {
	for _, s := range c {
		if s.Service.Namespace == namespace && s.Name == name {
			return s
		}
	}
	return nil
}

func (clusters) Pods(string, string) []*registry.Workload { return nil }

// serving returns a service of a platform.
func serving(host string, change func(*model.Service), endpoints ...*model.Endpoint) *registry.PlatformService {
	name, rest, _ := strings.Cut(host, ".")
	namespace, _, _ := strings.Cut(rest, ".")
	s := kubeService(host, namespace, "10.96.0.1")
	if change != nil {
		change(s)
	}
	for _, e := range endpoints {
		e.Port, e.ServicePort, e.Namespace, e.Weight = 8080, 80, namespace, max(e.Weight, 1)
	}
	return &registry.PlatformService{Name: name, Service: s, Endpoints: registry.SortEndpoints(endpoints)}
}

// at returns an endpoint that supports mutual TLS.
func at(address, cluster, network string) *model.Endpoint {
	return &model.Endpoint{Address: address, Cluster: cluster, Network: network, ServiceAccount: "a", MutualTLS: true}
}

// showEndpoints formats the endpoints of a cluster as address*weight with flags.
func showEndpoints(t *testing.T, set *xds.Set, name string) string {
	t.Helper()
	r := set.Get(name)
	if r == nil {
		return "none"
	}
	cla := unpack(t, r).(*endpointv3.ClusterLoadAssignment)
	var out []string
	for _, group := range cla.GetEndpoints() {
		if l := group.GetLocality(); l.GetRegion() != "" {
			out = append(out, fmt.Sprintf("%s*%d:", l.GetZone(), group.GetLoadBalancingWeight().GetValue()))
		}
		for _, e := range group.GetLbEndpoints() {
			text := e.GetEndpoint().GetAddress().GetSocketAddress().GetAddress()
			if pipe := e.GetEndpoint().GetAddress().GetPipe(); pipe != nil {
				text = pipe.GetPath()
			}
			if port := e.GetEndpoint().GetAddress().GetSocketAddress().GetPortValue(); port != 8080 && port != 0 {
				text += fmt.Sprint(":", port)
			}
			if w := e.GetLoadBalancingWeight().GetValue(); w != 1 {
				text += fmt.Sprint("*", w)
			}
			if e.GetMetadata() == nil {
				text += " plain"
			}
			if e.GetHealthStatus() == corev3.HealthStatus_DRAINING {
				text += " draining"
			}
			out = append(out, text)
		}
	}
	return strings.Join(out, " ")
}

// unexported returns an endpoint that only clients of its cluster discover.
func unexported(e *model.Endpoint) *model.Endpoint {
	e.Unexported = true
	return e
}

func networkAt(address string, port uint32) *meshv1alpha1.Network {
	return &meshv1alpha1.Network{Gateways: []*meshv1alpha1.Network_IstioNetworkGateway{
		{Port: port, Gw: &meshv1alpha1.Network_IstioNetworkGateway_Address{Address: address}},
	}}
}

// placed returns a proxy at a location.
func placed(change func(*model.Proxy)) *model.Proxy {
	p := proxyAt("10.0.0.9")
	p.ClusterID = "c1"
	change(p)
	return p
}

const webCluster = "outbound|80||web.shop.svc.cluster.local"

// TestEndpointsByPlace compares the endpoints of one service for proxies at different locations.
func TestEndpointsByPlace(t *testing.T) {
	t.Parallel()
	const web = "web.shop.svc.cluster.local"
	nodes := func() []*model.Endpoint {
		one, two := at("10.0.0.1", "c1", ""), at("10.0.0.2", "c1", "")
		one.Node, two.Node = "n1", "n2"
		return []*model.Endpoint{one, two}
	}
	remote := func() []*model.Endpoint {
		one, two, three, plain := at("10.0.0.1", "c1", "east"), at("10.0.0.1", "c2", "west"), at("10.0.0.2", "c2", "west"), at("10.0.0.3", "c2", "west")
		three.Weight, plain.MutualTLS = 2, false
		return []*model.Endpoint{one, two, three, plain, at("10.0.0.4", "c3", "north"), at("10.0.0.5", "c2", "")}
	}
	for name, c := range map[string]struct {
		services clusters
		gateways map[string]*meshv1alpha1.Network
		config   string
		proxy    func(*model.Proxy)
		objects  string
		want     string
	}{
		"any node":                          {services: clusters{serving(web, nil, nodes()...)}, proxy: func(p *model.Proxy) { p.Node = "n2" }, want: "10.0.0.1 10.0.0.2"},
		"own node":                          {services: clusters{serving(web, func(s *model.Service) { s.NodeLocal = true }, nodes()...)}, proxy: func(p *model.Proxy) { p.Node = "n2" }, want: "10.0.0.2"},
		"the node of its address":           {services: clusters{serving(web, func(s *model.Service) { s.NodeLocal = true }, nodes()...)}, proxy: func(p *model.Proxy) { p.IPs = []string{"10.0.0.2"} }, want: "10.0.0.2"},
		"the node of its address elsewhere": {services: clusters{serving(web, func(s *model.Service) { s.NodeLocal = true }, nodes()...)}, proxy: func(p *model.Proxy) { p.IPs, p.ClusterID = []string{"10.0.0.2"}, "c2" }, want: ""},
		"the network of its address":        {services: clusters{serving(web, nil, remote()...)}, gateways: map[string]*meshv1alpha1.Network{"west": networkAt("192.0.2.1", 15443)}, proxy: func(p *model.Proxy) { p.IPs = []string{"10.0.0.1"} }, want: "10.0.0.1 10.0.0.4 10.0.0.5 192.0.2.1:15443*3"},
		"an unknown node":                   {services: clusters{serving(web, func(s *model.Service) { s.NodeLocal = true }, nodes()...)}, want: ""},
		"own cluster": {
			services: clusters{serving(web, nil, at("10.0.0.1", "c1", ""), at("10.0.0.2", "c2", ""), at("10.0.0.3", "", ""))},
			config:   `serviceSettings: [{settings: {clusterLocal: true}, hosts: ["*.shop.svc.cluster.local"]}]`, want: "10.0.0.1 10.0.0.3",
		},
		"exported endpoints": {
			services: clusters{serving(web, nil, unexported(at("10.0.0.1", "c1", "")), at("10.0.0.2", "c2", ""), unexported(at("10.0.0.3", "c3", "")), unexported(at("10.0.0.4", "", "")))},
			want:     "10.0.0.1 10.0.0.2 10.0.0.4",
		},
		"exported endpoints, elsewhere": {
			services: clusters{serving(web, nil, unexported(at("10.0.0.1", "c1", "")), at("10.0.0.2", "c2", ""), unexported(at("10.0.0.3", "c3", "")))},
			proxy:    func(p *model.Proxy) { p.ClusterID = "c3" }, want: "10.0.0.2 10.0.0.3",
		},
		"exported endpoints, somewhere": {
			services: clusters{serving(web, nil, unexported(at("10.0.0.1", "c1", "")), at("10.0.0.2", "c2", ""))},
			proxy:    func(p *model.Proxy) { p.ClusterID = "" }, want: "10.0.0.1 10.0.0.2",
		},
		"no gateway":       {services: clusters{serving(web, nil, remote()...)}, proxy: func(p *model.Proxy) { p.Network = "east" }, want: "10.0.0.1 10.0.0.1 10.0.0.2*2 10.0.0.3 plain 10.0.0.4 10.0.0.5"},
		"through gateways": {services: clusters{serving(web, nil, remote()...)}, gateways: map[string]*meshv1alpha1.Network{"west": networkAt("192.0.2.1", 15443)}, proxy: func(p *model.Proxy) { p.Network = "east" }, want: "10.0.0.1 10.0.0.4 10.0.0.5 192.0.2.1:15443*3"},
		"from the other":   {services: clusters{serving(web, nil, remote()...)}, gateways: map[string]*meshv1alpha1.Network{"west": networkAt("192.0.2.1", 15443)}, proxy: func(p *model.Proxy) { p.Network = "west" }, want: "10.0.0.1 10.0.0.1 10.0.0.2*2 10.0.0.3 plain 10.0.0.4 10.0.0.5"},
		"no network":       {services: clusters{serving(web, nil, remote()...)}, gateways: map[string]*meshv1alpha1.Network{"west": networkAt("192.0.2.1", 15443)}, want: "10.0.0.1 10.0.0.1 10.0.0.2*2 10.0.0.3 plain 10.0.0.4 10.0.0.5"},
		"requested networks": {
			services: clusters{serving(web, nil, remote()...)}, proxy: func(p *model.Proxy) { p.NetworkView = []string{"north", "east"} }, want: "10.0.0.1 10.0.0.4 10.0.0.5",
		},
		"no mutual TLS of the rule": {
			services: clusters{serving(web, nil, remote()...)}, gateways: map[string]*meshv1alpha1.Network{"west": networkAt("192.0.2.1", 15443)}, proxy: func(p *model.Proxy) { p.Network = "east" },
			objects: "kind: DestinationRule\nmetadata: {name: web, namespace: shop}\nspec: {host: web, trafficPolicy: {tls: {mode: DISABLE}}}\n", want: "10.0.0.1 10.0.0.4 10.0.0.5",
		},
		"no mutual TLS of the namespace": {
			services: clusters{serving(web, nil, remote()...)}, gateways: map[string]*meshv1alpha1.Network{"west": networkAt("192.0.2.1", 15443)}, proxy: func(p *model.Proxy) { p.Network = "east" },
			objects: "kind: PeerAuthentication\nmetadata: {name: web, namespace: shop}\nspec: {mtls: {mode: DISABLE}}\n", want: "10.0.0.1 plain 10.0.0.4 plain 10.0.0.5 plain",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config, err := meshconfig.Parse([]byte(c.config))
			if err != nil {
				t.Fatal(err)
			}
			var objects []*model.Config
			if c.objects != "" {
				objects = decode(t, c.objects)
			}
			in := inputOf(objects, config)
			in.Platform, in.Networks = c.services, &meshv1alpha1.MeshNetworks{Networks: c.gateways}
			mesh := snapshot.Build(nil, in, model.Change{All: true})
			proxy := placed(func(p *model.Proxy) {
				if c.proxy != nil {
					c.proxy(p)
				}
			})
			if diff := cmp.Diff(c.want, showEndpoints(t, New(Config{}).Generate(mesh, proxy, xds.TypeEndpoint), webCluster)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestGatewaysDivideWeights checks that the two gateways of a cluster and the three of a network
// share the weights of each locality's endpoints.
func TestGatewaysDivideWeights(t *testing.T) {
	t.Parallel()
	place := func(e *model.Endpoint, locality string) *model.Endpoint {
		e.Locality = locality
		return e
	}
	gateway := serving("east-west.istio-system.svc.cluster.local", nil)
	gateway.Gateways = []model.NetworkGateway{
		{Network: "west", Cluster: "c2", Address: "192.0.2.1", Port: 15443},
		{Network: "west", Cluster: "c2", Address: "192.0.2.2", Port: 15443},
		{Network: "west", Cluster: "c3", Address: "192.0.2.3", Port: 15443},
	}
	in := inputOf(nil, meshconfig.Default())
	in.Platform = clusters{gateway, serving("web.shop.svc.cluster.local", nil,
		place(at("10.0.0.1", "c1", "east"), "r/z1"), place(at("10.0.0.2", "c2", "west"), "r/z1"), place(at("10.0.0.3", "c2", "west"), "r/z2"), place(at("10.0.0.4", "c4", "west"), "r/z2"))}
	mesh := snapshot.Build(nil, in, model.Change{All: true})
	proxy := placed(func(p *model.Proxy) { p.Network = "east" })
	// The factor is 6, which two and three gateways can share.
	want := "z1*12: 10.0.0.1*6 192.0.2.1:15443*3 192.0.2.2:15443*3 z2*12: 192.0.2.1:15443*5 192.0.2.2:15443*5 192.0.2.3:15443*2"
	if diff := cmp.Diff(want, showEndpoints(t, New(Config{}).Generate(mesh, proxy, xds.TypeEndpoint), webCluster)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestPlacesShareResources checks that proxies at one location share the set, and that those at
// different locations share equal resources.
func TestPlacesShareResources(t *testing.T) {
	t.Parallel()
	local := func(s *model.Service) { s.NodeLocal = true }
	one, two := at("10.0.0.1", "c1", "east"), at("10.0.0.2", "c2", "west")
	one.Node, two.Node = "n1", "n2"
	in := inputOf(nil, meshconfig.Default())
	in.Networks = &meshv1alpha1.MeshNetworks{Networks: map[string]*meshv1alpha1.Network{"west": networkAt("192.0.2.1", 15443)}}
	in.Platform = clusters{serving("web.shop.svc.cluster.local", nil, at("10.0.0.1", "c1", "")), serving("node.shop.svc.cluster.local", local, one, two)}
	mesh := snapshot.Build(nil, in, model.Change{All: true})
	g := New(Config{})
	proxy := func(node, network string) *model.Proxy {
		return placed(func(p *model.Proxy) { p.Node, p.Network = node, network })
	}
	set := g.Generate(mesh, proxy("n1", "east"), xds.TypeEndpoint)
	if g.Generate(mesh, proxy("n1", "east"), xds.TypeEndpoint) != set {
		t.Error("two proxies of a place do not share the set")
	}
	for _, other := range []*model.Proxy{proxy("n2", "east"), proxy("n1", "west"), placed(func(p *model.Proxy) { p.Node, p.Network, p.ClusterID = "n1", "east", "c2" })} {
		elsewhere := g.Generate(mesh, other, xds.TypeEndpoint)
		if elsewhere.Get(webCluster) != set.Get(webCluster) {
			t.Errorf("%+v: a resource that the place does not matter to is another", other)
		}
	}
	const node = "outbound|80||node.shop.svc.cluster.local"
	for from, want := range map[[2]string]string{{"n1", "east"}: "10.0.0.1", {"n2", "east"}: "192.0.2.1:15443", {"n2", "west"}: "10.0.0.2", {"n3", "west"}: ""} {
		if got := showEndpoints(t, g.Generate(mesh, proxy(from[0], from[1]), xds.TypeEndpoint), node); got != want {
			t.Errorf("%v: %q, want %q", from, got, want)
		}
	}
	// A change without effect on endpoints keeps the set.
	again := inputOf(nil, meshconfig.Default())
	again.Networks, again.Platform = in.Networks, in.Platform
	if next := snapshot.Build(mesh, again, model.Change{All: true}); g.Generate(next, proxy("n1", "east"), xds.TypeEndpoint) != set {
		t.Error("the set is new although nothing changed")
	}
}

// TestWeightsTogether checks that the weights add up to at most 32 bits, because Envoy rejects all
// of them otherwise.
func TestWeightsTogether(t *testing.T) {
	t.Parallel()
	for _, weights := range [][]uint32{{1, 2}, {math.MaxUint32, 1, 1}, {math.MaxUint32, math.MaxUint32, 5}, {math.MaxUint32, math.MaxUint32 / 2, 0}} {
		var list []*model.Endpoint
		for i, w := range weights {
			list = append(list, &model.Endpoint{Address: fmt.Sprint("10.0.0.", i), Port: 1, ServicePort: 80, Weight: w, Locality: fmt.Sprint("r", i%2)})
		}
		var total uint64
		for _, group := range loadAssignment("x", 80, list, endpointFacts{}).GetEndpoints() {
			total += uint64(group.GetLoadBalancingWeight().GetValue())
			for _, e := range group.GetLbEndpoints() {
				if e.GetLoadBalancingWeight().GetValue() == 0 {
					t.Errorf("%v: an endpoint without weight", weights)
				}
			}
		}
		if total > math.MaxUint32 || total < 3 {
			t.Errorf("%v: %d together", weights, total)
		}
	}
}

// TestDrainingAndSockets checks that a draining endpoint is sent with that status, and a path as a
// pipe.
func TestDrainingAndSockets(t *testing.T) {
	t.Parallel()
	drains, pipe := at("10.0.0.1", "c1", ""), at("unix:///run/web", "c1", "")
	drains.Draining = true
	in := inputOf(nil, meshconfig.Default())
	in.Platform = clusters{serving("web.shop.svc.cluster.local", nil, drains, at("10.0.0.2", "c1", ""), pipe)}
	mesh := snapshot.Build(nil, in, model.Change{All: true})
	if got, want := showEndpoints(t, New(Config{}).Generate(mesh, placed(func(*model.Proxy) {}), xds.TypeEndpoint), webCluster), "10.0.0.1 draining 10.0.0.2 /run/web"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
