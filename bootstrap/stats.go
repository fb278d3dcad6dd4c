// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package bootstrap

import (
	"slices"
	"strings"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
)

// Pod annotations that change which stats Envoy keeps. Each replaces the list of the ProxyConfig,
// except the tags, which are added.
const (
	annotationPrefixes = "sidecar.istio.io/statsInclusionPrefixes"
	annotationSuffixes = "sidecar.istio.io/statsInclusionSuffixes"
	annotationRegexps  = "sidecar.istio.io/statsInclusionRegexps"
	annotationTags     = "sidecar.istio.io/extraStatTags"
)

// statsConfig limits Envoy's stats to those that readiness and operators need and those that the
// user requests. With hundreds of clusters, Envoy's default would be a hundred thousand stats per
// Envoy.
func statsConfig(pc *meshv1alpha1.ProxyConfig, m *node.Metadata, buckets []histogram) object {
	config := object{
		"use_all_default_tags": false,
		"stats_tags":           statsTags(pc, m),
		"stats_matcher":        object{"inclusion_list": object{"patterns": inclusions(pc, m)}},
	}
	if len(buckets) > 0 {
		config["histogram_bucket_settings"] = buckets
	}
	return config
}

const (
	// delimited matches a name that ends with a semicolon. Control planes since Istio 1.23, and this
	// project's, add one to names of clusters and HTTP connection managers: host names contain dots,
	// which also separate the parts of the name of a stat.
	delimited = `.+(?=;\.)`
	// address matches an address in the name of a stat.
	address = `((?:[_.[:digit:]]*|[_\[\]aAbBcCdDeEfF[:digit:]]*))`
	// httpPrefix matches the prefix of an HTTP connection manager.
	httpPrefix = `(` + delimited + `|(?:(?:inbound|outbound)_)?` + address + `);?`
)

// statsTags returns the parts of stat names that become labels. Envoy tries each expression on
// every stat that it keeps; expressions with a fixed prefix are tried only on stats that have it.
func statsTags(pc *meshv1alpha1.ProxyConfig, m *node.Metadata) []any {
	tags := []any{
		tag("cluster_name", `^cluster\.((`+delimited+`|.+?(\..+?\.svc\.cluster\.local)?);?\.)`),
		tag("tcp_prefix", `^tcp\.((.*?)\.)\w+?$`),
		tag("response_code", `_rq(_(\d{3}))$`),
		tag("response_code_class", `_rq(_(\dxx))$`),
		tag("http_conn_manager_listener_prefix", `^listener(?=\.).*?\.http\.(`+httpPrefix+`\.)`),
		tag("http_conn_manager_prefix", `^http\.(`+httpPrefix+`\.)`),
		tag("thread_name", `^server\.((.+)\.)watchdog`),
		tag("listener_address", `^listener\.(`+address+`\.)`),
		tag("mongo_prefix", `^mongo\.(.+?)\.(collection|cmd|cx_|op_|delays_|decoding_)(.*?)$`),
	}
	for _, name := range statsOf(pc, m).tags {
		tags = append(tags, tag(name, `(`+name+`=\.=(.*?);\.;)`))
	}
	return append(
		tags,
		tag("cache", `(cache\.(.+?)\.)`),
		tag("component", `(component\.(.+?)\.)`),
		tag("tag", `(tag\.(.+?);\.)`),
		tag("wasm_filter", `(wasm_filter\.(.+?)\.)`),
		tag("authz_enforce_result", `rbac(\.(allowed|denied))`),
		tag("authz_dry_run_action", `(\.istio_dry_run_(allow|deny)_)`),
		tag("authz_dry_run_result", `(\.shadow_(allowed|denied))`),
	)
}

func tag(name, regex string) object { return object{"tag_name": name, "regex": regex} }

// stats are the tags that become labels and the matchers of the stats that Envoy keeps. They come
// from the user and from the components that need them.
type stats struct{ tags, prefixes, suffixes, regexps []string }

func statsOf(pc *meshv1alpha1.ProxyConfig, m *node.Metadata) stats {
	matcher := pc.GetProxyStatsMatcher()
	user := func(annotation string, configured []string) []string {
		if value, ok := m.Annotations[annotation]; ok {
			configured = split(value)
		}
		return expandPodIP(configured, m.InstanceIPs)
	}
	s := stats{
		prefixes: append(user(annotationPrefixes, matcher.GetInclusionPrefixes()),
			"cluster_manager", "listener_manager", "server", "cluster."+XDSCluster, "wasm"),
		suffixes: append(user(annotationSuffixes, matcher.GetInclusionSuffixes()),
			"rbac.allowed", "rbac.denied", "shadow_allowed", "shadow_denied",
			// Request counters of each inbound and outbound listener.
			".downstream_rq_total", ".downstream_rq_2xx", ".downstream_rq_3xx", ".downstream_rq_4xx", ".downstream_rq_5xx"),
		// Routes whose VirtualService sets statPrefix.
		regexps: append(user(annotationRegexps, matcher.GetInclusionRegexps()), `vhost\..*\.route\..*`),
	}
	if m.ExitOnZeroActiveConnections {
		s.suffixes = append(s.suffixes, "downstream_cx_active")
	}
	for _, name := range slices.Concat(pc.GetExtraStatTags(), split(m.Annotations[annotationTags])) {
		if name != "" && !slices.Contains(s.tags, name) {
			s.tags = append(s.tags, name)
		}
	}
	return s
}

// inclusions returns the matchers of the stats that Envoy keeps. Envoy does not create any other
// stats.
func inclusions(pc *meshv1alpha1.ProxyConfig, m *node.Metadata) []any {
	s := statsOf(pc, m)
	var patterns []any
	add := func(kind string, values ...string) {
		for _, value := range values {
			patterns = append(patterns, object{kind: value})
		}
	}
	add("prefix", "reporter=")
	add("prefix", s.prefixes...)
	add("suffix", s.suffixes...)
	for _, regex := range s.regexps {
		patterns = append(patterns, object{"safe_regex": object{"regex": regex}})
	}
	add("prefix", "component", "istio")
	return patterns
}

// expandPodIP replaces each entry that contains {pod_ip} with one entry per address of the proxy.
func expandPodIP(entries []string, ips []string) []string {
	var expanded []string
	for _, entry := range entries {
		switch {
		case entry == "":
		case strings.Contains(entry, "{pod_ip}"):
			for _, ip := range ips {
				expanded = append(expanded, strings.ReplaceAll(entry, "{pod_ip}", ip))
			}
		default:
			expanded = append(expanded, entry)
		}
	}
	return expanded
}

func split(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}
