// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package bootstrap

import (
	"encoding/json"
	"fmt"
	"path"
	"strconv"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
	"github.com/outrigger-mesh/outrigger/internal/tlspolicy"
)

// Default ports of Envoy's own listeners. The metadata can override them.
const (
	DefaultStatusPort     = 15021
	DefaultPrometheusPort = 15090
)

// maxConnectionsKey is the runtime key that formerly limited the connections of an Envoy. Envoy now
// expects a resource monitor and warns about this key, so a user's value is moved there.
// maxConnectionsMetadata is the node metadata that does the same; it takes precedence.
const (
	maxConnectionsKey      = "overload.global_downstream_max_connections"
	maxConnectionsMetadata = "GLOBAL_DOWNSTREAM_MAX_CONNECTIONS"
)

// loadStatsMetadata is the node metadata with the server to which Envoy reports its load.
const loadStatsMetadata = "LOAD_STATS_CONFIG_JSON"

// connectionLimit returns the limit on the downstream connections of an Envoy.
func connectionLimit(in Input) (int64, error) {
	limit := int64(1<<31 - 1)
	parse := func(name, value string) error {
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil || n < 1 {
			return fmt.Errorf("%s is %q; it must be a number from 1", name, value)
		}
		limit = n
		return nil
	}
	if value, ok := rawText(in.Metadata, maxConnectionsMetadata); ok {
		err := parse("node metadata "+maxConnectionsMetadata, value)
		return limit, err
	}
	if value := in.ProxyConfig.GetRuntimeValues()[maxConnectionsKey]; value != "" {
		err := parse("ProxyConfig runtimeValues "+maxConnectionsKey, value)
		return limit, err
	}
	return limit, nil
}

// rawText returns a value of the node metadata that has no field, as text. Other types are rendered as
// JSON.
func rawText(m *node.Metadata, key string) (string, bool) {
	value, ok := m.Raw[key]
	if text, isText := value.(string); isText {
		return text, true
	}
	return asJSON(value), ok
}

// clusterManager returns the settings of Envoy's cluster manager.
func clusterManager(m *node.Metadata) (object, error) {
	manager := object{}
	if m.SelfDiscovery {
		manager["local_cluster_name"] = node.LocalCluster
	}
	if m.OutlierLogPath != "" {
		manager["outlier_detection"] = object{"event_log_path": m.OutlierLogPath}
	}
	text, ok := rawText(m, loadStatsMetadata)
	if !ok {
		return manager, nil
	}
	var config object
	if err := json.Unmarshal([]byte(text), &config); err != nil || config == nil {
		return nil, fmt.Errorf("node metadata %s is %q; it must be a JSON object, Envoy's ApiConfigSource", loadStatsMetadata, text)
	}
	manager["load_stats_config"] = config
	return manager, nil
}

// runtimeLayer returns the static runtime layer. User values override the defaults; an empty value
// removes the key.
func runtimeLayer(in Input) object {
	layer := defaultRuntime()
	if in.TLS == tlspolicy.FIPS1402 {
		layer["envoy.reloadable_features.google_grpc_disable_tls_13"] = true
	}
	for key, value := range in.ProxyConfig.GetRuntimeValues() {
		switch {
		case key == maxConnectionsKey:
		case value == "":
			delete(layer, key)
		default:
			layer[key] = runtimeValue(value)
		}
	}
	return layer
}

// runtimeValue converts a value to the type that Envoy expects. A runtime guard needs a boolean:
// the text "false" would leave it enabled.
func runtimeValue(value string) any {
	switch value {
	case "true", "false":
		return value == "true"
	}
	return value
}

func defaultRuntime() object {
	return object{
		// Routes and matchers of a mesh may contain long regular expressions.
		"re2.max_program_size.error_level": "32768",
		// Strip a fragment from a path instead of responding with 400.
		"envoy.reloadable_features.http_reject_path_with_fragment": false,
	}
}

func clusters(in Input, addrs addresses) []any {
	pc := in.ProxyConfig
	// path.Join drops the "./" of a relative path; Envoy accepts both forms.
	xdsSocket := path.Join(pc.GetConfigPath(), XDSSocketName)
	all := []any{
		limited(staticCluster(PrometheusCluster, "0.250s", socketAddress(addrs.local, int(pc.GetStatusPort())), false), maxStatsReaders, maxStatsWaiting),
		limited(staticCluster(AgentCluster, "0.250s", socketAddress(addrs.local, int(pc.GetStatusPort())), false), maxReadinessConnections, maxReadinessWaiting),
		staticCluster(SDSCluster, "1s", object{"pipe": object{"path": SDSDir + "/" + in.sdsSocketName()}}, true),
		staticCluster(XDSCluster, "1s", object{"pipe": object{"path": xdsSocket}}, true),
	}
	if in.Metadata.SelfDiscovery {
		all = append(all, object{
			"name": node.LocalCluster, "type": "EDS", "connect_timeout": "1s", "lb_policy": "ROUND_ROBIN",
			"eds_cluster_config": object{"eds_config": object{"ads": object{}, "resource_api_version": "V3"}},
		})
	}
	return all
}

func staticCluster(name, connectTimeout string, address object, http2 bool) object {
	cluster := object{
		"name":            name,
		"type":            "STATIC",
		"connect_timeout": connectTimeout,
		"lb_policy":       "ROUND_ROBIN",
		"load_assignment": object{
			"cluster_name": name,
			"endpoints": []any{object{"lb_endpoints": []any{
				object{"endpoint": object{"address": address}},
			}}},
		},
	}
	if http2 {
		cluster["typed_extension_protocol_options"] = object{
			"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": object{
				"@type":                "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
				"explicit_http_config": object{"http2_protocol_options": object{}},
			},
		}
	}
	return cluster
}

// Limits on the cost that other machines can cause through the plaintext ports 15021 and 15090. The
// number of connections is not limited, because a stranger could exhaust the limit and lock out the
// kubelet. Instead, each connection is cheap, and idle ones are closed soon.
const (
	// maxStatsReaders is the maximum number of requests for metrics to the agent, which are
	// expensive. Other scrapes wait.
	maxStatsReaders, maxStatsWaiting = 16, 1024
	// maxReadinessConnections is the maximum number of connections to the agent. Further requests
	// wait only briefly, since the agent responds at once.
	maxReadinessConnections, maxReadinessWaiting = 32, 65536

	publicBuffer     = 16 << 10 // bytes read ahead or waiting to be read
	publicHeadersKB  = 8
	publicStreams    = 16 // per HTTP/2 connection
	publicHeaderTime = "5s"
	publicTime       = "10s" // for a whole request
	publicStall      = "15s" // without progress
	publicIdle       = "20s" // without a request
)

// limited limits the open and waiting requests of a cluster. Requests through the ports that
// require a certificate use a different priority, which has its own limits.
func limited(cluster object, connections, waiting int) object {
	cluster["circuit_breakers"] = object{"thresholds": []any{
		object{"priority": "DEFAULT", "max_connections": connections, "max_pending_requests": waiting},
		object{"priority": "HIGH", "max_connections": connections, "max_pending_requests": waiting},
	}}
	cluster["per_connection_buffer_limit_bytes"] = publicBuffer
	return cluster
}

// public limits the cost that peers without a certificate can cause to a listener.
func public(listener object) object {
	listener["per_connection_buffer_limit_bytes"] = publicBuffer
	manager := listener["filter_chains"].([]any)[0].(object)["filters"].([]any)[0].(object)["typed_config"].(object)
	manager["common_http_protocol_options"] = object{"idle_timeout": publicIdle}
	manager["http2_protocol_options"] = object{
		"max_concurrent_streams": publicStreams, "initial_stream_window_size": 65536, "initial_connection_window_size": 65536,
	}
	manager["max_request_headers_kb"] = publicHeadersKB
	manager["request_headers_timeout"] = publicHeaderTime
	manager["request_timeout"] = publicTime
	manager["stream_idle_timeout"] = publicStall
	return listener
}

func listeners(in Input, addrs addresses) []any {
	m := in.Metadata
	metrics := addrs.listen
	if in.Metrics.LocalOnly {
		metrics = func(port int) object { return socketAddress(addrs.local, port) }
	}
	all := []any{
		public(staticListener("prometheus", metrics(portOr(m.EnvoyPrometheusPort, DefaultPrometheusPort)), "stats", envoyMetrics(prefixRoute("/stats/prometheus", PrometheusCluster)))),
		public(staticListener("status", addrs.listen(portOr(m.EnvoyStatusPort, DefaultStatusPort)), "agent", retried(prefixRoute("/healthz/ready", AgentCluster)))),
	}
	if port := in.Metrics.SecurePort; port != 0 {
		all = append(all, mutual(staticListener("secure_metrics", addrs.listen(port), "secure_stats", envoyMetrics(exactRoute("/stats/prometheus", PrometheusCluster)))))
	}
	if port := in.Metrics.SecureMergedPort; port != 0 {
		all = append(all, mutual(staticListener("secure_merged_metrics", addrs.listen(port), "secure_merged_stats",
			exactRoute("/stats/prometheus", AgentCluster), exactRoute("/metrics", AgentCluster))))
	}
	return all
}

// envoyMetrics has a route lead to the path at which the agent serves Envoy's metrics. It renames those
// of Istio, which Envoy cannot.
func envoyMetrics(route object) object {
	route["route"].(object)["prefix_rewrite"] = "/stats/envoy"
	return route
}

// retried has a route repeat requests whose connection ends, as while another agent replaces the one
// that runs.
func retried(route object) object {
	route["route"].(object)["retry_policy"] = object{"retry_on": "connect-failure,reset", "num_retries": 2}
	return route
}

func prefixRoute(prefix, cluster string) object {
	return object{"match": object{"prefix": prefix}, "route": object{"cluster": cluster}}
}

// exactRoute serves a single path of a cluster. Envoy sets no timeout, since the scraper has its
// own. The host name is rewritten, because the agent rejects names other than its own.
func exactRoute(path, cluster string) object {
	return object{"match": object{"path": path}, "route": object{"cluster": cluster, "priority": "HIGH", "timeout": "0s", "host_rewrite_literal": "localhost"}}
}

// staticListener returns a listener that serves the routes, also while Envoy refuses connections of
// applications because of its overload or the limit on connections.
func staticListener(name string, address object, statPrefix string, routes ...any) object {
	return object{
		"name":                     name,
		"address":                  address,
		"ignore_global_conn_limit": true,
		"bypass_overload_manager":  true,
		"filter_chains": []any{object{"filters": []any{object{
			"name": "envoy.filters.network.http_connection_manager",
			"typed_config": object{
				"@type":       "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
				"codec_type":  "AUTO",
				"stat_prefix": statPrefix,
				"route_config": object{"virtual_hosts": []any{object{
					"name":    "backend",
					"domains": []any{"*"},
					"routes":  routes,
				}}},
				"http_filters": []any{object{
					"name":         "envoy.filters.http.router",
					"typed_config": object{"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"},
				}},
			},
		}}}},
	}
}

// mutual makes a listener require a mesh certificate from its peers and present the workload's own.
// It refuses the peers that the control plane denies.
func mutual(listener object) object {
	chains := listener["filter_chains"].([]any)
	manager := chains[0].(object)["filters"].([]any)[0].(object)["typed_config"].(object)
	manager["http_filters"] = append(deniedPeers(), manager["http_filters"].([]any)...)
	chains[0].(object)["transport_socket"] = object{
		"name": "envoy.transport_sockets.tls",
		"typed_config": object{
			"@type":                      "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
			"require_client_certificate": true,
			"common_tls_context": object{
				"alpn_protocols":                       []any{"h2", "http/1.1"},
				"tls_params":                           object{"tls_minimum_protocol_version": "TLSv1_2"},
				"tls_certificate_sds_secret_configs":   []any{sdsSecret("default")},
				"validation_context_sds_secret_config": sdsSecret("ROOTCA"),
			},
		},
	}
	return listener
}

// deniedPeers returns the HTTP filters that refuse denied peers. The control plane serves the second
// one; all peers are admitted until it does, and with control planes that serve none.
func deniedPeers() []any {
	const rbac = "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC"
	return []any{
		object{
			"name": "envoy.filters.http.set_filter_state",
			"typed_config": object{
				"@type": "type.googleapis.com/envoy.extensions.filters.http.set_filter_state.v3.Config",
				"on_request_headers": []any{object{
					"object_key": node.PeerSerial, "factory_key": "envoy.string",
					"format_string": object{"text_format_source": object{"inline_string": "%DOWNSTREAM_PEER_SERIAL%"}},
				}},
			},
		},
		object{
			"name": node.DeniedPeers,
			"config_discovery": object{
				"config_source":                        object{"ads": object{}, "resource_api_version": "V3"},
				"type_urls":                            []any{rbac},
				"default_config":                       object{"@type": rbac},
				"apply_default_config_without_warming": true,
			},
		},
	}
}

func portOr(port node.Port, fallback int) int {
	if port == 0 {
		return fallback
	}
	return int(port)
}

// listen returns the address of a port for remote peers.
func (a addresses) listen(port int) object {
	address := object{"address": a.wildcard, "port_value": port}
	if a.both {
		address["ipv4_compat"] = true
	}
	return object{"socket_address": address}
}

func socketAddress(address string, port int) object {
	return object{"socket_address": object{"address": address, "port_value": port}}
}
