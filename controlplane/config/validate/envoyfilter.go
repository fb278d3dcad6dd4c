// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package validate

import (
	"regexp"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

const connectionManager = "envoy.filters.network.http_connection_manager"

func validateEnvoyFilter(c *checker, cfg *model.Config) {
	f, ok := cfg.Spec.(*networkingv1alpha3.EnvoyFilter)
	if !ok {
		return
	}
	selector := f.GetWorkloadSelector()
	c.selector(selector != nil, selector.GetLabels(), "spec.workloadSelector.labels")
	const most = 256
	if n := len(selector.GetLabels()); n > most {
		c.errorf("spec.workloadSelector.labels", "has %d entries: at most %d are allowed", n, most)
	}
	c.targets(targets{refs: f.GetTargetRefs(), anyKind: true})
	if selector != nil && len(f.GetTargetRefs()) > 0 {
		c.errorf("spec", "has workloadSelector and targetRefs: keep one of them")
	}
	for i, p := range f.GetConfigPatches() {
		c.configPatch(p, field.Index("spec.configPatches", i))
	}
}

func (c *checker) configPatch(p *networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectPatch, path string) {
	if c.waypointMatch(p.GetMatch(), path+".match") {
		c.warnf(path+".match.context", "is WAYPOINT, and this mesh has no waypoints, so the patch has no effect: write SIDECAR_INBOUND, SIDECAR_OUTBOUND or GATEWAY")
		return
	}
	if p.GetApplyTo() == networkingv1alpha3.EnvoyFilter_INVALID {
		c.errorf(path+".applyTo", "is missing: write what to change, such as HTTP_FILTER or CLUSTER")
	}
	c.patchMatch(p, path+".match")
	operation := p.GetPatch().GetOperation()
	switch {
	case p.GetPatch() == nil:
		c.errorf(path+".patch", "is missing: write operation and value")
		return
	case operation == networkingv1alpha3.EnvoyFilter_Patch_INVALID:
		c.errorf(path+".patch.operation", "is missing: write one of MERGE, ADD, REMOVE, REPLACE, INSERT_BEFORE, INSERT_AFTER, INSERT_FIRST")
	}
	if p.GetPatch().GetValue() != nil {
		c.patchValue(p, path+".patch.value")
	} else if operation != networkingv1alpha3.EnvoyFilter_Patch_REMOVE {
		c.errorf(path+".patch.value", "is missing: only REMOVE needs none; write the configuration of Envoy")
	}
}

// waypointMatch checks the match of a waypoint. It reports whether the patch is for waypoints.
func (c *checker) waypointMatch(m *networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectMatch, path string) bool {
	waypoint := m.GetContext() == networkingv1alpha3.EnvoyFilter_WAYPOINT
	if waypoint != (m.GetWaypoint() != nil) {
		c.errorf(path+".waypoint", "is only allowed with context: WAYPOINT, which requires it: write both, or neither")
	}
	if w := m.GetWaypoint(); w.GetPortNumber() != 0 {
		c.port(w.GetPortNumber(), path+".waypoint.portNumber")
	}
	return waypoint
}

// patchMatch checks that the match fits what is to be changed.
func (c *checker) patchMatch(p *networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectPatch, path string) {
	m := p.GetMatch()
	if v := m.GetProxy().GetProxyVersion(); v != "" {
		switch _, err := regexp.Compile(v); {
		case err != nil && len(v) > maxRegex:
			c.warnf(path+".proxy.proxyVersion", "is %s: it is not a regular expression, so the patch has no effect: %v", field.Quote(v), err)
		case err != nil:
			c.errorf(path+".proxy.proxyVersion", "is %s: it is not a regular expression: %v", field.Quote(v), err)
		}
	}
	if m.GetObjectTypes() == nil {
		return
	}
	want := map[networkingv1alpha3.EnvoyFilter_ApplyTo]string{
		networkingv1alpha3.EnvoyFilter_LISTENER:            "listener",
		networkingv1alpha3.EnvoyFilter_FILTER_CHAIN:        "listener",
		networkingv1alpha3.EnvoyFilter_NETWORK_FILTER:      "listener",
		networkingv1alpha3.EnvoyFilter_HTTP_FILTER:         "listener",
		networkingv1alpha3.EnvoyFilter_ROUTE_CONFIGURATION: "routeConfiguration",
		networkingv1alpha3.EnvoyFilter_VIRTUAL_HOST:        "routeConfiguration",
		networkingv1alpha3.EnvoyFilter_HTTP_ROUTE:          "routeConfiguration",
		networkingv1alpha3.EnvoyFilter_CLUSTER:             "cluster",
	}[p.GetApplyTo()]
	got := "cluster"
	switch {
	case m.GetListener() != nil:
		got = "listener"
	case m.GetRouteConfiguration() != nil:
		got = "routeConfiguration"
	}
	if want != "" && got != want {
		c.errorf(path+"."+got, "is not allowed with applyTo: %s: write %s instead", p.GetApplyTo(), want)
		return
	}
	for _, part := range unread(p.GetApplyTo(), m) {
		c.warnf(path+"."+part, "has no effect with applyTo: %s: remove it", p.GetApplyTo())
	}
	switch operation := p.GetPatch().GetOperation(); operation {
	case networkingv1alpha3.EnvoyFilter_Patch_ADD, networkingv1alpha3.EnvoyFilter_Patch_INSERT_FIRST:
		if part := neighbour(p.GetApplyTo(), m.GetListener()); part != "" {
			c.warnf(path+".listener."+part, "has no effect with operation: %s, which adds in any case: remove it, or write INSERT_BEFORE", operation)
		}
	}
	c.filterName(m.GetListener().GetListenerFilter(), path+".listener.listenerFilter")
	if want == "listener" {
		c.listenerMatch(p, m.GetListener(), path+".listener")
	}
}

// neighbour returns the part of a match that names another filter, whose place only some operations
// depend on.
func neighbour(kind networkingv1alpha3.EnvoyFilter_ApplyTo, l *networkingv1alpha3.EnvoyFilter_ListenerMatch) string {
	f := l.GetFilterChain().GetFilter()
	switch {
	case kind == networkingv1alpha3.EnvoyFilter_NETWORK_FILTER && f != nil:
		return "filterChain.filter"
	case kind == networkingv1alpha3.EnvoyFilter_HTTP_FILTER && f.GetSubFilter() != nil:
		return "filterChain.filter.subFilter"
	case kind == networkingv1alpha3.EnvoyFilter_LISTENER_FILTER && l.GetListenerFilter() != "":
		return "listenerFilter"
	}
	return ""
}

// unread returns the parts of a match that a kind of configuration does not have, which Istio ignores,
// too.
func unread(kind networkingv1alpha3.EnvoyFilter_ApplyTo, m *networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectMatch) (parts []string) {
	add := func(has bool, part string) {
		if has {
			parts = append(parts, part)
		}
	}
	l, r := m.GetListener(), m.GetRouteConfiguration()
	switch kind {
	case networkingv1alpha3.EnvoyFilter_BOOTSTRAP, networkingv1alpha3.EnvoyFilter_EXTENSION_CONFIG:
		add(l != nil, "listener")
		add(r != nil, "routeConfiguration")
		add(m.GetCluster() != nil, "cluster")
		return parts
	case networkingv1alpha3.EnvoyFilter_LISTENER, networkingv1alpha3.EnvoyFilter_LISTENER_FILTER:
		add(l.GetFilterChain() != nil, "listener.filterChain")
		add(r != nil, "routeConfiguration")
		add(m.GetCluster() != nil, "cluster")
	case networkingv1alpha3.EnvoyFilter_FILTER_CHAIN:
		add(l.GetFilterChain().GetFilter() != nil, "listener.filterChain.filter")
	case networkingv1alpha3.EnvoyFilter_ROUTE_CONFIGURATION:
		add(r.GetVhost() != nil, "routeConfiguration.vhost")
	case networkingv1alpha3.EnvoyFilter_VIRTUAL_HOST:
		add(r.GetVhost().GetRoute() != nil, "routeConfiguration.vhost.route")
	}
	add(l.GetListenerFilter() != "" && kind != networkingv1alpha3.EnvoyFilter_LISTENER_FILTER, "listener.listenerFilter")
	return parts
}

func (c *checker) listenerMatch(p *networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectPatch, m *networkingv1alpha3.EnvoyFilter_ListenerMatch, path string) {
	f := m.GetFilterChain().GetFilter()
	if f == nil {
		return
	}
	path += ".filterChain.filter"
	c.filterName(f.GetName(), path+".name")
	if f.GetName() == "" {
		c.errorf(path+".name", "is missing: write the name of the network filter")
		return
	}
	if f.GetSubFilter() == nil {
		return
	}
	c.filterName(f.GetSubFilter().GetName(), path+".subFilter.name")
	if p.GetApplyTo() != networkingv1alpha3.EnvoyFilter_HTTP_FILTER {
		c.errorf(path+".subFilter", "is only allowed with applyTo: HTTP_FILTER: remove it")
	}
	if name := f.GetName(); name != connectionManager && deprecatedNames[name] != connectionManager {
		c.errorf(path+".name", "is %s: only %s has a subFilter; write that name, or remove subFilter", field.Quote(name), connectionManager)
	}
	if f.GetSubFilter().GetName() == "" {
		c.errorf(path+".subFilter.name", "is missing: write the name of the HTTP filter")
	}
}

// filterName warns of a name that Envoy gave up.
func (c *checker) filterName(name, path string) {
	if now, ok := deprecatedNames[name]; ok {
		c.warnf(path, "is %s, which is the old name: write %s", field.Quote(name), now)
	}
}

// CurrentName returns the name of today for a name of a filter that Envoy gave up, and other names
// unchanged.
func CurrentName(name string) string {
	if now, ok := deprecatedNames[name]; ok {
		return now
	}
	return name
}

// istiosFilters are parts of names and types of filters that only Istio's Envoy has, and what serves
// their purpose with a stock Envoy.
var istiosFilters = []struct{ part, use string }{
	{"stats.PluginConfig", "use a Telemetry object for metrics"},
	{"istio.stats", "use a Telemetry object for metrics"},
	{"stackdriver", "use a Telemetry object with a provider of tracing or access logs"},
	{"istio_authn", "use PeerAuthentication, RequestAuthentication and AuthorizationPolicy"},
	{"authn.v2alpha1", "use PeerAuthentication, RequestAuthentication and AuthorizationPolicy"},
	{"istio.alpn", "clusters negotiate the protocol without it"},
	{"alpn.v2alpha1", "clusters negotiate the protocol without it"},
	{"metadata_exchange", "proxies send labels in headers; use a Telemetry object for metrics with them"},
	{"metadataexchange", "proxies send labels in headers; use a Telemetry object for metrics with them"},
	{"peer_metadata", "proxies send labels in headers; use a Telemetry object for metrics with them"},
}

// ServedBy returns what to use instead of a filter that only Istio's Envoy has, by its name or type,
// or "" for others.
func ServedBy(name string) string {
	for _, f := range istiosFilters {
		if strings.Contains(name, f.part) {
			return f.use
		}
	}
	return ""
}

// deprecatedNames are the names that filters had up to Envoy 1.13, with those
// of today. https://www.envoyproxy.io/docs/envoy/v1.14.0/intro/deprecated
var deprecatedNames = map[string]string{
	"envoy.buffer":                  "envoy.filters.http.buffer",
	"envoy.cors":                    "envoy.filters.http.cors",
	"envoy.csrf":                    "envoy.filters.http.csrf",
	"envoy.ext_authz":               "envoy.filters.http.ext_authz",
	"envoy.fault":                   "envoy.filters.http.fault",
	"envoy.grpc_http1_bridge":       "envoy.filters.http.grpc_http1_bridge",
	"envoy.grpc_json_transcoder":    "envoy.filters.http.grpc_json_transcoder",
	"envoy.grpc_web":                "envoy.filters.http.grpc_web",
	"envoy.gzip":                    "envoy.filters.http.compressor",
	"envoy.health_check":            "envoy.filters.http.health_check",
	"envoy.http_dynamo_filter":      "envoy.filters.http.dynamo",
	"envoy.ip_tagging":              "envoy.filters.http.ip_tagging",
	"envoy.lua":                     "envoy.filters.http.lua",
	"envoy.rate_limit":              "envoy.filters.http.ratelimit",
	"envoy.router":                  "envoy.filters.http.router",
	"envoy.squash":                  "envoy.filters.http.squash",
	"envoy.client_ssl_auth":         "envoy.filters.network.client_ssl_auth",
	"envoy.echo":                    "envoy.filters.network.echo",
	"envoy.http_connection_manager": connectionManager,
	"envoy.mongo_proxy":             "envoy.filters.network.mongo_proxy",
	"envoy.ratelimit":               "envoy.filters.network.ratelimit",
	"envoy.redis_proxy":             "envoy.filters.network.redis_proxy",
	"envoy.tcp_proxy":               "envoy.filters.network.tcp_proxy",
	"envoy.listener.http_inspector": "envoy.filters.listener.http_inspector",
	"envoy.listener.original_dst":   "envoy.filters.listener.original_dst",
	"envoy.listener.original_src":   "envoy.filters.listener.original_src",
	"envoy.listener.proxy_protocol": "envoy.filters.listener.proxy_protocol",
	"envoy.listener.tls_inspector":  "envoy.filters.listener.tls_inspector",
}
