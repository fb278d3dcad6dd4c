// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package bootstrap

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/bootstrap/node"
)

// The files that agent and Envoy share, relative to their working directory.
const (
	// SDSSocket is where the agent serves secrets.
	SDSSocket = "./var/run/secrets/workload-spiffe-uds/socket"
	// XDSSocketName is the name of the ADS socket in the configPath.
	XDSSocketName = "XDS"
)

// The names of the static clusters. SDSCluster is a contract with every
// control plane: the listeners and clusters it sends refer to it.
const (
	XDSCluster        = "xds-grpc"
	SDSCluster        = "sds-grpc"
	AgentCluster      = "agent"
	PrometheusCluster = "prometheus_stats"
)

// Input is all that a bootstrap depends on.
type Input struct {
	// Node is the id of the proxy.
	Node node.ID
	// Metadata is the metadata of the proxy. Its annotations, labels,
	// addresses and the two listener ports are used here too.
	Metadata *node.Metadata
	// ProxyConfig is the resolved and validated configuration of the proxy.
	ProxyConfig *meshv1alpha1.ProxyConfig
	// BindAddress is where all listening ports bind and where all local
	// targets are; empty binds the admin port to the loopback address and
	// the others to all addresses.
	BindAddress string
	// StateOfTheWorld selects the older kind of ADS instead of delta.
	StateOfTheWorld bool
}

// object is a JSON object; json.Marshal sorts its keys.
type object = map[string]any

// Render returns Envoy's bootstrap as JSON.
func Render(in Input) ([]byte, error) {
	pc := in.ProxyConfig
	switch {
	case pc == nil || in.Metadata == nil:
		return nil, errors.New("render bootstrap: the input has no ProxyConfig or no metadata")
	case pc.GetCustomConfigFile() != "":
		return nil, fmt.Errorf("ProxyConfig customConfigFile is %q: a bootstrap of your own is not supported yet, remove the field", pc.GetCustomConfigFile())
	case pc.GetProxyBootstrapTemplatePath() != "":
		return nil, fmt.Errorf("ProxyConfig proxyBootstrapTemplatePath is %q: bootstrap templates are not supported yet, remove the field", pc.GetProxyBootstrapTemplatePath())
	}
	runtime, maxConnections, err := runtimeLayer(pc.GetRuntimeValues())
	if err != nil {
		return nil, err
	}
	addrs, err := addressesOf(in)
	if err != nil {
		return nil, err
	}
	rendered := object{
		"node": object{
			"id":       in.Node.String(),
			"cluster":  serviceCluster(pc, in.Metadata),
			"locality": locality(in.Metadata.Labels),
			"metadata": in.Metadata,
		},
		"layered_runtime": object{"layers": []any{
			object{"name": "global config", "static_layer": runtime},
			object{"name": "admin", "admin_layer": object{}},
		}},
		"overload_manager": object{"resource_monitors": []any{object{
			"name": "envoy.resource_monitors.global_downstream_max_connections",
			"typed_config": object{
				"@type":                             "type.googleapis.com/envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
				"max_active_downstream_connections": maxConnections,
			},
		}}},
		"stats_config":      statsConfig(pc, in.Metadata),
		"admin":             object{"profile_path": "/var/lib/istio/data/envoy.prof", "address": socketAddress(addrs.local, int(pc.GetProxyAdminPort()))},
		"dynamic_resources": dynamicResources(in.StateOfTheWorld),
		"static_resources": object{
			"clusters":  clusters(pc, addrs),
			"listeners": listeners(in.Metadata, addrs),
		},
	}
	if path := in.Metadata.OutlierLogPath; path != "" {
		rendered["cluster_manager"] = object{"outlier_detection": object{"event_log_path": path}}
	}
	return marshal(rendered)
}

// Unserved returns a sentence for each field of the ProxyConfig that is set
// but has no effect yet.
func Unserved(pc *meshv1alpha1.ProxyConfig) []string {
	var sentences []string
	add := func(field, what string) {
		sentences = append(sentences, fmt.Sprintf("ProxyConfig %s is set but has no effect: %s from the bootstrap is not supported yet", field, what))
	}
	if t := pc.GetTracing(); t != nil && !proto.Equal(t, meshconfig.DefaultProxyConfig().GetTracing()) {
		add("tracing", "a tracer")
	}
	if pc.GetStatsdUdpAddress() != "" {
		add("statsdUdpAddress", "a statsd sink")
	}
	if pc.GetEnvoyMetricsService() != nil {
		add("envoyMetricsService", "a metrics service")
	}
	if pc.GetEnvoyAccessLogService() != nil {
		add("envoyAccessLogService", "an access log service")
	}
	if pc.GetPrivateKeyProvider() != nil {
		add("privateKeyProvider", "a private key provider")
	}
	if pc.GetReadinessProbe() != nil {
		add("readinessProbe", "a health report")
	}
	return sentences
}

// addresses are the two sides of the ports of agent and Envoy: where a
// listener for others binds, and where the local ports are found.
type addresses struct {
	wildcard, local string
}

func addressesOf(in Input) (addresses, error) {
	if in.BindAddress != "" {
		if _, err := netip.ParseAddr(in.BindAddress); err != nil {
			return addresses{}, fmt.Errorf("bind address %q is not an IP address", in.BindAddress)
		}
		return addresses{wildcard: in.BindAddress, local: in.BindAddress}, nil
	}
	if OnlyIPv6(node.Addresses(in.Node, in.Metadata)) {
		return addresses{wildcard: "::", local: "::1"}, nil
	}
	return addresses{wildcard: "0.0.0.0", local: "127.0.0.1"}, nil
}

// OnlyIPv6 tells whether there are addresses and all of them are IPv6.
func OnlyIPv6(ips []string) bool {
	for _, ip := range ips {
		if parsed := net.ParseIP(ip); parsed == nil || parsed.To4() != nil {
			return false
		}
	}
	return len(ips) > 0
}

func dynamicResources(stateOfTheWorld bool) object {
	api := "DELTA_GRPC"
	if stateOfTheWorld {
		api = "GRPC"
	}
	// A timeout of 0 waits for the first configuration for as long as it
	// takes: an Envoy without listeners must not call itself ready.
	overADS := object{"ads": object{}, "initial_fetch_timeout": "0s", "resource_api_version": "V3"}
	return object{
		"lds_config": overADS,
		"cds_config": overADS,
		"ads_config": object{
			"api_type":                       api,
			"transport_api_version":          "V3",
			"set_node_on_first_message_only": true,
			"grpc_services": []any{object{"envoy_grpc": object{
				"cluster_name": XDSCluster,
				// The agent paces the dialling of the control plane, so
				// Envoy may come back to the agent quickly.
				"retry_policy": object{"retry_back_off": object{"base_interval": "0.2s", "max_interval": "2s"}},
			}}},
		},
	}
}

func marshal(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("render bootstrap: %w", err)
	}
	return buf.Bytes(), nil
}
