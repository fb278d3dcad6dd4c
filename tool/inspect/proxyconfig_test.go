// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func packed(m proto.Message) *anypb.Any {
	a, err := anypb.New(m)
	if err != nil {
		panic(err) // all messages in these tests are valid
	}
	return a
}

// dumpOf writes messages like Envoy's admin port.
func dumpOf(messages ...proto.Message) string {
	var list []string
	for _, m := range messages {
		raw, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(packed(m))
		if err != nil {
			panic(err) // as above
		}
		list = append(list, string(raw))
	}
	return `{"configs":[` + strings.Join(list, ",") + `]}`
}

func address(host string, port uint32) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
	}}}
}

// origin returns the metadata of a resource made from an object.
func origin(path string) *corev3.Metadata {
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
		"istio": {Fields: map[string]*structpb.Value{"config": structpb.NewStringValue(path)}},
	}}
}

func dynamicClusters(list ...*clusterv3.Cluster) (out []*adminv3.ClustersConfigDump_DynamicCluster) {
	for _, c := range list {
		out = append(out, &adminv3.ClustersConfigDump_DynamicCluster{Cluster: packed(c)})
	}
	return out
}

func cluster(name string, kind clusterv3.Cluster_DiscoveryType) *clusterv3.Cluster {
	return &clusterv3.Cluster{Name: name, ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: kind}}
}

func testClusters() *adminv3.ClustersConfigDump {
	ruled := cluster("outbound|9080|v1|reviews.shop.svc.cluster.local", clusterv3.Cluster_EDS)
	ruled.Metadata = origin("/apis/networking.istio.io/v1/namespaces/shop/destination-rule/reviews")
	custom := &clusterv3.Cluster{Name: "forward", ClusterDiscoveryType: &clusterv3.Cluster_ClusterType{ClusterType: &clusterv3.Cluster_CustomClusterType{Name: "envoy.clusters.dynamic_forward_proxy"}}}
	named := cluster("outbound|443||example.org", clusterv3.Cluster_STRICT_DNS)
	named.LoadAssignment = assignment("", corev3.HealthStatus_UNKNOWN, 443, "example.org")
	return &adminv3.ClustersConfigDump{
		StaticClusters: []*adminv3.ClustersConfigDump_StaticCluster{{Cluster: packed(cluster("xds-grpc", clusterv3.Cluster_STATIC))}},
		DynamicActiveClusters: dynamicClusters(
			ruled, custom, named, cluster("inbound|8080||", clusterv3.Cluster_ORIGINAL_DST),
			cluster("outbound|9080||reviews.shop.svc.cluster.local", clusterv3.Cluster_EDS), cluster("outbound|port||x", clusterv3.Cluster_EDS),
		),
		DynamicWarmingClusters: []*adminv3.ClustersConfigDump_DynamicCluster{{Cluster: packed(ruled)}, {ErrorState: &adminv3.UpdateFailureState{Details: "bad"}, ClientStatus: adminv3.ClientResourceStatus_NACKED}},
	}
}

func filterTo(m proto.Message) *listenerv3.Filter {
	return &listenerv3.Filter{Name: "last", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: packed(m)}}
}

func prefix(path string) *routev3.RouteMatch {
	return &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: path}}
}

func toCluster(match *routev3.RouteMatch, name string) *routev3.Route {
	return &routev3.Route{Match: match, Action: &routev3.Route_Route{Route: &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: name}}}}
}

func inlined(routes ...*routev3.Route) *hcmv3.HttpConnectionManager {
	return &hcmv3.HttpConnectionManager{RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{
		VirtualHosts: []*routev3.VirtualHost{{Name: "inbound", Routes: routes}},
	}}}
}

func testListeners() *adminv3.ListenersConfigDump {
	tcp := func(name string) *tcpproxyv3.TcpProxy {
		return &tcpproxyv3.TcpProxy{ClusterSpecifier: &tcpproxyv3.TcpProxy_Cluster{Cluster: name}}
	}
	split := &tcpproxyv3.TcpProxy{ClusterSpecifier: &tcpproxyv3.TcpProxy_WeightedClusters{WeightedClusters: &tcpproxyv3.TcpProxy_WeightedCluster{
		Clusters: []*tcpproxyv3.TcpProxy_WeightedCluster_ClusterWeight{{Name: "a"}, {Name: "b"}},
	}}}
	rds := &hcmv3.HttpConnectionManager{RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{RouteConfigName: "9080"}}}
	chain := func(match *listenerv3.FilterChainMatch, m proto.Message) *listenerv3.FilterChain {
		return &listenerv3.FilterChain{FilterChainMatch: match, Filters: []*listenerv3.Filter{{Name: "first"}, filterTo(m)}}
	}
	inbound := &listenerv3.Listener{
		Name: "virtualInbound", Address: address("0.0.0.0", 15006), AdditionalAddresses: []*listenerv3.AdditionalAddress{{Address: address("::", 15006)}},
		FilterChains: []*listenerv3.FilterChain{
			chain(&listenerv3.FilterChainMatch{TransportProtocol: "tls", ApplicationProtocols: []string{"istio", "h2"}, DestinationPort: wrapperspb.UInt32(8080)}, inlined(toCluster(prefix("/"), "inbound|8080||"))),
			chain(&listenerv3.FilterChainMatch{PrefixRanges: []*corev3.CidrRange{{AddressPrefix: "10.0.0.0", PrefixLen: wrapperspb.UInt32(8)}}, SourcePorts: []uint32{7}, SourceType: listenerv3.FilterChainMatch_EXTERNAL}, inlined(toCluster(prefix("/a"), "a"), toCluster(prefix("/b"), "b"))),
		},
		DefaultFilterChain: &listenerv3.FilterChain{Filters: []*listenerv3.Filter{{Name: "envoy.filters.network.mysql_proxy"}}},
	}
	outbound := &listenerv3.Listener{
		Name: "outbound", Address: address("10.96.0.7", 443),
		FilterChains: []*listenerv3.FilterChain{
			chain(&listenerv3.FilterChainMatch{ServerNames: []string{"example.org", "www.example.org"}}, tcp("outbound|443||example.org")),
			chain(nil, split),
		},
	}
	web := &listenerv3.Listener{Name: "web", Address: address("0.0.0.0", 9080), FilterChains: []*listenerv3.FilterChain{chain(nil, rds)}}
	socket := &listenerv3.Listener{
		Name: "socket", Address: &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: "/var/run/sock"}}},
		ListenerFilters: []*listenerv3.ListenerFilter{{Name: "envoy.filters.udp.dns_filter"}},
	}
	state := func(l *listenerv3.Listener) *adminv3.ListenersConfigDump_DynamicListenerState {
		return &adminv3.ListenersConfigDump_DynamicListenerState{Listener: packed(l)}
	}
	return &adminv3.ListenersConfigDump{
		StaticListeners: []*adminv3.ListenersConfigDump_StaticListener{{Listener: packed(socket)}},
		DynamicListeners: []*adminv3.ListenersConfigDump_DynamicListener{
			{Name: "virtualInbound", ActiveState: state(inbound)},
			{Name: "outbound", ActiveState: state(outbound)},
			{Name: "web", WarmingState: state(web)},
			{Name: "gone", DrainingState: state(web)},
		},
	}
}

func testRoutes() *adminv3.RoutesConfigDump {
	ruled := toCluster(&routev3.RouteMatch{
		PathSpecifier: &routev3.RouteMatch_Path{Path: "/login"}, Headers: []*routev3.HeaderMatcher{{Name: "x-team"}}, QueryParameters: []*routev3.QueryParameterMatcher{{Name: "q"}},
	}, "outbound|9080|v1|reviews.shop.svc.cluster.local")
	ruled.Metadata = origin("/apis/networking.istio.io/v1/namespaces/shop/virtual-service/reviews")
	web := &routev3.RouteConfiguration{Name: "9080", VirtualHosts: []*routev3.VirtualHost{
		{Name: "reviews.shop.svc.cluster.local:9080", Domains: []string{"reviews.shop.svc.cluster.local", "reviews", "reviews:9080"}, Routes: []*routev3.Route{ruled, toCluster(prefix("/"), "outbound|9080||reviews.shop.svc.cluster.local")}},
		{Name: "9080/none", Domains: []string{"*"}},
	}}
	return &adminv3.RoutesConfigDump{
		StaticRouteConfigs:  []*adminv3.RoutesConfigDump_StaticRouteConfig{{RouteConfig: packed(inlined(toCluster(prefix("/"), "inbound|8080||")).GetRouteConfig())}},
		DynamicRouteConfigs: []*adminv3.RoutesConfigDump_DynamicRouteConfig{{RouteConfig: packed(web)}, {ErrorState: &adminv3.UpdateFailureState{}}},
	}
}

func assignment(name string, health corev3.HealthStatus, port uint32, hosts ...string) *endpointv3.ClusterLoadAssignment {
	l := &endpointv3.LocalityLbEndpoints{}
	for _, host := range hosts {
		l.LbEndpoints = append(l.LbEndpoints, &endpointv3.LbEndpoint{
			HealthStatus: health, HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: address(host, port)}},
		})
	}
	return &endpointv3.ClusterLoadAssignment{ClusterName: name, Endpoints: []*endpointv3.LocalityLbEndpoints{l}}
}

func testEndpoints(health corev3.HealthStatus, hosts ...string) *adminv3.EndpointsConfigDump {
	return &adminv3.EndpointsConfigDump{DynamicEndpointConfigs: []*adminv3.EndpointsConfigDump_DynamicEndpointConfig{
		{EndpointConfig: packed(assignment("outbound|9080||reviews.shop.svc.cluster.local", health, 9080, hosts...))},
		{EndpointConfig: packed(assignment("outbound|9080|v1|reviews.shop.svc.cluster.local", health, 9080, hosts...))},
	}}
}

func testExtensions() *adminv3.EcdsConfigDump {
	d := &adminv3.EcdsConfigDump{}
	for name, m := range map[string]proto.Message{"shop.count": &wasmv3.Wasm{}, "shop.limits": &rbacv3.RBAC{}} {
		d.EcdsFilters = append(d.EcdsFilters, &adminv3.EcdsConfigDump_EcdsFilterConfig{EcdsFilter: packed(&corev3.TypedExtensionConfig{Name: name, TypedConfig: packed(m)})})
	}
	return d
}

// savedDump returns a dump of Envoy with an additional unknown filter and an unknown section.
func savedDump() string {
	text := dumpOf(&adminv3.BootstrapConfigDump{}, testClusters(), testListeners(), testRoutes(), testEndpoints(corev3.HealthStatus_HEALTHY, "10.0.0.7", "fd00::7"), testExtensions(), &adminv3.SecretsConfigDump{})
	filter := `{"name":"x","typed_config":{"@type":"type.googleapis.com/acme.Filter","config":{"value":[1,{"@type":7}]}}}`
	text = strings.Replace(text, `{"name":"first"}`, filter, 1)
	part := `{"@type":"type.googleapis.com/acme.ConfigDump","clusters":[]}`
	mistyped := `{"@type":"type.googleapis.com/envoy.admin.v3.ClustersConfigDump","static_clusters":[{"cluster":{"@type":"type.googleapis.com/envoy.config.listener.v3.Listener"}},{"cluster":{"@type":"type.googleapis.com/envoy.api.v2.Cluster","name":"x"}}],"new_field":1}`
	return strings.TrimSuffix(text, "]}") + "," + part + "," + mistyped + "]}"
}

// TestProxyTables compares tables of a saved dump with golden files.
func TestProxyTables(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"proxy-clusters": {"clusters"}, "proxy-listeners": {"listeners"}, "proxy-routes": {"routes"}, "proxy-endpoints": {"endpoints"}, "proxy-ecds": {"ecds"},
		"proxy-all-wide": {"all", "-o", "wide"}, "proxy-json": {"endpoints", "-o", "json", "--port", "443"}, "proxy-yaml": {"all", "-o", "yaml", "--cluster", "x", "--name", "web", "--subset", "v1"},
	} {
		out, errs, code := runWith(t, savedDump(), append([]string{"proxy", "-f", "-"}, args...)...)
		if code != 0 || (errs == "") != !strings.Contains(strings.Join(args, " "), "-o json") && !strings.Contains(strings.Join(args, " "), "-o yaml") {
			t.Errorf("%s: got exit code %d: %s", name, code, errs)
		}
		golden(t, name, out)
		for line := range strings.Lines(out) {
			if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > tableWidth && len(args) == 1 {
				t.Errorf("%s: a line has %d characters, want at most the width of a table: %s", name, n, line)
			}
		}
	}
	c, err := readDump([]byte(savedDump()))
	if err != nil {
		t.Fatal(err)
	}
	var piped bytes.Buffer
	if err := (view{out: &piped, flags: &askFlags{}}).configuration(c, parts()); err != nil {
		t.Fatal(err)
	}
	if text := piped.String(); strings.Contains(text, "…") || strings.Contains(text, " +") || strings.Contains(text, "too narrow") {
		t.Errorf("without a terminal something is left out:\n%s", text)
	}
	checkPrinted(t, "proxy-rootca", printRoots)
}

// clustersOfEnvoy is what Envoy's admin port returns for /clusters?format=json if 10.0.0.7 is ejected.
const clustersOfEnvoy = `{"cluster_statuses":[{"name":"web","eds_service_name":"outbound|9080||reviews.shop.svc.cluster.local","new":1,"host_statuses":[
{"address":{"socket_address":{"address":"10.0.0.7","port_value":9080}},"health_status":{"failed_outlier_check":true,"eds_health_status":"HEALTHY"}},
{"address":{"socket_address":{"address":"fd00::7","port_value":9080}},"health_status":{"eds_health_status":"HEALTHY"}}]}]}`

// envoyAdmin serves a dump like Envoy's admin port.
func envoyAdmin(t *testing.T, code int, dump string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/clusters" && r.URL.Query().Get("format") == "json" {
			_, _ = w.Write([]byte(clustersOfEnvoy)) // as below
			return
		}
		if r.URL.Path != "/config_dump" || !r.URL.Query().Has("include_eds") {
			code = http.StatusNotFound
		}
		w.WriteHeader(code)
		_, _ = w.Write([]byte(dump)) // a client that disconnected needs no response
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

// TestProxyCommand queries a control plane that responds with the dump of a proxy.
func TestProxyCommand(t *testing.T) {
	t.Parallel()
	replica := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/debug/proxies":
			_ = json.NewEncoder(w).Encode(testMesh()[1].value) // web-1.shop and api-1.shop; see above
		case r.URL.Path == "/debug/config_dump" && r.URL.Query().Get("proxyID") == "web-1.shop":
			_, _ = w.Write([]byte(savedDump()))
		default:
			http.Error(w, "no proxy\x1b[2J", http.StatusNotFound)
		}
	}))
	t.Cleanup(replica.Close)
	at := []string{"--control", strings.TrimPrefix(replica.URL, "http://")}
	big := filepath.Join(t.TempDir(), "big")
	if err := os.WriteFile(big, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(big, maxAnswer+1); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args []string
		code int
		has  string // texts, separated by ~
		not  string
	}{
		{append([]string{"clusters", "web"}, at...), 0, "reviews.shop~xds-grpc", "SVC"},
		{append([]string{"cluster", "web-1", "-n", "shop", "--fqdn", "reviews.shop.svc.cluster.local", "--subset", "v1", "--direction", "OUTBOUND", "--port", "9080"}, at...), 0, "v1~reviews.shop", "xds-grpc"},
		{append([]string{"listeners", "web", "--port", "15006", "-o", "wide"}, at...), 0, "Trans: tls; App: istio, h2; Addr: *:8080", "10.96.0.7"},
		{append([]string{"l", "web", "--address", "::"}, at...), 0, "Source: *:7 +1", "10.96.0.7"},
		{append([]string{"l", "web", "--name", "web"}, at...), 0, "Route: 9080", "15006"},
		{append([]string{"routes", "web", "--name", "9080"}, at...), 0, "reviews.shop", "inbound"},
		{append([]string{"endpoints", "web", "--cluster", "outbound|9080||reviews.shop.svc.cluster.local", "--address", "fd00::7", "-o", "wide"}, at...), 0, "[fd00::7]:9080   HEALTHY", "10.0.0.7"},
		{append([]string{"endpoints", "web", "--status", "Healthy", "-o", "wide"}, at...), 0, "10.0.0.7:9080     HEALTHY~example.org:443   -", "OUTLIER"},
		{append([]string{"endpoints", "web", "--status", "unhealthy"}, at...), 0, "No endpoints.", "CLUSTER"},
		{append([]string{"endpoints", "web", "--status", "ill"}, at...), 2, "--status ill is unknown: write healthy, degraded, unhealthy, draining or timeout", "CLUSTER"},
		{append([]string{"endpoints", "web", "--status", "healthy", "--diff"}, at...), 2, "leave out --status", "CLUSTER"},
		{[]string{"endpoints", "--admin", envoyAdmin(t, http.StatusOK, savedDump()), "-o", "wide"}, 0, "10.0.0.7:9080     HEALTHY   FAILED          outbound|9080||~[fd00::7]:9080    HEALTHY   OK              outbound|9080||~10.0.0.7:9080     HEALTHY   -               outbound|9080|v1|", "\x1b"},
		{append([]string{"listeners", "web", "--type", "HTTP"}, at...), 0, "Route: 9080", "10.96.0.7"},
		{append([]string{"listeners", "web", "--type", "tcp"}, at...), 0, "10.96.0.7", "Route: 9080"},
		{append([]string{"listeners", "web", "--type", "unknown"}, at...), 0, "dns_filter", "10.96.0.7"},
		{append([]string{"listeners", "web", "--type", "http+tcp"}, at...), 0, "No listeners.", "10.96.0.7"},
		{append([]string{"listeners", "web", "--type", "udp"}, at...), 2, "--type udp is unknown: write http, tcp, http+tcp or unknown", "10.96.0.7"},
		{append([]string{"endpoints", "web", "--cluster", "none"}, at...), 0, "No endpoints.", "CLUSTER"},
		{append([]string{"clusters", "api-1"}, at...), 1, "the configuration of api-1.shop~no proxy", "SERVICE"},
		{append([]string{"clusters", "pod/web", "-o", "short"}, at...), 0, "SERVICE FQDN", "No clusters."},
		{append([]string{"clusters", "web", "--fqdn", "no such"}, at...), 0, "No clusters.", "SERVICE"},
		{append([]string{"clusters", "web", "--direction", "sideways"}, at...), 2, "--direction sideways is unknown: write inbound or outbound", "SERVICE"},
		{append([]string{"clusters", "none"}, at...), 1, `no proxy "none" is connected`, "SERVICE"},
		{append([]string{"clusters", "web", "-o", "xml"}, at...), 2, "write table, wide, yaml, json or short", "SERVICE"},
		{[]string{"clusters", "web"}, 2, "name one with --control", "SERVICE"},
		{[]string{"clusters", "web", "--control", listenNowhere(t)}, 1, "No control plane was reached", "SERVICE"},
		{[]string{"clusters"}, 2, "no proxy is named", "SERVICE"},
		{[]string{"clusters", "a", "b"}, 2, "want one proxy", "SERVICE"},
		{[]string{"clusters", "a", "-f", "-"}, 2, "not both", "SERVICE"},
		{[]string{"clusters", "-f", "a", "--diff"}, 2, "also write --admin", "SERVICE"},
		{[]string{"clusters", "-f", "-", "--admin", "a:1"}, 2, "write -f or --admin", "SERVICE"},
		{[]string{"clusters", "-f", "absent"}, 2, "no such file", "SERVICE"},
		{[]string{"clusters", "-f", big}, 1, "has more than 67108864 bytes", "SERVICE"},
		{[]string{"clusters", "-f", "-"}, 1, "read standard input: it is not a config_dump", "SERVICE"},
		{[]string{"clusters", "--admin", "here"}, 1, "kubectl port-forward", "SERVICE"},
		{[]string{"clusters", "--admin", listenNowhere(t)}, 1, "ask Envoy: ", "SERVICE"},
		{[]string{"clusters", "--admin", envoyAdmin(t, http.StatusForbidden, "no\x1b")}, 1, "returned 403: no", "SERVICE"},
		{[]string{"clusters", "--admin", envoyAdmin(t, http.StatusOK, "{}")}, 1, `it has no "configs"`, "SERVICE"},
		{[]string{"clusters", "--admin", envoyAdmin(t, http.StatusOK, savedDump())}, 0, "xds-grpc", "\x1b"},
		{append([]string{"all", "web-1", "--diff", "--admin", envoyAdmin(t, http.StatusOK, savedDump())}, at...), 0, "No differences in ~the control plane for web-1.shop with the Envoy at 127.", "\x1b"},
		{append([]string{"all", "web-1", "--diff", "-o", "json", "--admin", envoyAdmin(t, http.StatusOK, dumpOf())}, at...), 1, `"difference": "only given"`, "No differences"},
	} {
		out, errs, code := run(t, append([]string{"proxy"}, tc.args...)...)
		if code != tc.code || strings.Contains(out, tc.not) || strings.Contains(errs, "\x1b") {
			t.Errorf("%v: got exit code %d:\n%s%s", tc.args, code, out, errs)
		}
		for has := range strings.SplitSeq(tc.has, "~") {
			if !strings.Contains(out+errs, has) {
				t.Errorf("%v: the output does not contain %q:\n%s%s", tc.args, has, out, errs)
			}
		}
	}
}

// TestProxyDumpOfControlPlane reads the configuration that a real control plane sent to a proxy.
func TestProxyDumpOfControlPlane(t *testing.T) {
	t.Parallel()
	c := startControl(t, "istiod-0")
	c.proxy(t, "web-1", "")
	for part, want := range map[string]string{"clusters": "web.shop.svc.cluster.local", "listeners": "Route: ", "all": "127.77.51.21:80"} {
		if out, errs, code := run(t, "proxy", part, "web-1", "--control", c.http); code != 0 || !strings.Contains(out, want) || strings.Contains(out, "left out") {
			t.Errorf("%s: got exit code %d, want 0 with %q:\n%s%s", part, code, want, out, errs)
		}
	}
}

// TestHostileDump checks that texts of a proxy are escaped before they are printed.
func TestHostileDump(t *testing.T) {
	t.Parallel()
	const evil = "x\x1b[2J\u009b31m\r\nadmin\tSYNCED\u202e\x7f"
	text := dumpOf(testClusters(), testListeners(), testRoutes(), testEndpoints(corev3.HealthStatus_HEALTHY, "10.0.0.7"))
	raw, err := json.Marshal(evil)
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"xds-grpc", "web", "mysql_proxy", "example.org", "reviews", "/login", "x-team", "9080/none", "10.0.0.7", "virtual-service/reviews"} {
		text = strings.ReplaceAll(text, word, string(bytes.Trim(raw, `"`)))
	}
	for _, format := range []string{"table", "wide", "json", "yaml"} {
		for _, more := range [][]string{nil, {"--diff", "--admin", envoyAdmin(t, http.StatusOK, `{"configs":[]}`)}} {
			out, errs, _ := runWith(t, text, append([]string{"proxy", "all", "-f", "-", "-o", format}, more...)...)
			for line := range strings.Lines(out + errs) {
				if strings.HasPrefix(line, "admin") {
					t.Errorf("a text of the proxy starts a line: %q", line)
				}
				for _, r := range strings.TrimSuffix(line, "\n") {
					if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) {
						t.Fatalf("%s: the output contains %U in %q", format, r, line)
					}
				}
			}
			if len(out) < 100 {
				t.Errorf("%s: the output is too short: %q %s", format, out, errs)
			}
		}
	}
}

// TestDeepDump checks that deep nesting is rejected.
func TestDeepDump(t *testing.T) {
	t.Parallel()
	const open, n = `{"@type":"type.googleapis.com/google.protobuf.Any","value":`, 9000
	text := fmt.Sprintf(`{"configs":[{"@type":"type.googleapis.com/envoy.admin.v3.ClustersConfigDump","static_clusters":[{"cluster":%s{}%s}]}]}`, strings.Repeat(open, n), strings.Repeat("}", n))
	if _, errs, code := runWith(t, text, "proxy", "clusters", "-f", "-"); code != 1 || !strings.Contains(errs, "recursion") {
		t.Errorf("got exit code %d: %s", code, errs)
	}
}
