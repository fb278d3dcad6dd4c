// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package patch

import (
	"fmt"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// message decodes a message from YAML.
func message[M proto.Message](t testing.TB, m M, text string) M {
	t.Helper()
	j, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := protojson.Unmarshal(j, m); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return m
}

// parse parses an EnvoyFilter with the patches of a YAML list.
func parse(t testing.TB, name, patches string) (*Filter, []model.Problem) {
	t.Helper()
	spec := message(t, &networkingv1alpha3.EnvoyFilter{}, "configPatches:\n"+patches)
	key := model.Key{Kind: model.EnvoyFilter, Namespace: "default", Name: name}
	return Parse(&model.Config{Key: key, Spec: spec}, spec, Limits{}, nil)
}

// of returns the patches of a YAML list, for any proxy.
func of(t testing.TB, patches string) Patches {
	t.Helper()
	f, problems := parse(t, "f", patches)
	for _, p := range problems {
		t.Error(p)
	}
	return Of([]*Filter{f}, "istio-system", &model.Proxy{})
}

const (
	anyHTTP = `"@type": type.googleapis.com/envoy.extensions.filters.http.`
	anyNet  = `"@type": type.googleapis.com/envoy.extensions.filters.network.`
)

// virtual is a listener for redirected connections with filter chains for two ports.
const virtual = `
name: virtualInbound
traffic_direction: INBOUND
address: {socket_address: {address: 0.0.0.0, port_value: 15006}}
listener_filters: [{name: l1, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.listener.original_dst.v3.OriginalDst}}, {name: l2, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector}}]
filter_chains:
- name: web
  filter_chain_match: {destination_port: 8080, transport_protocol: tls, application_protocols: [istio, h2], server_names: [a.example.com]}
  filters:
  - name: n1
    typed_config: {` + anyNet + `rbac.v3.RBAC, stat_prefix: r}
  - name: envoy.filters.network.http_connection_manager
    typed_config:
      ` + anyNet + `http_connection_manager.v3.HttpConnectionManager
      stat_prefix: web
      route_config: {name: "inbound|8080||", virtual_hosts: [{name: "inbound|http|8080", domains: ["*"], routes: [{name: default, match: {prefix: /}, route: {cluster: "inbound|8080||"}}]}]}
      http_filters:
      - {name: h1, typed_config: {` + anyHTTP + `cors.v3.Cors}}
      - {name: envoy.filters.http.fault, typed_config: {` + anyHTTP + `fault.v3.HTTPFault}}
      - {name: envoy.filters.http.router, typed_config: {` + anyHTTP + `router.v3.Router}}
- name: db
  filter_chain_match: {destination_port: 5432}
  filters: [{name: envoy.filters.network.tcp_proxy, typed_config: {` + anyNet + `tcp_proxy.v3.TcpProxy, stat_prefix: db, cluster: db}}]
`

// order formats the names in a listener, in order.
func order(t *testing.T, l *listenerv3.Listener) string {
	t.Helper()
	var b strings.Builder
	for _, f := range l.GetListenerFilters() {
		fmt.Fprintf(&b, "%s ", f.GetName())
	}
	for _, c := range l.GetFilterChains() {
		fmt.Fprintf(&b, "| %s:", c.GetName())
		for _, f := range c.GetFilters() {
			name := f.GetName()
			if name == connectionManager {
				h := &hcmv3.HttpConnectionManager{}
				if err := f.GetTypedConfig().UnmarshalTo(h); err != nil {
					t.Fatal(err)
				}
				name = "hcm("
				for _, f := range h.GetHttpFilters() {
					name += strings.TrimPrefix(f.GetName(), "envoy.filters.http.") + " "
				}
				name = strings.TrimSpace(name) + ")"
			}
			fmt.Fprintf(&b, " %s", strings.TrimPrefix(name, "envoy.filters.network."))
		}
		b.WriteString(" ")
	}
	return strings.TrimSpace(b.String())
}

func TestListenerOrder(t *testing.T) {
	t.Parallel()
	const (
		plain  = "l1 l2 | web: n1 hcm(h1 fault router) | db: tcp_proxy"
		lua    = `value: {name: new, typed_config: {` + anyHTTP + `lua.v3.Lua}}`
		rbac   = `value: {name: new, typed_config: {` + anyNet + `rbac.v3.RBAC, stat_prefix: x}}`
		inspec = `value: {name: new, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.listener.http_inspector.v3.HttpInspector}}`
	)
	http := func(operation, sub, more string) string {
		filter := "name: envoy.filters.network.http_connection_manager"
		if sub != "" {
			filter += ", subFilter: {name: " + sub + "}"
		}
		value := lua
		if operation == "REMOVE" {
			value = ""
		}
		return "- {applyTo: HTTP_FILTER, match: {listener: {" + more + "filterChain: {filter: {" + filter + "}}}}, patch: {operation: " + operation + ", " + value + "}}"
	}
	network := func(operation, name, more string) string {
		value := rbac
		if operation == "REMOVE" {
			value = ""
		}
		chain := more
		if name != "" {
			chain += "filter: {name: " + name + "}"
		}
		return "- {applyTo: NETWORK_FILTER, match: {listener: {filterChain: {" + chain + "}}}, patch: {operation: " + operation + ", " + value + "}}"
	}
	part := func(operation, name string) string {
		value := inspec
		if operation == "REMOVE" {
			value = ""
		}
		return "- {applyTo: LISTENER_FILTER, match: {listener: {listenerFilter: '" + name + "'}}, patch: {operation: " + operation + ", " + value + "}}"
	}
	for name, tc := range map[string]struct{ patches, want string }{
		"http before":           {http("INSERT_BEFORE", "envoy.filters.http.router", ""), "l1 l2 | web: n1 hcm(h1 fault new router) | db: tcp_proxy"},
		"http before an old":    {http("INSERT_BEFORE", "envoy.router", ""), "l1 l2 | web: n1 hcm(h1 fault new router) | db: tcp_proxy"},
		"http before any":       {http("INSERT_BEFORE", "", ""), "l1 l2 | web: n1 hcm(new h1 fault router) | db: tcp_proxy"},
		"http before nothing":   {http("INSERT_BEFORE", "none", ""), plain},
		"http after":            {http("INSERT_AFTER", "h1", ""), "l1 l2 | web: n1 hcm(h1 new fault router) | db: tcp_proxy"},
		"http first":            {http("INSERT_FIRST", "", ""), "l1 l2 | web: n1 hcm(new h1 fault router) | db: tcp_proxy"},
		"http replace":          {http("REPLACE", "h1", ""), "l1 l2 | web: n1 hcm(new fault router) | db: tcp_proxy"},
		"http remove":           {http("REMOVE", "h1", ""), "l1 l2 | web: n1 hcm(fault router) | db: tcp_proxy"},
		"http at a port":        {http("REMOVE", "h1", "portNumber: 8080, "), "l1 l2 | web: n1 hcm(fault router) | db: tcp_proxy"},
		"http at another port":  {http("REMOVE", "h1", "portNumber: 81, "), plain},
		"http in another":       {http("REMOVE", "h1", "name: virtualOutbound, "), plain},
		"http class authn":      {"- {applyTo: HTTP_FILTER, patch: {operation: ADD, filterClass: AUTHN, " + lua + "}}", "l1 l2 | web: n1 hcm(new h1 fault router) | db: tcp_proxy"},
		"http class stats":      {"- {applyTo: HTTP_FILTER, patch: {operation: ADD, filterClass: STATS, " + lua + "}}", "l1 l2 | web: n1 hcm(h1 fault new router) | db: tcp_proxy"},
		"network before":        {network("INSERT_BEFORE", "n1", ""), "l1 l2 | web: new n1 hcm(h1 fault router) | db: tcp_proxy"},
		"network after":         {network("INSERT_AFTER", "n1", ""), "l1 l2 | web: n1 new hcm(h1 fault router) | db: tcp_proxy"},
		"network first":         {network("INSERT_FIRST", "", ""), "l1 l2 | web: new n1 hcm(h1 fault router) | db: new tcp_proxy"},
		"network first, a port": {network("INSERT_FIRST", "", "destinationPort: 5432, "), "l1 l2 | web: n1 hcm(h1 fault router) | db: new tcp_proxy"},
		"network, a name":       {network("INSERT_FIRST", "", "name: web, "), "l1 l2 | web: new n1 hcm(h1 fault router) | db: tcp_proxy"},
		"network, sni":          {network("INSERT_FIRST", "", "sni: a.example.com, "), "l1 l2 | web: new n1 hcm(h1 fault router) | db: tcp_proxy"},
		"network, other sni":    {network("INSERT_FIRST", "", "sni: b.example.com, "), plain},
		"network, transport":    {network("INSERT_FIRST", "", "transportProtocol: tls, "), "l1 l2 | web: new n1 hcm(h1 fault router) | db: tcp_proxy"},
		"network, protocols":    {network("INSERT_FIRST", "", "applicationProtocols: 'h2,istio', "), "l1 l2 | web: new n1 hcm(h1 fault router) | db: tcp_proxy"},
		"network, more":         {network("INSERT_FIRST", "", "applicationProtocols: 'h2,h3', "), plain},
		"network replace":       {network("REPLACE", "n1", ""), "l1 l2 | web: new hcm(h1 fault router) | db: tcp_proxy"},
		"network remove":        {network("REMOVE", "n1", ""), "l1 l2 | web: hcm(h1 fault router) | db: tcp_proxy"},
		"listener filter add":   {part("ADD", ""), "l1 l2 new | web: n1 hcm(h1 fault router) | db: tcp_proxy"},
		"listener filter first": {part("INSERT_FIRST", ""), "new l1 l2 | web: n1 hcm(h1 fault router) | db: tcp_proxy"},
		"listener before":       {part("INSERT_BEFORE", "l2"), "l1 new l2 | web: n1 hcm(h1 fault router) | db: tcp_proxy"},
		"listener after":        {part("INSERT_AFTER", "l1"), "l1 new l2 | web: n1 hcm(h1 fault router) | db: tcp_proxy"},
		"listener replace":      {part("REPLACE", "l1"), "new l2 | web: n1 hcm(h1 fault router) | db: tcp_proxy"},
		"listener remove":       {part("REMOVE", "l1"), "l2 | web: n1 hcm(h1 fault router) | db: tcp_proxy"},
		"chain remove":          {"- {applyTo: FILTER_CHAIN, match: {listener: {filterChain: {name: db}}}, patch: {operation: REMOVE}}", "l1 l2 | web: n1 hcm(h1 fault router)"},
		"chain add": {
			"- {applyTo: FILTER_CHAIN, patch: {operation: ADD, value: {name: new, filter_chain_match: {destination_port: 1}, filters: [{name: last, typed_config: {" + anyNet + "tcp_proxy.v3.TcpProxy, stat_prefix: a, cluster: b}}]}}}",
			plain + " | new: last",
		},
		"gateways only": {"- {applyTo: FILTER_CHAIN, match: {context: GATEWAY, listener: {filterChain: {name: db}}}, patch: {operation: REMOVE}}", plain},
		"listener":      {"- {applyTo: LISTENER, match: {listener: {portNumber: 15006}}, patch: {operation: REMOVE}}", "removed"},
		"other port":    {"- {applyTo: LISTENER, match: {listener: {portNumber: 8080}}, patch: {operation: REMOVE}}", plain},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			base := message(t, &listenerv3.Listener{}, virtual)
			o := of(t, tc.patches).Listener(base, Place{})
			got := order(t, o.Message)
			if o.Removed {
				got = "removed"
			}
			if got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
			if hit := tc.want != plain; hit != (len(o.Hits) == 1) || len(o.Problems) > 0 {
				t.Errorf("%d patches had an effect, want one: %t; problems: %v", len(o.Hits), hit, o.Problems)
			}
			if got := order(t, base); got != plain {
				t.Errorf("the input was modified: %s", got)
			}
		})
	}
}

const twoHosts = `
name: "80"
virtual_hosts:
- {name: a, domains: [a.example.com], routes: [{name: r1, match: {prefix: /1}, route: {cluster: a}}, {name: r2, match: {prefix: /2}, redirect: {path_redirect: /}}]}
- {name: b, domains: [b.example.com], routes: [{name: r3, match: {prefix: /}, direct_response: {status: 200}}]}
`

func TestRoutes(t *testing.T) {
	t.Parallel()
	const plain = "a: r1 r2 | b: r3"
	route := func(operation, match, value string) string {
		return "- {applyTo: HTTP_ROUTE, match: {routeConfiguration: {" + match + "}}, patch: {operation: " + operation + value + "}}"
	}
	host := func(operation, match, value string) string {
		return strings.Replace(route(operation, match, value), "HTTP_ROUTE", "VIRTUAL_HOST", 1)
	}
	const newRoute, newHost = ", value: {name: new, match: {prefix: /}, direct_response: {status: 204}}", ", value: {name: new, domains: [c.example.com]}"
	for name, tc := range map[string]struct{ patches, want string }{
		"add":              {route("ADD", "vhost: {name: a}", newRoute), "a: r1 r2 new | b: r3"},
		"add to all":       {route("ADD", "", newRoute), "a: r1 r2 new | b: r3 new"},
		"first":            {route("INSERT_FIRST", "vhost: {name: a, route: {name: r2}}", newRoute), "a: new r1 r2 | b: r3"},
		"first of none":    {route("INSERT_FIRST", "vhost: {name: a, route: {name: r9}}", newRoute), plain},
		"before":           {route("INSERT_BEFORE", "vhost: {name: a, route: {name: r2}}", newRoute), "a: r1 new r2 | b: r3"},
		"after":            {route("INSERT_AFTER", "vhost: {name: a, route: {name: r1}}", newRoute), "a: r1 new r2 | b: r3"},
		"remove redirects": {route("REMOVE", "vhost: {route: {action: REDIRECT}}", ""), "a: r1 | b: r3"},
		"remove answers":   {route("REMOVE", "vhost: {route: {action: DIRECT_RESPONSE}}", ""), "a: r1 r2 | b:"},
		"remove":           {route("REMOVE", "vhost: {route: {action: ROUTE}}", ""), "a: r2 | b: r3"},
		"merge":            {route("MERGE", "vhost: {route: {name: r1}}", ", value: {name: merged}"), "a: merged r2 | b: r3"},
		"port":             {route("MERGE", "portNumber: 80, vhost: {route: {name: r1}}", ", value: {name: merged}"), "a: merged r2 | b: r3"},
		"other port":       {route("MERGE", "portNumber: 81", ", value: {name: merged}"), plain},
		"other name":       {route("MERGE", "name: '81'", ", value: {name: merged}"), plain},
		"host add":         {host("ADD", "name: '80'", newHost), "a: r1 r2 | b: r3 | new:"},
		"host remove":      {host("REMOVE", "vhost: {name: a}", ""), "b: r3"},
		"host by domain":   {host("REMOVE", "vhost: {domainName: b.example.com}", ""), "a: r1 r2"},
		"host replace":     {host("REPLACE", "vhost: {name: a}", newHost), "new: | b: r3"},
		"host merge":       {host("MERGE", "vhost: {name: a}", ", value: {name: m}"), "m: r1 r2 | b: r3"},
		"configuration":    {"- {applyTo: ROUTE_CONFIGURATION, patch: {operation: MERGE, value: {virtual_hosts: [{name: c, domains: [c.example.com]}]}}}", "a: r1 r2 | b: r3 | c:"},
		"inbound":          {"- {applyTo: HTTP_ROUTE, match: {context: SIDECAR_INBOUND}, patch: {operation: REMOVE}}", plain},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, suffix := range []string{"", VHDSSuffix} {
				base := message(t, &routev3.RouteConfiguration{}, strings.Replace(twoHosts, `"80"`, `"80`+suffix+`"`, 1))
				o := of(t, tc.patches).Routes(base, Place{})
				var parts []string
				for _, vh := range o.Message.GetVirtualHosts() {
					text := vh.GetName() + ":"
					for _, r := range vh.GetRoutes() {
						text += " " + r.GetName()
					}
					parts = append(parts, text)
				}
				if got := strings.Join(parts, " | "); got != tc.want || len(o.Problems) > 0 || (len(o.Hits) == 1) != (tc.want != plain) {
					t.Errorf("got  %s\nwant %s; %d patches had an effect, problems: %v", got, tc.want, len(o.Hits), o.Problems)
				}
			}
		})
	}
}

func TestGatewayRoutes(t *testing.T) {
	t.Parallel()
	for match, want := range map[string]bool{
		"portNumber: 443": true, "portNumber: 8443": false, "portNumber: 80": false, "portName: https": true, "portName: http": false,
		"gateway: shop/public.web": true, "gateway: shop/other": false, "name: https.8443.https.public.web.shop": true,
	} {
		p := of(t, "- {applyTo: ROUTE_CONFIGURATION, match: {context: GATEWAY, routeConfiguration: {"+match+"}}, patch: {operation: MERGE, value: {}}}")
		place := Place{Context: networkingv1alpha3.EnvoyFilter_GATEWAY, Ports: map[uint32][]uint32{8443: {443}}}
		if got := p.TouchesRoutes("https.8443.https.public.web.shop", place); got != want {
			t.Errorf("%s: TouchesRoutes() = %t", match, got)
		}
	}
}

func TestClusters(t *testing.T) {
	t.Parallel()
	place := Place{Hosts: map[uint32][]string{8080: {"own.example.com"}}}
	for match, want := range map[string]string{
		"": "outbound|80|v1|a.example.com inbound|8080|| Passthrough", "name: Passthrough": "Passthrough", "portNumber: 80": "outbound|80|v1|a.example.com",
		"subset: v1": "outbound|80|v1|a.example.com", "service: a.example.com": "outbound|80|v1|a.example.com", "service: own.example.com": "inbound|8080||",
		"service: none": "",
	} {
		p := of(t, "- {applyTo: CLUSTER, match: {cluster: {"+match+"}}, patch: {operation: MERGE, value: {connect_timeout: 0.25s}}}")
		var got []string
		for _, name := range []string{"outbound|80|v1|a.example.com", "inbound|8080||", "Passthrough"} {
			o := p.Cluster(message(t, &clusterv3.Cluster{}, "{name: '"+name+"', connect_timeout: 10.5s}"), place)
			if len(o.Hits) > 0 {
				got = append(got, name)
				if d := o.Message.GetConnectTimeout(); d.GetSeconds() != 0 || d.GetNanos() != 250e6 {
					t.Errorf("%s: timeout: got %v, want 250 ms, because durations are replaced", name, d)
				}
			}
			if p.TouchesCluster(name, place) != (len(o.Hits) > 0) {
				t.Errorf("%q: TouchesCluster differs for %s", match, name)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q: got %v, want %s", match, got, want)
		}
	}
}

func TestMergeSocket(t *testing.T) {
	t.Parallel()
	const tls = `{name: envoy.transport_sockets.tls, typed_config: {"@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext, sni: `
	p := of(t, "- {applyTo: CLUSTER, patch: {operation: MERGE, value: {transport_socket: "+tls+"new}}}}}")
	for name, tc := range map[string]struct{ has, want string }{
		"none":    {"", `"sni":"new"`},
		"same":    {"transport_socket: " + tls + "old, max_session_keys: 3}}", `"sni":"new","maxSessionKeys":3`},
		"matches": {"transport_socket_matches: [{name: a, match: {}, transport_socket: " + tls + "old, max_session_keys: 3}}}]", `"sni":"new","maxSessionKeys":3`},
	} {
		o := p.Cluster(message(t, &clusterv3.Cluster{}, "{name: a, connect_timeout: 1s, "+tc.has+"}"), Place{})
		text := strings.ReplaceAll(protojson.MarshalOptions{}.Format(o.Message), " ", "")
		if !strings.Contains(text, tc.want) || len(o.Hits) != 1 || len(o.Problems) > 0 {
			t.Errorf("%s: got %s, problems %v", name, text, o.Problems)
		}
	}
	other := message(t, &clusterv3.Cluster{}, "{name: a, connect_timeout: 1s, transport_socket_matches: [{name: a, match: {}, transport_socket: {name: raw}}]}")
	if o := p.Cluster(other, Place{}); len(o.Hits) > 0 || o.Message.GetTransportSocket() != nil {
		t.Errorf("a patch for another transport socket was merged: %v", o.Message)
	}
}

func TestMergeValues(t *testing.T) {
	t.Parallel()
	dst := message(t, &corev3.HttpProtocolOptions{}, "{idle_timeout: 10.5s, max_headers_count: 3}")
	into(dst, message(t, &corev3.HttpProtocolOptions{}, "{idle_timeout: 2s, max_headers_count: 0}"), false)
	if dst.GetIdleTimeout().GetNanos() != 0 || dst.GetMaxHeadersCount() == nil || dst.GetMaxHeadersCount().GetValue() != 0 {
		t.Errorf("merged message: got %v", dst)
	}
	c := message(t, &clusterv3.Cluster{}, "{circuit_breakers: {thresholds: [{priority: HIGH}]}}")
	more := message(t, &clusterv3.Cluster{}, "{circuit_breakers: {thresholds: [{max_retries: 1}]}}")
	into(c, more, false)
	if n := len(c.GetCircuitBreakers().GetThresholds()); n != 2 {
		t.Errorf("%d thresholds, want 2", n)
	}
	into(c, more, true)
	if n := len(c.GetCircuitBreakers().GetThresholds()); n != 1 {
		t.Errorf("%d thresholds, want only the new one", n)
	}
}

// TestMergeDNS checks that the settings of DNS in a cluster reach the type that resolves its names.
func TestMergeDNS(t *testing.T) {
	t.Parallel()
	const has = `{name: a, connect_timeout: 1s, cluster_type: {name: envoy.clusters.dns, typed_config: {"@type": type.googleapis.com/envoy.extensions.clusters.dns.v3.DnsCluster, dns_refresh_rate: 60s, dns_lookup_family: V4_ONLY}}}`
	for value, want := range map[string]string{
		"dns_lookup_family: V6_ONLY, dns_refresh_rate: 7s": `"dnsRefreshRate":"7s","dnsLookupFamily":"V6_ONLY"`,
		"dns_failure_refresh_rate: {base_interval: 2s}":    `"dnsFailureRefreshRate":{"baseInterval":"2s"}`,
		"type: LOGICAL_DNS":                       `"dnsLookupFamily":"V4_ONLY","allAddressesInSingleEndpoint":true`,
		"type: STATIC":                            `"type":"STATIC"`,
		"connect_timeout: 2s":                     `"dnsRefreshRate":"60s","dnsLookupFamily":"V4_ONLY"`,
		"type: STRICT_DNS, respect_dns_ttl: true": `"respectDnsTtl":true`,
		"dns_lookup_family: ALL, typed_dns_resolver_config: {name: own, typed_config: {\"@type\": type.googleapis.com/envoy.extensions.network.dns_resolver.cares.v3.CaresDnsResolverConfig}}": `"dnsLookupFamily":"ALL"`,
	} {
		o := of(t, "- {applyTo: CLUSTER, patch: {operation: MERGE, value: {"+value+"}}}").Cluster(message(t, &clusterv3.Cluster{}, has), Place{})
		text := strings.ReplaceAll(protojson.MarshalOptions{}.Format(o.Message), " ", "")
		if !strings.Contains(text, want) || strings.Count(text, "dnsLookupFamily") > 1 || len(o.Problems) > 0 {
			t.Errorf("%s: got %s, problems %v", value, text, o.Problems)
		}
	}
}
