// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
	"github.com/outrigger-mesh/outrigger/e2e/envoytest"
)

// patchesOfTraffic change what a proxy does with requests, one patch for each kind of configuration
// and operation. OWN is the port of a listener that a patch adds.
const patchesOfTraffic = `
kind: VirtualService
metadata: {name: far, namespace: other}
spec:
  hosts: [far.other.svc.cluster.local]
  http: [{fault: {abort: {percentage: {value: 100}, httpStatus: 555}}, route: [{destination: {host: far.other.svc.cluster.local}}]}]
---
kind: EnvoyFilter
metadata: {name: filters, namespace: default}
spec:
  configPatches:
  - applyTo: HTTP_FILTER
    match: {context: SIDECAR_OUTBOUND, listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager, subFilter: {name: envoy.filters.http.router}}}}}
    patch:
      operation: INSERT_BEFORE
      value: {name: envoy.filters.http.local_ratelimit, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit, stat_prefix: limit}}
  - applyTo: VIRTUAL_HOST
    match: {context: SIDECAR_OUTBOUND, routeConfiguration: {name: http_proxy, vhost: {name: "copy2.default.svc.cluster.local:80"}}}
    patch:
      operation: MERGE
      value:
        typed_per_filter_config:
          envoy.filters.http.local_ratelimit:
            "@type": type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit
            stat_prefix: limit
            token_bucket: {max_tokens: 2, tokens_per_fill: 2, fill_interval: 3600s}
            filter_enabled: {default_value: {numerator: 100}}
            filter_enforced: {default_value: {numerator: 100}}
  - applyTo: HTTP_FILTER
    match: {context: SIDECAR_OUTBOUND, listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager}}}}
    patch:
      operation: INSERT_FIRST
      value:
        name: own.lua
        typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua, default_source_code: {inline_string: "function envoy_on_request(h) h:headers():add('x-lua', 'yes') end"}}
  - applyTo: HTTP_FILTER
    match: {listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager, subFilter: {name: envoy.filters.http.fault}}}}}
    patch: {operation: REMOVE}
  - applyTo: HTTP_FILTER
    match: {listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager, subFilter: {name: envoy.filters.http.grpc_stats}}}}}
    patch:
      operation: REPLACE
      value:
        name: own.replacement
        typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua, default_source_code: {inline_string: "function envoy_on_response(h) h:headers():add('x-replaced', 'yes') end"}}
  - applyTo: NETWORK_FILTER
    match: {context: SIDECAR_OUTBOUND, listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager}}}}
    patch: {operation: MERGE, value: {typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager, server_name: patched}}}
  - applyTo: HTTP_FILTER
    match: {context: SIDECAR_OUTBOUND, listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager, subFilter: {name: envoy.filters.http.cors}}}}}
    patch:
      operation: INSERT_AFTER
      value: {name: own.extension, config_discovery: {config_source: {ads: {}, resource_api_version: V3}, type_urls: [type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua]}}
  - applyTo: EXTENSION_CONFIG
    patch:
      operation: ADD
      value: {name: own.extension, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua, default_source_code: {inline_string: "function envoy_on_response(h) h:headers():add('x-extension', 'yes') end"}}}
---
kind: EnvoyFilter
metadata: {name: others, namespace: default}
spec:
  configPatches:
  - applyTo: LISTENER
    match: {context: SIDECAR_OUTBOUND}
    patch:
      operation: ADD
      value:
        name: own
        address: {socket_address: {address: ADDRESS, port_value: OWN}}
        filter_chains:
        - filters:
          - name: envoy.filters.network.direct_response
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.direct_response.v3.Config, response: {inline_string: "HTTP/1.1 299 Own\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"}}
  - applyTo: CLUSTER
    match: {context: SIDECAR_OUTBOUND, cluster: {service: one.default.svc.cluster.local}}
    patch: {operation: MERGE_AND_REPLACE_LIST, value: {circuit_breakers: {thresholds: [{max_requests: 0, max_pending_requests: 0}]}}}
  - applyTo: CLUSTER
    match: {cluster: {name: "outbound|80||flaky.default.svc.cluster.local"}}
    patch: {operation: REMOVE}
  - applyTo: ROUTE_CONFIGURATION
    match: {routeConfiguration: {name: http_proxy}}
    patch: {operation: MERGE, value: {response_headers_to_add: [{header: {key: x-config, value: "yes"}}]}}
  - applyTo: VIRTUAL_HOST
    match: {context: SIDECAR_OUTBOUND, routeConfiguration: {name: http_proxy}}
    patch: {operation: ADD, value: {name: own, domains: [own.example.com], routes: [{match: {prefix: /}, direct_response: {status: 418}}]}}
  - applyTo: VIRTUAL_HOST
    match: {context: SIDECAR_OUTBOUND, routeConfiguration: {vhost: {domainName: random.default.svc.cluster.local}}}
    patch: {operation: REMOVE}
  - applyTo: HTTP_ROUTE
    match: {context: SIDECAR_OUTBOUND, routeConfiguration: {vhost: {name: "ports.default.svc.cluster.local:9090", route: {action: ROUTE}}}}
    patch: {operation: MERGE, value: {response_headers_to_add: [{header: {key: x-route, value: "yes"}}]}}
  - applyTo: HTTP_ROUTE
    match: {context: SIDECAR_OUTBOUND, routeConfiguration: {vhost: {name: "ports.default.svc.cluster.local:80"}}}
    patch: {operation: INSERT_FIRST, value: {match: {prefix: /internal}, direct_response: {status: 403}}}
`

// TestEnvoyFilters sends requests through an Envoy that EnvoyFilters configure.
func TestEnvoyFilters(t *testing.T) {
	t.Parallel()
	for name, at := range map[string]struct {
		address string
		vhds    bool
	}{"static": {"127.77.56.1", false}, "over ADS with VHDS": {"127.77.56.2", true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if at.vhds && envoyMinor(t) < 37 {
				t.Skip("Envoy 1.36 takes no virtual hosts over ADS: routes hold them")
			}
			testEnvoyFilters(t, at.address, at.vhds)
		})
	}
}

func testEnvoyFilters(t *testing.T, address string, vhds bool) {
	w := &traffic{journal: &journal{arrivals: map[string][]arrival{}, changed: make(chan struct{})}}
	ports := map[string]string{}
	for _, name := range applications {
		ports["PORT_"+name] = w.listen(t, name)
	}
	free := freePorts(t, address, 2)
	objects := decode(t, regexp.MustCompile(`PORT_\w+`).ReplaceAllStringFunc(trafficServices, func(s string) string { return ports[s] }))
	patches := regexp.MustCompile(`ADDRESS|OWN`).ReplaceAllStringFunc(patchesOfTraffic, func(s string) string {
		return map[string]string{"ADDRESS": address, "OWN": free[1]}[s]
	})
	objects = append(objects, decode(t, patches)...)
	settings := meshconfig.Default()
	settings.EnableAutoMtls = wrapperspb.Bool(false)
	mesh := snapshot.Build(nil, inputOf(objects, settings), model.Change{All: true})
	port, err := strconv.ParseUint(free[0], 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	proxy := proxyAt(address)
	proxy.HTTPProxyPort, proxy.VHDS = uint32(port), vhds
	noProblems(t, mesh, proxy)
	w.proxy = address + ":" + free[0]
	if vhds {
		runEnvoy(t, envoytest.Binary(t), serveDelta(t, mesh, proxy), w.proxy)
	} else {
		runEnvoy(t, envoytest.Binary(t), staticBootstrap(t, mesh, proxy), w.proxy)
	}
	w.client = w.through(t, "")
	for _, r := range []struct {
		target string
		status int
		want   string
	}{
		{"http://shop.default.svc.cluster.local/", 200, "X-Replaced: yes; X-Extension: yes; X-Config: yes; Server: patched; -X-Route"},
		{"http://copy2.default.svc.cluster.local/", 200, ""},
		{"http://copy2.default.svc.cluster.local/", 200, ""},
		{"http://copy2.default.svc.cluster.local/", 429, ""},
		{"http://copy.other.svc.cluster.local/", 200, ""},
		{"http://far.other.svc.cluster.local/", 200, "X-Backend: far"},
		{"http://one.default.svc.cluster.local:8080/", 503, "X-Envoy-Overloaded: true"},
		{"http://flaky.default.svc.cluster.local/", 503, ""},
		{"http://own.example.com/", 418, ""},
		{"http://random.default.svc.cluster.local/", 502, ""},
		{"http://ports.default.svc.cluster.local:9090/", 200, "X-Route: yes"},
		{"http://ports.default.svc.cluster.local/internal/a", 403, ""},
		{"http://ports.default.svc.cluster.local/", 200, "-X-Route"},
	} {
		h := http.Header{idHeader: {t.Name() + r.target}}
		resp, body, _ := w.send(t, w.client, "GET", r.target, h, "")
		if resp.StatusCode != r.status {
			t.Errorf("%s: %d, want %d: %s", r.target, resp.StatusCode, r.status, body)
		}
		checkHeaders(t, r.target, resp.Header, r.want)
		if got, _ := w.journal.of(h.Get(idHeader)); len(got) > 0 {
			checkHeaders(t, r.target+" as it arrives", got[0].header, "X-Lua: yes")
		}
	}
	if got := answerAt(t, "http://"+address+":"+free[1]+"/"); got != 299 {
		t.Errorf("the added listener answers with %d, want 299", got)
	}
}

// answerAt returns the status of the first answer at a URL, once there is one.
func answerAt(t *testing.T, url string) int {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		resp, err := http.Get(url)
		if err == nil {
			_ = resp.Body.Close() // empty
			return resp.StatusCode
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// noProblems fails if a patch of an EnvoyFilter is not applied.
func noProblems(t *testing.T, mesh *snapshot.Mesh, proxy *model.Proxy) {
	t.Helper()
	problems, g := slices.Clone(mesh.Problems), New(Config{})
	for _, typeURL := range append(slices.Clone(xds.Types), xds.TypeExtension, xds.TypeBootstrap) {
		problems = append(problems, g.Generate(mesh, proxy, typeURL).Problems...)
	}
	for _, p := range problems {
		if p.Object.Kind == model.EnvoyFilter {
			t.Error(p)
		}
	}
}
