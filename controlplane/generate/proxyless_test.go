// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	aggregatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/aggregate/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/testing/protocmp"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// grpcAt is an application without an Envoy at an address.
func grpcAt(address string, change ...func(*model.Proxy)) *model.Proxy {
	p := proxyAt(address)
	p.Proxyless, p.Interception, p.Labels, p.ClusterID = true, model.InterceptionRedirect, nil, "c1"
	for _, c := range change {
		c(p)
	}
	return p
}

// TestProxylessEndpointsByPlace compares the endpoints of one service for clients at different
// locations. Gateways to other networks are not used, and addresses are unique.
func TestProxylessEndpointsByPlace(t *testing.T) {
	t.Parallel()
	const web = "web.shop.svc.cluster.local"
	east, west := at("10.0.0.1", "c1", "east"), at("10.0.0.2", "c2", "west")
	east.Node, west.Node = "n1", "n2"
	for name, c := range map[string]struct {
		change func(*model.Service)
		proxy  func(*model.Proxy)
		config string
		want   string
	}{
		"anywhere":           {want: "10.0.0.1 plain 10.0.0.2 plain"},
		"headless":           {change: func(s *model.Service) { s.Headless, s.Passthrough = true, true }, want: "10.0.0.1 plain 10.0.0.2 plain"},
		"own node":           {change: func(s *model.Service) { s.NodeLocal = true }, proxy: func(p *model.Proxy) { p.Node = "n2" }, want: "10.0.0.2 plain"},
		"own cluster":        {config: `serviceSettings: [{settings: {clusterLocal: true}, hosts: ["*.shop.svc.cluster.local"]}]`, want: "10.0.0.1 plain"},
		"own network":        {proxy: func(p *model.Proxy) { p.Network = "east" }, want: "10.0.0.1 plain"},
		"the other network":  {proxy: func(p *model.Proxy) { p.Network = "west" }, want: "10.0.0.1 plain 10.0.0.2 plain"},
		"requested networks": {proxy: func(p *model.Proxy) { p.NetworkView = []string{"west"} }, want: "10.0.0.2 plain"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config, err := meshconfig.Parse([]byte(c.config))
			if err != nil {
				t.Fatal(err)
			}
			in := inputOf(nil, config)
			again := *west
			in.Platform = clusters{serving(web, c.change, east, west, &again)}
			in.Networks = &meshv1alpha1.MeshNetworks{Networks: map[string]*meshv1alpha1.Network{"west": networkAt("192.0.2.1", 15443)}}
			mesh := snapshot.Build(nil, in, model.Change{All: true})
			proxy := grpcAt("10.0.0.9")
			if c.proxy != nil {
				c.proxy(proxy)
			}
			if diff := cmp.Diff(c.want, showEndpoints(t, New(Config{}).Generate(mesh, proxy, xds.TypeEndpoint), webCluster)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestProxylessLocalities checks that the nearest localities come first, with priorities from 0.
func TestProxylessLocalities(t *testing.T) {
	t.Parallel()
	mesh, g := placedAt(t, placedMesh)
	proxy := grpcAt("127.1.0.2", func(p *model.Proxy) { p.Locality = "us/a" })
	var got []string
	cla := unpack(t, g.Generate(mesh, proxy, xds.TypeEndpoint).Get("outbound|80||near.example.com")).(*endpointv3.ClusterLoadAssignment)
	for i, group := range cla.GetEndpoints() {
		got = append(got, group.GetLocality().GetRegion())
		if group.GetPriority() != uint32(i) {
			t.Errorf("locality %d has the priority %d", i, group.GetPriority())
		}
	}
	if want := []string{"us", "eu"}; !slices.Equal(got, want) {
		t.Errorf("the localities are %v, want %v", got, want)
	}
}

const proxylessNames = `
kind: ServiceEntry
metadata: {name: names, namespace: default}
spec:
  hosts: [names.example.com]
  resolution: RESOLUTION
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: ENDPOINTS
---
kind: DestinationRule
metadata: {name: names, namespace: default}
spec:
  host: names.example.com
  trafficPolicy:
    tls: {mode: ISTIO_MUTUAL}
    loadBalancer: {consistentHash: {httpHeaderName: x-user, maglev: {}}}
    outlierDetection: {consecutiveGatewayErrors: 2}
`

// TestProxylessNames checks that a cluster has one name to resolve, and that several names become
// an aggregate of clusters.
func TestProxylessNames(t *testing.T) {
	t.Parallel()
	const name = "outbound|80||names.example.com"
	for _, c := range []struct {
		resolution, endpoints string
		want                  []string
	}{
		{"DNS", "[]", []string{"LOGICAL_DNS"}}, // the host itself
		{"DNS", "[{address: a.example.com}]", []string{"LOGICAL_DNS"}},
		{"DNS", "[{address: a.example.com}, {address: b.example.com}]", []string{"first of a.example.com b.example.com", "LOGICAL_DNS", "LOGICAL_DNS"}},
		{"DNS_ROUND_ROBIN", "[{address: a.example.com}]", []string{"LOGICAL_DNS"}},
		{"DNS", "[{address: a.example.com, ports: {other: 1}}, {address: 'unix:///x'}]", []string{"LOGICAL_DNS"}},
		{"STATIC", "[{address: 10.0.0.1}]", []string{"EDS"}},
	} {
		mesh, g := placedAt(t, strings.NewReplacer("RESOLUTION", c.resolution, "ENDPOINTS", c.endpoints).Replace(proxylessNames))
		set := g.Generate(mesh, grpcAt("127.1.0.2"), xds.TypeCluster)
		if len(set.Problems) > 0 {
			t.Errorf("%s %s: %v", c.resolution, c.endpoints, set.Problems)
		}
		var got []string
		for _, r := range set.Resources {
			if !strings.HasPrefix(r.Name, name) {
				continue
			}
			cl := unpack(t, r).(*clusterv3.Cluster)
			if cl.GetLbPolicy() != clusterv3.Cluster_RING_HASH || cl.GetTransportSocket() == nil || cl.GetOutlierDetection().GetFailurePercentageRequestVolume().GetValue() != 2 {
				t.Errorf("%s does not follow the rule: %v", r.Name, cl)
			}
			if cl.GetClusterType() == nil {
				got = append(got, cl.GetType().String())
				continue
			}
			front := &aggregatev3.ClusterConfig{}
			if err := cl.GetClusterType().GetTypedConfig().UnmarshalTo(front); err != nil {
				t.Fatal(err)
			}
			text := "first of"
			for _, member := range front.GetClusters() {
				text += strings.TrimSuffix(strings.TrimPrefix(member, name+"|"), ":80") + " "
			}
			got = append(got, strings.TrimSpace(strings.Replace(text, "first of", "first of ", 1)))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s %s: %q, want %q", c.resolution, c.endpoints, got, c.want)
		}
		if endpoints := g.Generate(mesh, grpcAt("127.1.0.2"), xds.TypeEndpoint).Get(name); (endpoints != nil) != (c.want[0] == "EDS") {
			t.Errorf("%s %s: endpoints are sent: %t", c.resolution, c.endpoints, endpoints != nil)
		}
	}
}

// TestProxylessOutliers checks that a number of consecutive failures becomes a percentage of as
// many calls.
func TestProxylessOutliers(t *testing.T) {
	t.Parallel()
	for spec, want := range map[string]uint32{
		`{}`:                             5,
		`{"consecutive5xxErrors":3}`:     3,
		`{"consecutive5xxErrors":0}`:     0,
		`{"consecutiveGatewayErrors":7}`: 5,
		`{"consecutive5xxErrors":0,"consecutiveGatewayErrors":7}`: 7,
	} {
		in := &networkingv1alpha3.OutlierDetection{}
		if err := protojson.Unmarshal([]byte(spec), in); err != nil {
			t.Fatal(err)
		}
		if got := proxylessOutliers(in).GetFailurePercentageRequestVolume().GetValue(); got != want {
			t.Errorf("%s ejects after %d failures, want %d", spec, got, want)
		}
	}
	if proxylessOutliers(nil) != nil {
		t.Error("without a rule there is outlier detection")
	}
}

// TestForGRPC compares routes before and after conversion.
func TestForGRPC(t *testing.T) {
	t.Parallel()
	const to = `,"route":{"cluster":"a","timeout":"1s"%s}`
	for name, c := range map[string]struct{ in, want string }{
		"plain":    {`{"match":{"prefix":"/"}` + fmt.Sprintf(to, ``) + `}`, `[{"match":{"prefix":"/"}` + fmt.Sprintf(to, `,"maxStreamDuration":{"grpcTimeoutHeaderMax":"1s"}`) + `}]`},
		"query":    {`{"match":{"prefix":"/","queryParameters":[{"name":"a","presentMatch":true}]},"redirect":{}}`, `[]`},
		"GET":      {`{"match":{"prefix":"/","headers":[{"name":":method","stringMatch":{"exact":"GET"}}]},"redirect":{}}`, `[]`},
		"POST":     {`{"match":{"prefix":"/","headers":[{"name":":method","stringMatch":{"safeRegex":{"regex":"P.*"}}},{"name":"b","presentMatch":true}]},"redirect":{}}`, `[{"match":{"prefix":"/","headers":[{"name":"b","presentMatch":true}]},"redirect":{}}]`},
		"not POST": {`{"match":{"prefix":"/","headers":[{"name":":method","stringMatch":{"prefix":"PO"},"invertMatch":true}]},"redirect":{}}`, `[]`},
		"segments": {`{"match":{"pathSeparatedPrefix":"/a.b","caseSensitive":false},"redirect":{}}`, `[{"match":{"safeRegex":{"regex":"(?i)/a\\.b(/.*)?"},"caseSensitive":false},"redirect":{}}]`},
		"filters": {
			`{"match":{"prefix":"/"},"redirect":{},"typedPerFilterConfig":{"envoy.filters.http.cors":{"@type":"type.googleapis.com/envoy.extensions.filters.http.cors.v3.CorsPolicy"}}}`,
			`[{"match":{"prefix":"/"},"redirect":{}}]`,
		},
		"without a value": {
			`{"match":{"prefix":"/","headers":[{"name":"a","stringMatch":{"exact":"b"},"invertMatch":true,"treatMissingHeaderAsEmpty":true}]},"redirect":{}}`,
			`[{"match":{"prefix":"/","headers":[{"name":"a","stringMatch":{"exact":"b"},"invertMatch":true,"treatMissingHeaderAsEmpty":true}]},"redirect":{}},
			  {"match":{"prefix":"/","headers":[{"name":"a","presentMatch":true,"invertMatch":true}]},"redirect":{}}]`,
		},
	} {
		read := func(text string) *routev3.VirtualHost {
			vh := &routev3.VirtualHost{}
			if err := protojson.Unmarshal([]byte(`{"routes":`+text+`}`), vh); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			return vh
		}
		got := &routev3.VirtualHost{Routes: forGRPC(read("[" + c.in + "]").GetRoutes()[0])}
		if diff := cmp.Diff(read(c.want), got, protocmp.Transform()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

const proxylessServer = `
kind: ServiceEntry
metadata: {name: served, namespace: default}
spec:
  hosts: [served.default.svc.cluster.local]
  resolution: STATIC
  ports: [{number: 80, name: grpc, protocol: GRPC, targetPort: 8080}, {number: 53, name: dns, protocol: UDP}]
  endpoints: [{address: 10.0.0.1}, {address: 10.0.0.2}]
---
kind: PeerAuthentication
metadata: {name: some, namespace: default}
spec: {selector: {matchLabels: {app: strict}}, mtls: {mode: DISABLE}, portLevelMtls: {9090: {mode: STRICT}}}
`

// TestServerListeners checks that a workload has listeners for its known ports, and that clients
// still share resources.
func TestServerListeners(t *testing.T) {
	t.Parallel()
	mesh, g := placedAt(t, proxylessServer)
	show := func(p *model.Proxy) []string {
		var out []string
		for _, r := range g.Generate(mesh, p, xds.TypeListener).Resources {
			address, ok := strings.CutPrefix(r.Name, ServerPrefix)
			if !ok {
				continue
			}
			l := unpack(t, r).(*listenerv3.Listener)
			at := l.GetAddress().GetSocketAddress()
			if want := fmt.Sprintf("%s:%d", at.GetAddress(), at.GetPortValue()); strings.NewReplacer("[", "", "]", "").Replace(address) != want {
				t.Errorf("%s is for %s", r.Name, want)
			}
			if len(l.GetListenerFilters()) > 0 || len(l.GetFilterChains()) != 1 {
				t.Errorf("%s is nothing that gRPC takes: %v", r.Name, l)
			}
			if l.GetFilterChains()[0].GetTransportSocket() != nil {
				address += " mtls"
			}
			out = append(out, address)
		}
		return out
	}
	label := func(key, value string) func(*model.Proxy) {
		return func(p *model.Proxy) { p.Labels = map[string]string{key: value} }
	}
	listens := func(addresses ...string) func(*model.Proxy) {
		return func(p *model.Proxy) { p.Listens = addresses }
	}
	for name, c := range map[string]struct {
		proxy *model.Proxy
		want  []string
	}{
		"client":        {grpcAt("10.0.0.9"), nil},
		"server":        {grpcAt("10.0.0.1", listens("0.0.0.0:8080", "10.0.0.1:1", "[::]:8080")), []string{"0.0.0.0:8080", "10.0.0.1:1", "[::]:8080"}},
		"marked":        {grpcAt("10.0.0.1", label("security.istio.io/tlsMode", "istio"), listens("0.0.0.0:8080")), []string{"0.0.0.0:8080 mtls"}},
		"with a policy": {grpcAt("10.0.0.1", label("app", "strict"), listens("0.0.0.0:8080", "0.0.0.0:9090")), []string{"0.0.0.0:8080", "0.0.0.0:9090 mtls"}},
		"no address":    {grpcAt("10.0.0.1", listens("", ":80", "0.0.0.0", "0.0.0.0:0", "0.0.0.0:65536", "0.0.0.0:080", "\xff:80", "::1:80")), nil},
	} {
		if got := show(c.proxy); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	one := func(p *model.Proxy) { p.Listens = []string{"0.0.0.0:8080"} }
	if g.Generate(mesh, grpcAt("10.0.0.1", one), xds.TypeListener) != g.Generate(mesh, grpcAt("10.0.0.2", one), xds.TypeListener) {
		t.Error("servers at different addresses that listen at all of theirs do not share")
	}
	if g.Generate(mesh, grpcAt("10.0.0.1", one), xds.TypeListener).Get("served:80") == nil {
		t.Error("a server does not dial as clients do")
	}
}

// TestServerPolicies checks the problems of policies that apply to gRPC servers without a proxy, which
// know no tokens, and that clients report none.
func TestServerPolicies(t *testing.T) {
	t.Parallel()
	const knows, validates = "a gRPC server without a proxy does not know", "a gRPC server without a proxy validates no tokens"
	for _, c := range []struct {
		objects string
		want    []string // parts of the problems
	}{
		{policy("p", `{rules: [{from: [{source: {principals: ["*"]}}]}]}`), nil},
		{policy("p", `{rules: [{}, {from: [{source: {requestPrincipals: ["*"]}}]}]}`), []string{"spec.rules[1] has attributes that " + knows + ", such as those of tokens: there it allows no request"}},
		{policy("p", `{action: DENY, rules: [{from: [{source: {notRequestPrincipals: ["*"]}}]}]}`), []string{"there it refuses every request that its other attributes match"}},
		{policy("p", `{action: DENY, rules: [{when: [{key: "request.auth.claims[a]", values: [b]}]}]}`), []string{knows}},
		{policy("p", `{action: DENY, rules: [{when: [{key: "connection.sni", values: [b]}]}]}`), []string{knows}},
		{policy("p", `{action: DENY, rules: [{when: [{key: "request.headers[gRPC-timeout]", values: ["1S"]}]}]}`), []string{knows}},
		{policy("p", `{action: AUDIT, rules: [{from: [{source: {requestPrincipals: ["*"]}}]}]}`), nil},
		{strings.Replace(policy("p", `{rules: [{from: [{source: {requestPrincipals: ["*"]}}]}]}`), "namespace: default", `namespace: default, annotations: {istio.io/dry-run: "true"}`, 1), nil},
		{tokenRules("one", `{issuer: a, jwks: '{"keys":[]}'}`), []string{validates}},
	} {
		mesh, g := placedAt(t, c.objects)
		problems := func(p *model.Proxy) (out []string) {
			for _, problem := range g.Generate(mesh, p, xds.TypeListener).Problems {
				if !problem.Warning || problem.Object.Name == "" {
					t.Errorf("%s: the problem is %+v", c.objects, problem)
				}
				out = append(out, problem.Reason)
			}
			return out
		}
		got := problems(grpcAt("10.0.0.1", func(p *model.Proxy) { p.Listens = []string{"0.0.0.0:8080", "0.0.0.0:9090"} }))
		if len(got) != len(c.want) || !slices.EqualFunc(got, c.want, strings.Contains) {
			t.Errorf("%s: problems %q, want %q", c.objects, got, c.want)
		}
		if got := problems(grpcAt("10.0.0.9")); len(got) > 0 {
			t.Errorf("%s: problems of a client: %q", c.objects, got)
		}
	}
}
