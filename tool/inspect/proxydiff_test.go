// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"bytes"
	"slices"
	"testing"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	pluginv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/outrigger-mesh/outrigger/internal/redact"
)

func parsed(t testing.TB, text string) *configuration {
	t.Helper()
	c, err := readDump([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func routesOf(onDemand bool, names ...string) *adminv3.RoutesConfigDump {
	r := &routev3.RouteConfiguration{Name: "web"}
	if onDemand {
		r.Vhds = &routev3.Vhds{}
	}
	for _, name := range names {
		r.VirtualHosts = append(r.VirtualHosts, &routev3.VirtualHost{Name: name})
	}
	return &adminv3.RoutesConfigDump{DynamicRouteConfigs: []*adminv3.RoutesConfigDump_DynamicRouteConfig{{RouteConfig: packed(r)}}}
}

// encrypted returns a TLS cluster with a private key.
func encrypted(key, sni string) *clusterv3.Cluster {
	c := cluster("tls", clusterv3.Cluster_EDS)
	c.TransportSocket = &corev3.TransportSocket{Name: "tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: packed(&tlsv3.UpstreamTlsContext{
		Sni: sni, CommonTlsContext: &tlsv3.CommonTlsContext{TlsCertificates: []*tlsv3.TlsCertificate{{
			PrivateKey: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: key}},
			Password:   &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: []byte(key)}},
		}}},
	})}}
	return c
}

// plugin returns a Wasm filter with variables and a module.
func plugin(root string, env map[string]string, code *corev3.AsyncDataSource) *adminv3.EcdsConfigDump {
	vm := &pluginv3.VmConfig{Code: code}
	if env != nil {
		vm.EnvironmentVariables = &pluginv3.EnvironmentVariables{KeyValues: env}
	}
	filter := &wasmv3.Wasm{Config: &pluginv3.PluginConfig{RootId: root, Vm: &pluginv3.PluginConfig_VmConfig{VmConfig: vm}}}
	return &adminv3.EcdsConfigDump{EcdsFilters: []*adminv3.EcdsConfigDump_EcdsFilterConfig{{EcdsFilter: packed(&corev3.TypedExtensionConfig{Name: "shop.count", TypedConfig: packed(filter)})}}}
}

// requesting returns a listener that requests a filter.
func requesting(name string) *listenerv3.Listener {
	manager := &hcmv3.HttpConnectionManager{HttpFilters: []*hcmv3.HttpFilter{{Name: name, ConfigType: &hcmv3.HttpFilter_ConfigDiscovery{ConfigDiscovery: &corev3.ExtensionConfigSource{}}}}}
	return &listenerv3.Listener{Name: "web", FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{filterTo(manager)}}}}
}

// TestProxyDiff compares the configuration that a proxy was sent with that of its Envoy.
func TestProxyDiff(t *testing.T) {
	t.Parallel()
	eds, static := cluster("eds", clusterv3.Cluster_EDS), cluster("own", clusterv3.Cluster_STATIC)
	named := cluster("eds", clusterv3.Cluster_EDS)
	named.EdsClusterConfig = &clusterv3.Cluster_EdsClusterConfig{ServiceName: "service"}
	changed := proto.CloneOf(eds)
	changed.AltStatName = "other"
	dynamic := func(list ...*clusterv3.Cluster) *adminv3.ClustersConfigDump {
		return &adminv3.ClustersConfigDump{DynamicActiveClusters: dynamicClusters(list...)}
	}
	endpoints := func(list ...*endpointv3.ClusterLoadAssignment) *adminv3.EndpointsConfigDump {
		d := &adminv3.EndpointsConfigDump{}
		for _, a := range list {
			d.DynamicEndpointConfigs = append(d.DynamicEndpointConfigs, &adminv3.EndpointsConfigDump_DynamicEndpointConfig{EndpointConfig: packed(a)})
		}
		return d
	}
	assigned := func(name string, hosts ...string) *endpointv3.ClusterLoadAssignment {
		return assignment(name, corev3.HealthStatus_UNKNOWN, 80, hosts...)
	}
	unhealthy := assignment("eds", corev3.HealthStatus_UNHEALTHY, 80, "b", "a")
	heavy := assigned("eds", "a", "b")
	for _, e := range unhealthy.GetEndpoints()[0].GetLbEndpoints() {
		e.LoadBalancingWeight = wrapperspb.UInt32(1)
	}
	heavy.Endpoints[0].LbEndpoints[0].LoadBalancingWeight = wrapperspb.UInt32(2)
	moved := assigned("eds", "a", "b")
	moved.Endpoints[0].Locality = &corev3.Locality{Region: "west"}
	all := []proto.Message{testClusters(), testListeners(), testRoutes(), testEndpoints(corev3.HealthStatus_UNKNOWN, "10.0.0.7"), testExtensions()}
	for name, tc := range map[string]struct {
		given, has []proto.Message
		want       []difference
	}{
		"the same": {given: all, has: all},
		"the bootstrap of Envoy": {has: []proto.Message{&adminv3.ClustersConfigDump{
			StaticClusters: []*adminv3.ClustersConfigDump_StaticCluster{{Cluster: packed(static)}},
		}}},
		"only sent":                     {given: []proto.Message{dynamic(eds)}, has: []proto.Message{}, want: []difference{{"clusters", "eds", onlyGiven}}},
		"only in Envoy":                 {has: []proto.Message{dynamic(eds)}, want: []difference{{"clusters", "eds", onlyEnvoy}}},
		"another field":                 {given: []proto.Message{dynamic(eds)}, has: []proto.Message{dynamic(changed)}, want: []difference{{"clusters", "eds", differs}}},
		"another order of hosts":        {given: []proto.Message{routesOf(false, "a", "b")}, has: []proto.Message{routesOf(false, "b", "a")}},
		"a missing host":                {given: []proto.Message{routesOf(false, "a", "b")}, has: []proto.Message{routesOf(false, "b")}, want: []difference{{"routes", "web", differs}}},
		"a host that is not requested":  {given: []proto.Message{routesOf(true, "a", "b")}, has: []proto.Message{routesOf(true, "b")}},
		"a host that was not sent":      {given: []proto.Message{routesOf(true, "a")}, has: []proto.Message{routesOf(true, "b")}, want: []difference{{"routes", "web", differs}}},
		"health, order, default weight": {given: []proto.Message{endpoints(assigned("eds", "a", "b"))}, has: []proto.Message{endpoints(unhealthy)}},
		"another weight":                {given: []proto.Message{endpoints(assigned("eds", "a", "b"))}, has: []proto.Message{endpoints(heavy)}, want: []difference{{"endpoints", "eds", differs}}},
		"another locality":              {given: []proto.Message{endpoints(assigned("eds", "a", "b"))}, has: []proto.Message{endpoints(moved)}, want: []difference{{"endpoints", "eds", differs}}},
		"a secret that Envoy hides":     {given: []proto.Message{dynamic(encrypted("key", "name"))}, has: []proto.Message{dynamic(encrypted(redact.Mark, "name"))}},
		"a name next to a secret":       {given: []proto.Message{dynamic(encrypted("key", "name"))}, has: []proto.Message{dynamic(encrypted(redact.Mark, "other"))}, want: []difference{{"clusters", "tls", differs}}},
		"a module that the agent fetched": {
			given: []proto.Message{plugin("greet", map[string]string{"ISTIO_META_WASM_IMAGE_PULL_POLICY": "Always"}, &corev3.AsyncDataSource{Specifier: &corev3.AsyncDataSource_Remote{Remote: &corev3.RemoteDataSource{Sha256: "1"}}})},
			has:   []proto.Message{plugin("greet", nil, &corev3.AsyncDataSource{Specifier: &corev3.AsyncDataSource_Local{Local: &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: "m.wasm"}}}})},
		},
		"another plugin":                {given: []proto.Message{plugin("greet", map[string]string{"A": "1"}, nil)}, has: []proto.Message{plugin("greet", map[string]string{"A": "2"}, nil)}, want: []difference{{"ecds", "shop.count", differs}}},
		"a plugin that no listener has": {given: []proto.Message{plugin("greet", nil, nil)}},
		"a missing plugin": {
			given: []proto.Message{plugin("greet", nil, nil)}, has: []proto.Message{&adminv3.ListenersConfigDump{StaticListeners: []*adminv3.ListenersConfigDump_StaticListener{{Listener: packed(requesting("shop.count"))}}}},
			want: []difference{{"ecds", "shop.count", onlyGiven}},
		},
		"a listener that drains":        {has: []proto.Message{&adminv3.ListenersConfigDump{DynamicListeners: testListeners().GetDynamicListeners()[3:]}}},
		"no endpoints":                  {given: []proto.Message{endpoints(assigned("eds"))}},
		"endpoints that are missing":    {given: []proto.Message{endpoints(assigned("eds", "a"))}, want: []difference{{"endpoints", "eds", onlyGiven}}},
		"endpoints of a static cluster": {given: []proto.Message{dynamic(static)}, has: []proto.Message{dynamic(static), endpoints(assigned("own", "a"))}},
		"endpoints that Envoy kept":     {given: []proto.Message{dynamic(eds)}, has: []proto.Message{dynamic(eds), endpoints(assigned("eds", "a"))}, want: []difference{{"endpoints", "eds", onlyEnvoy}}},
		"endpoints with their own name": {given: []proto.Message{dynamic(named)}, has: []proto.Message{dynamic(named), endpoints(assigned("service", "a"))}, want: []difference{{"endpoints", "service", onlyEnvoy}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			f := proxyConfigFlags{askFlags: askFlags{output: outTable, cfg: Config{Exit: func(code int, _ error) error { return exit{code: code} }}}, parts: parts()}
			err := f.compare(view{out: &out, flags: &f.askFlags}, parsed(t, dumpOf(tc.given...)), parsed(t, dumpOf(tc.has...)))
			if (err != nil) != (len(tc.want) > 0) {
				t.Errorf("got error %v", err)
			}
			lines := bytes.Split(out.Bytes(), []byte("\n"))
			for i, d := range tc.want {
				if got := string(bytes.Join(bytes.Fields(lines[i+1]), []byte(" "))); got != d.Type+" "+d.Name+" "+d.Difference {
					t.Error(cmp.Diff(d.Difference, got))
				}
			}
			if none := bytes.Contains(out.Bytes(), []byte("No differences in")); none != (len(tc.want) == 0) {
				t.Errorf("%s", &out)
			}
		})
	}
}

func FuzzProxyDump(f *testing.F) {
	f.Add([]byte(savedDump()))
	f.Add([]byte(dumpOf(routesOf(true, "a"))))
	f.Add([]byte(`{"configs":[{"@type":"envoy.admin.v3.ListenersConfigDump"}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := readDump(raw)
		if err != nil {
			return
		}
		var out bytes.Buffer
		v := view{out: &out, flags: &askFlags{}}
		if err := v.configuration(c, parts()); err != nil {
			t.Fatal(err)
		}
		if bytes.ContainsFunc(bytes.ReplaceAll(out.Bytes(), []byte("\n"), nil), func(r rune) bool { return r < ' ' }) {
			t.Errorf("the output contains control characters: %q", &out)
		}
		for _, p := range parts() {
			names := map[string]bool{}
			duplicate := slices.ContainsFunc(c.resources[p.name], func(r resource) bool {
				was := names[r.name]
				names[r.name] = true
				return was
			})
			if list := differences(p.name, sent(c.resources[p.name]), sent(c.resources[p.name])); len(list) > 0 && !duplicate {
				t.Errorf("the dump differs from itself: %v", list)
			}
		}
	})
}
