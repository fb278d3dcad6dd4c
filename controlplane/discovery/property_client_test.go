// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/outrigger-mesh/outrigger/controlplane/discovery/debug"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// viewer is a subscriber that follows names from type to type like Envoy or a gRPC client, and
// stores the received resources. It runs on the goroutine of the test.
type viewer struct {
	t       *testing.T
	kind    viewerKind
	address string

	// have contains the resources in use: type -> name -> message. told contains the versions that
	// it reports when it reconnects: Envoy includes resources that it could not use.
	have map[string]map[string]*anypb.Any
	told map[string]map[string]string
	// version is that of the last response of a type (without delta); names contains the
	// subscriptions by type.
	version map[string]string
	names   map[string][]string

	// What follows is of one stream.
	conn   *grpc.ClientConn
	cancel context.CancelFunc
	send   func(proto.Message) error
	got    chan proto.Message
	nonce  map[string]string
	// warming contains changed clusters that wait for endpoints; Envoy acknowledges clusters once
	// there are none.
	warming map[string]bool
	// came contains the names in the last response, including removed ones.
	came []string
	// exact is false while the server cannot know what it had before.
	exact bool
}

// viewerKind is how a viewer behaves.
type viewerKind struct {
	name  string
	delta bool
	vhds  bool
	// grpc subscribes to listeners and clusters by name.
	grpc bool
}

var viewerKinds = []viewerKind{
	{name: "sotw"}, {name: "delta", delta: true}, {name: "vhds", delta: true, vhds: true}, {name: "grpc", grpc: true}, {name: "grpc-delta", grpc: true, delta: true},
}

func newViewer(t *testing.T, kind viewerKind, address string) *viewer {
	return &viewer{
		t: t, kind: kind, address: address, have: map[string]map[string]*anypb.Any{}, told: map[string]map[string]string{},
		version: map[string]string{}, names: map[string][]string{}, exact: true,
	}
}

func (v *viewer) node() *corev3.Node {
	n := shopNode(v.t, nil)
	if v.kind.grpc {
		n = shopNode(v.t, map[string]any{"GENERATOR": "grpc"})
	}
	if v.kind.vhds {
		return withAgent(n, "envoy", 1, 39)
	}
	return n
}

// connect opens a stream and repeats the subscriptions of the last one.
func (v *viewer) connect() {
	v.t.Helper()
	var err error
	if v.conn, err = grpc.NewClient(v.address, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		v.t.Fatal(err)
	}
	client := discoveryv3.NewAggregatedDiscoveryServiceClient(v.conn)
	ctx, cancel := context.WithCancel(v.t.Context())
	v.cancel, v.got, v.nonce = cancel, make(chan proto.Message, 16), map[string]string{}
	v.warming = nil
	var recv func() (proto.Message, error)
	if v.kind.delta {
		s, err := client.DeltaAggregatedResources(ctx, grpc.WaitForReady(true))
		if err != nil {
			v.t.Fatal(err)
		}
		recv = func() (proto.Message, error) { return s.Recv() }
		v.send = func(m proto.Message) error { return s.Send(m.(*discoveryv3.DeltaDiscoveryRequest)) }
	} else {
		s, err := client.StreamAggregatedResources(ctx, grpc.WaitForReady(true))
		if err != nil {
			v.t.Fatal(err)
		}
		recv = func() (proto.Message, error) { return s.Recv() }
		v.send = func(m proto.Message) error { return s.Send(m.(*discoveryv3.DiscoveryRequest)) }
	}
	go func(got chan<- proto.Message) {
		defer close(got)
		for {
			m, err := recv()
			if err != nil {
				return
			}
			select {
			case got <- m:
			case <-ctx.Done():
				return
			}
		}
	}(v.got)
	v.ask()
}

// ask sends the first requests of a stream. The errors of sends are those of a
// stream that has ended, which the test sees at the next receive.
func (v *viewer) ask() {
	node := v.node()
	first := []string{xds.TypeCluster, xds.TypeEndpoint, xds.TypeListener, xds.TypeRoute}
	if v.kind.grpc {
		first = []string{xds.TypeListener, xds.TypeRoute, xds.TypeCluster, xds.TypeEndpoint}
		v.names[xds.TypeListener] = propertyTargets()
	} else {
		v.names[xds.TypeCluster], v.names[xds.TypeListener] = nil, nil
	}
	for _, typeURL := range first {
		names, asked := v.names[typeURL]
		if !asked || len(names) == 0 && v.byName(typeURL) {
			continue
		}
		v.first(typeURL, names, node)
		node = nil
	}
	if _, asked := v.names[xds.TypeVirtualHost]; asked {
		v.first(xds.TypeVirtualHost, nil, nil)
	}
}

// first sends the first request for a type on a stream.
func (v *viewer) first(typeURL string, names []string, node *corev3.Node) {
	if v.kind.delta {
		_ = v.send(&discoveryv3.DeltaDiscoveryRequest{
			Node: node, TypeUrl: typeURL, ResourceNamesSubscribe: names, InitialResourceVersions: v.told[typeURL],
		})
		return
	}
	_ = v.send(&discoveryv3.DiscoveryRequest{Node: node, TypeUrl: typeURL, ResourceNames: names, VersionInfo: v.version[typeURL]})
}

// byName reports whether the viewer subscribes to a type by name.
func (v *viewer) byName(typeURL string) bool {
	return typeURL == xds.TypeEndpoint || typeURL == xds.TypeRoute || v.kind.grpc
}

// leave closes the stream, even if responses are pending.
func (v *viewer) leave() {
	v.cancel()
	_ = v.conn.Close() // the stream has ended
	for range v.got {  // until its goroutine has
	}
	v.exact = v.kind.delta
	// The server resends resources that Envoy lost because they arrived before their route, once
	// Envoy requests the route. If the stream ends in between, it does not, because Envoy reports
	// that it has both.
	maps.DeleteFunc(v.told[xds.TypeVirtualHost], func(name, _ string) bool { return v.have[xds.TypeVirtualHost][name] == nil })
}

// apply applies one response: it changes the view, acknowledges, and subscribes to the names in the
// new view.
func (v *viewer) apply(m proto.Message) {
	v.t.Helper()
	if r := m.(interface {
		GetTypeUrl() string
		GetNonce() string
	}); r.GetTypeUrl() == debug.Type {
		v.nonce[debug.Type] = r.GetNonce() // the answer to a question is none to acknowledge
		return
	}
	var typeURL string
	before := maps.Clone(v.have[xds.TypeCluster])
	v.came = nil
	switch r := m.(type) {
	case *discoveryv3.DiscoveryResponse:
		typeURL = r.GetTypeUrl()
		if !v.byName(typeURL) || wholeState(typeURL) {
			v.have[typeURL] = nil
		}
		for _, res := range r.GetResources() {
			if name := nameOf(v.t, res); v.wants(typeURL, name) {
				v.keep(typeURL, name, res)
			}
		}
		v.nonce[typeURL], v.version[typeURL] = r.GetNonce(), r.GetVersionInfo()
	case *discoveryv3.DeltaDiscoveryResponse:
		typeURL = r.GetTypeUrl()
		v.nonce[typeURL] = r.GetNonce()
		if v.told[typeURL] == nil {
			v.told[typeURL] = map[string]string{}
		}
		for _, res := range r.GetResources() {
			if !v.wants(typeURL, res.GetName()) {
				continue
			}
			if name := nameOf(v.t, res.GetResource()); name != res.GetName() {
				v.t.Errorf("the resource %q has the name %q", res.GetName(), name)
			}
			v.told[typeURL][res.GetName()] = res.GetVersion()
			v.keep(typeURL, res.GetName(), res.GetResource())
		}
		for _, name := range r.GetRemovedResources() {
			delete(v.told[typeURL], name)
			delete(v.have[typeURL], name)
			v.came = append(v.came, name) // for Envoy, a removal of endpoints is also a response
		}
	}
	if typeURL != xds.TypeCluster || v.kind.grpc {
		v.acknowledge(typeURL)
	}
	v.refresh()
	v.warm(typeURL, before)
	v.checkRoutes()
}

// warm notes which clusters warm after a response, and acknowledges clusters
// when the last one is warm.
func (v *viewer) warm(typeURL string, before map[string]*anypb.Any) {
	if v.kind.grpc {
		return
	}
	named := v.namedEndpoints()
	switch typeURL {
	case xds.TypeCluster:
		if v.warming == nil {
			v.warming = map[string]bool{}
		}
		for _, name := range named {
			if old := before[name]; old == nil || !proto.Equal(old, v.have[typeURL][name]) {
				v.warming[name] = true
			}
		}
		maps.DeleteFunc(v.warming, func(name string, _ bool) bool { return !slices.Contains(named, name) })
	case xds.TypeEndpoint:
		for _, name := range v.came {
			delete(v.warming, name)
		}
	default:
		return
	}
	if v.warming != nil && len(v.warming) == 0 {
		v.warming = nil
		v.acknowledge(xds.TypeCluster)
	}
}

// wants reports whether a resource is subscribed to: some arrive too late.
func (v *viewer) wants(typeURL, name string) bool {
	return !v.byName(typeURL) || slices.Contains(v.names[typeURL], name)
}

// keep stores a resource unless Envoy would lose it.
func (v *viewer) keep(typeURL, name string, res *anypb.Any) {
	if typeURL == xds.TypeVirtualHost && v.have[xds.TypeRoute][routeOf(name)] == nil {
		return
	}
	if v.have[typeURL] == nil {
		v.have[typeURL] = map[string]*anypb.Any{}
	}
	v.have[typeURL][name] = res
	v.came = append(v.came, name)
}

func (v *viewer) acknowledge(typeURL string) {
	if v.kind.delta {
		_ = v.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResponseNonce: v.nonce[typeURL]})
		return
	}
	_ = v.send(&discoveryv3.DiscoveryRequest{
		TypeUrl: typeURL, ResourceNames: v.names[typeURL], ResponseNonce: v.nonce[typeURL], VersionInfo: v.version[typeURL],
	})
}

// refresh updates the subscriptions to the names in the view, until they no longer change.
func (v *viewer) refresh() {
	routes := v.namedRoutes()
	v.want(xds.TypeRoute, routes)
	if v.kind.grpc {
		v.want(xds.TypeCluster, v.namedClusters())
	}
	v.want(xds.TypeEndpoint, v.namedEndpoints())
	if _, asked := v.names[xds.TypeVirtualHost]; !asked && v.kind.vhds && len(v.have[xds.TypeRoute]) > 0 {
		v.names[xds.TypeVirtualHost] = nil
		v.first(xds.TypeVirtualHost, nil, nil)
	}
}

// want makes names the subscription of a type.
func (v *viewer) want(typeURL string, names []string) {
	before := v.names[typeURL]
	if slices.Equal(before, names) {
		return
	}
	v.names[typeURL] = names
	var more, less []string
	for _, n := range names {
		if !slices.Contains(before, n) {
			more = append(more, n)
		}
	}
	for _, n := range before {
		if !slices.Contains(names, n) {
			less = append(less, n)
			delete(v.have[typeURL], n)
			delete(v.told[typeURL], n)
			if typeURL == xds.TypeRoute {
				maps.DeleteFunc(v.have[xds.TypeVirtualHost], func(host string, _ *anypb.Any) bool { return routeOf(host) == n })
			}
		}
	}
	if v.kind.delta {
		_ = v.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResourceNamesSubscribe: more, ResourceNamesUnsubscribe: less})
		return
	}
	v.acknowledge(typeURL) // the same request with other names
}

func (v *viewer) namedEndpoints() []string {
	var names []string
	for name, res := range v.have[xds.TypeCluster] {
		c := &clusterv3.Cluster{}
		decode(v.t, res, c)
		if c.GetType() == clusterv3.Cluster_EDS {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func (v *viewer) namedRoutes() []string {
	var names []string
	for _, res := range v.have[xds.TypeListener] {
		l := &listenerv3.Listener{}
		decode(v.t, res, l)
		managers := []*anypb.Any{l.GetApiListener().GetApiListener()}
		for _, chain := range l.GetFilterChains() {
			for _, f := range chain.GetFilters() {
				managers = append(managers, f.GetTypedConfig())
			}
		}
		for _, m := range managers {
			hcm := &hcmv3.HttpConnectionManager{}
			if !m.MessageIs(hcm) {
				continue
			}
			decode(v.t, m, hcm)
			if name := hcm.GetRds().GetRouteConfigName(); name != "" {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// namedClusters are the clusters that routes lead to.
func (v *viewer) namedClusters() []string {
	var hosts []*routev3.VirtualHost
	for _, res := range v.have[xds.TypeRoute] {
		config := &routev3.RouteConfiguration{}
		decode(v.t, res, config)
		hosts = append(hosts, config.GetVirtualHosts()...)
	}
	for _, res := range v.have[xds.TypeVirtualHost] {
		host := &routev3.VirtualHost{}
		decode(v.t, res, host)
		hosts = append(hosts, host)
	}
	var names []string
	for _, host := range hosts {
		for _, r := range host.GetRoutes() {
			if name := r.GetRoute().GetCluster(); name != "" {
				names = append(names, name)
			}
			for _, c := range r.GetRoute().GetWeightedClusters().GetClusters() {
				names = append(names, c.GetName())
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// checkRoutes asserts that no route refers to a missing cluster. That holds at any time if the
// server knows the resources of the viewer; a gRPC client requests clusters after routes.
func (v *viewer) checkRoutes() {
	v.t.Helper()
	if v.kind.grpc || !v.exact || v.have[xds.TypeCluster] == nil {
		return
	}
	for _, name := range v.namedClusters() {
		if v.have[xds.TypeCluster][name] == nil {
			v.t.Errorf("a route leads to the cluster %s, which the proxy does not have", name)
		}
	}
}

// String is the view, for comparison.
func (v *viewer) String() string {
	out := ""
	for _, typeURL := range xds.Types {
		for _, name := range slices.Sorted(maps.Keys(v.have[typeURL])) {
			out += fmt.Sprintf("%s %s %x\n", shortType(typeURL), name, v.have[typeURL][name].GetValue())
		}
	}
	return out
}

func decode(t *testing.T, res *anypb.Any, into proto.Message) {
	t.Helper()
	if err := res.UnmarshalTo(into); err != nil {
		t.Fatal(err)
	}
}

// nameOf reads the name in a resource.
func nameOf(t *testing.T, res *anypb.Any) string {
	t.Helper()
	m, err := res.UnmarshalNew()
	if err != nil {
		t.Fatal(err)
	}
	switch r := m.(type) {
	case interface{ GetClusterName() string }:
		return r.GetClusterName()
	case interface{ GetName() string }:
		return r.GetName()
	}
	t.Fatalf("no name in %s", res.GetTypeUrl())
	return ""
}
