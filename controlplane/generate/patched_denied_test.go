// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
	"github.com/outrigger-mesh/outrigger/e2e/envoytest"
)

// patchesOfProtection are patches that would let denied peers in. PORT_… are ports of [guarded].
var patchesOfProtection = map[string]string{
	"remove": `
  - {applyTo: NETWORK_FILTER, match: {listener: {filterChain: {filter: {name: envoy.filters.network.rbac}}}}, patch: {operation: REMOVE}}
  - {applyTo: NETWORK_FILTER, match: {listener: {filterChain: {filter: {name: envoy.filters.network.set_filter_state}}}}, patch: {operation: REMOVE}}
`,
	"replace": `
  - applyTo: NETWORK_FILTER
    match: {listener: {filterChain: {filter: {name: envoy.filters.network.rbac}}}}
    patch: {operation: REPLACE, value: {name: envoy.filters.network.rbac, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.rbac.v3.RBAC, stat_prefix: denied.}}}
`,
	"merge": `
  - applyTo: NETWORK_FILTER
    match: {listener: {filterChain: {filter: {name: envoy.filters.network.rbac}}}}
    patch: {operation: MERGE, value: {typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.rbac.v3.RBAC, rules: {action: LOG}}}}
`,
	"first": `
  - applyTo: NETWORK_FILTER
    match: {context: SIDECAR_INBOUND}
    patch: {operation: INSERT_FIRST, value: {name: own, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.connection_limit.v3.ConnectionLimit, stat_prefix: own, max_connections: 1000}}}
`,
	"filters of a chain": `
  - applyTo: FILTER_CHAIN
    match: {context: SIDECAR_INBOUND, listener: {portNumber: PORT_TCP}}
    patch: {operation: MERGE_AND_REPLACE_LIST, value: {filters: [{name: own, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: own, cluster: "inbound|PORT_TCP||"}}]}}
`,
	"names": `
  - applyTo: FILTER_CHAIN
    match: {context: SIDECAR_INBOUND, listener: {filterChain: {transportProtocol: tls}}}
    patch: {operation: MERGE, value: {transport_socket: {name: envoy.transport_sockets.tls, typed_config: {"@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext, common_tls_context: {combined_validation_context: {default_validation_context: {match_typed_subject_alt_names: [{san_type: URI, matcher: {prefix: "spiffe://"}}]}}}}}}}
  - applyTo: CLUSTER
    match: {cluster: {service: far.default.svc.cluster.local}}
    patch: {operation: MERGE, value: {transport_socket: {name: envoy.transport_sockets.tls, typed_config: {"@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext, common_tls_context: {combined_validation_context: {default_validation_context: {match_typed_subject_alt_names: [{san_type: URI, matcher: {exact: "spiffe://cluster.local/ns/default/sa/far"}}]}}}}}}}
`,
	"names in a TypedStruct": `
  - applyTo: FILTER_CHAIN
    match: {context: SIDECAR_INBOUND, listener: {filterChain: {transportProtocol: tls}}}
    patch: {operation: MERGE, value: {transport_socket: {name: envoy.transport_sockets.tls, typed_config: {"@type": type.googleapis.com/udpa.type.v1.TypedStruct, type_url: type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext, value: {common_tls_context: {combined_validation_context: {default_validation_context: {match_typed_subject_alt_names: [{san_type: URI, matcher: {prefix: "spiffe://"}}]}}}}}}}}
  - applyTo: CLUSTER
    match: {cluster: {service: far.default.svc.cluster.local}}
    patch: {operation: MERGE, value: {transport_socket: {name: envoy.transport_sockets.tls, typed_config: {"@type": type.googleapis.com/xds.type.v3.TypedStruct, type_url: type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext, value: {common_tls_context: {combined_validation_context: {default_validation_context: {match_typed_subject_alt_names: [{san_type: URI, matcher: {exact: "spiffe://cluster.local/ns/default/sa/far"}}]}}}}}}}}
`,
	"other sockets": `
  - applyTo: FILTER_CHAIN
    match: {context: SIDECAR_INBOUND, listener: {filterChain: {transportProtocol: tls}}}
    patch: {operation: MERGE, value: {transport_socket: {name: own, typed_config: {"@type": type.googleapis.com/envoy.extensions.transport_sockets.tcp_stats.v3.Config, transport_socket: {name: tls, typed_config: {"@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext, OWN_CONTEXT}}}}}}
  - applyTo: CLUSTER
    match: {cluster: {service: far.default.svc.cluster.local}}
    patch: {operation: MERGE, value: {transport_socket: {name: own, typed_config: {"@type": type.googleapis.com/envoy.extensions.transport_sockets.http_11_proxy.v3.Http11ProxyUpstreamTransport, transport_socket: {name: tls, typed_config: {"@type": type.googleapis.com/udpa.type.v1.TypedStruct, type_url: type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext, value: {common_tls_context: {tls_certificate_sds_secret_configs: [{name: default, sds_config: {ads: {}}}], combined_validation_context: {default_validation_context: {match_typed_subject_alt_names: [{san_type: URI, matcher: {exact: "spiffe://cluster.local/ns/default/sa/far"}}]}, validation_context_sds_secret_config: {name: ROOTCA, sds_config: {ads: {}}}}}}}}}}}}
---
kind: DestinationRule
metadata: {name: far, namespace: default} # for one socket, which a patch can replace
spec: {host: far.default.svc.cluster.local, trafficPolicy: {tls: {mode: ISTIO_MUTUAL}}}
`,
	"chain and listener": `
  - {applyTo: FILTER_CHAIN, patch: {operation: ADD, value: OWN}}
  - {applyTo: LISTENER, patch: {operation: ADD, value: {name: own, address: {socket_address: {address: 127.0.0.1, port_value: 9}}, filter_chains: [OWN]}}}
`,
	"chain with a TypedStruct": `
  - {applyTo: FILTER_CHAIN, patch: {operation: ADD, value: OWN_STRUCT}}
`,
}

// ownContext verifies clients; ownChain is a filter chain with it.
const ownContext = `require_client_certificate: true, common_tls_context: {` +
	`tls_certificate_sds_secret_configs: [{name: default, sds_config: {ads: {}}}],` +
	` combined_validation_context: {default_validation_context: {}, validation_context_sds_secret_config: {name: ROOTCA, sds_config: {ads: {}}}}}`

const ownChain = `{name: own, filter_chain_match: {server_names: [own.example.com]}, filters: [{name: own, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: own, cluster: BlackHoleCluster}}],` +
	` transport_socket: {name: envoy.transport_sockets.tls, typed_config: {"@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext, ` + ownContext + `}}}`

func protectionPatch(name string) string {
	const tls = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext,"
	asStruct := strings.TrimSuffix(strings.Replace(ownChain, tls, "type.googleapis.com/xds.type.v3.TypedStruct, type_url: "+tls+" value: {", 1), "}}}") + "}}}}"
	return "kind: EnvoyFilter\nmetadata: {name: hostile, namespace: default}\nspec:\n  configPatches:" +
		strings.NewReplacer("OWN_STRUCT", asStruct, "OWN_CONTEXT", ownContext, "OWN", ownChain).Replace(patchesOfProtection[name])
}

// TestEnvoyDeniesWithPatches checks that patches of EnvoyFilters do not let denied peers in.
func TestEnvoyDeniesWithPatches(t *testing.T) {
	t.Parallel()
	s := startGuarded(t, nil)
	one, _, _ := s.identity(t, "spiffe://cluster.local/ns/ok/sa/fine")
	other, _, _ := s.identity(t, "spiffe://cluster.local/ns/ok/sa/fine")
	exact, _, _ := s.identity(t, "spiffe://cluster.local/ns/evil/sa/mallory")
	out := &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: s.address + ":" + s.ports["PROXY"]})}}
	list := denyList(t, fmt.Sprintf("spiffe://cluster.local/ns/evil/sa/mallory\nspiffe://cluster.local/ns/default/sa/far\nserial %X\n", one.Leaf.SerialNumber))
	plain := s.objects
	for name := range patchesOfProtection {
		if strings.HasPrefix(name, "chain ") {
			continue // needs secrets over ADS
		}
		s.objects = plain + "---\n" + protectionPatch(name)
		for port, number := range s.ports {
			s.objects = strings.ReplaceAll(s.objects, "PORT_"+port, number)
		}
		for _, denies := range []bool{false, true} {
			in := snapshot.Input{}
			if denies {
				in.Denied = list
			}
			s.put(t, in)
			for _, port := range []string{"HTTP", "TCP", "ANY"} {
				alpn := map[string]string{"HTTP": "http/1.1", "TCP": "istio", "ANY": "istio-http/1.1"}[port]
				served := func() string {
					var got []string
					for who, pair := range map[string]*tls.Certificate{"one": &one, "other": &other, "exact": &exact} {
						if _, err := s.ask(t, s.client(pair, alpn), "https", port, ""); err == nil {
							got = append(got, who)
						}
					}
					slices.Sort(got)
					return strings.Join(got, " ")
				}
				want := "exact one other"
				if denies && envoyMinor(t) >= serialsFrom {
					want = "other"
				} else if denies {
					want = "one other"
				}
				eventually(t, fmt.Sprintf("%s: with a deny list: %t: at %s, served is %q", name, denies, port, want), func() bool { return served() == want })
			}
			want := http.StatusOK
			if denies {
				want = http.StatusServiceUnavailable
			}
			eventually(t, fmt.Sprintf("%s: with a deny list: %t: the other workload answers with %d", name, denies, want), func() bool {
				status, _ := get(t, out, "http://far.default/", "")
				return status == want
			})
		}
		var reasons []string
		for _, p := range New(Config{}).Generate(s.mesh, s.proxy, xds.TypeListener).Problems {
			reasons = append(reasons, p.Reason)
		}
		named := strings.Contains(strings.Join(reasons, "\n"), "the filter envoy.filters.network.rbac that refuses the peers on the deny list stays as it is")
		if want := name == "remove" || name == "replace" || name == "merge"; named != want {
			t.Errorf("%s: a problem names the filter: %t, want %t: %q", name, named, want, reasons)
		}
	}
}

// TestDeniedWithPatches adds patches to each case: each chain that verifies clients checks the deny
// list first, and Envoy accepts it.
func TestDeniedWithPatches(t *testing.T) {
	t.Parallel()
	binary := envoytest.Binary(t)
	text, filters := "spiffe://cluster.local/ns/evil/sa/mallory\n", []string{"envoy.filters.network.rbac"}
	if envoyMinor(t) >= serialsFrom {
		text += "serial ab\n"
		filters = []string{"envoy.filters.network.set_filter_state", "envoy.filters.network.rbac"}
	}
	own := 0
	for _, c := range testCases(t) {
		if len(c.proxy.IPs) == 0 || c.proxy.Proxyless || c.proxy.Role != "sidecar" && c.proxy.Role != "router" {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			for name := range patchesOfProtection {
				hostile := strings.ReplaceAll(protectionPatch(name), "PORT_TCP", "80")
				hostile = strings.Replace(hostile, "namespace: default", "namespace: istio-system", 1)
				in := inputOf(append(slices.Clone(c.objects), decode(t, hostile)...), c.mesh)
				in.Denied = denyList(t, text)
				mesh := snapshot.Build(nil, in, model.Change{All: true})
				for _, r := range New(Config{}).Generate(mesh, c.proxy, xds.TypeListener).Resources {
					l := unpack(t, r).(*listenerv3.Listener)
					for _, chain := range append(l.GetFilterChains(), l.GetDefaultFilterChain()) {
						if verified(t, chain) && !startsWith(t, chain, filters) {
							t.Errorf("%s: listener %s, chain %s does not check the deny list first", name, l.GetName(), chain.GetName())
						}
						if chain.GetName() == "own" {
							own++
							if !verified(t, chain) {
								t.Errorf("%s: listener %s has a chain whose TLS settings are not readable", name, l.GetName())
							}
						}
					}
				}
				if name == "remove" {
					validateWithEnvoy(t, binary, mesh, c.proxy)
				}
			}
		})
	}
	if own < 10 {
		t.Errorf("patches add %d chains: the cases show nothing", own)
	}
}
