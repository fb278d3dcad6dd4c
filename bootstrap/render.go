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
	"slices"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

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
	// TracingSet tells that somebody has set tracing of the ProxyConfig. The
	// default names a server that few meshes have, so it makes no tracer.
	TracingSet bool
	// HostIP is the address of the node: it takes the place of $(HOST_IP) in
	// the addresses of telemetry servers.
	HostIP string
	// SystemRoots is the file of the system's root certificates: telemetry
	// servers are verified with it when their TLS settings name no other.
	SystemRoots string
	// DualStack lets the first address of the proxy choose the family of the
	// local ports when it has addresses of both.
	DualStack bool
	// Locality is where the cloud says the proxy is: it counts when no label
	// does.
	Locality Locality
	// XDSRootCert is the file that the control plane is verified with, for
	// templates.
	XDSRootCert string
	// Metrics says who may read metrics, and where.
	Metrics Metrics
}

// Metrics are the ports that metrics are read from beyond the usual one.
type Metrics struct {
	// SecurePort serves Envoy's metrics, SecureMergedPort those that the agent
	// merges, to peers with a certificate of the mesh. 0: there is no such port.
	SecurePort, SecureMergedPort int
	// LocalOnly keeps the usual port, which asks for no certificate, to peers on
	// this machine.
	LocalOnly bool
}

// Locality is a place in a cloud.
type Locality struct{ Region, Zone, SubZone string }

// object is a JSON object; json.Marshal sorts its keys.
type object = map[string]any

// Render returns Envoy's bootstrap as JSON. A template that the ProxyConfig
// names is up to the caller, and RenderTemplate.
func Render(in Input) ([]byte, error) {
	pc := in.ProxyConfig
	switch {
	case pc == nil || in.Metadata == nil:
		return nil, errors.New("render bootstrap: the input has no ProxyConfig or no metadata")
	case pc.GetCustomConfigFile() != "":
		return nil, fmt.Errorf("ProxyConfig customConfigFile is %q: nothing is rendered when Envoy has a bootstrap of its own", pc.GetCustomConfigFile())
	}
	runtime, maxConnections, err := runtimeLayer(pc.GetRuntimeValues())
	if err != nil {
		return nil, err
	}
	addrs, err := addressesOf(in)
	if err != nil {
		return nil, err
	}
	telemetry, err := telemetryOf(in, addrs.dnsFamily)
	if err != nil {
		return nil, err
	}
	rendered := object{
		"node": object{
			"id":       in.Node.String(),
			"cluster":  serviceCluster(pc, in.Metadata),
			"locality": localityOf(in),
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
		// For listeners without a socket, which the control plane may send.
		"bootstrap_extensions": []any{object{
			"name": "envoy.bootstrap.internal_listener",
			"typed_config": object{
				"@type":          "type.googleapis.com/envoy.extensions.bootstrap.internal_listener.v3.InternalListener",
				"buffer_size_kb": 64,
			},
		}},
		"stats_config":      statsConfig(pc, in.Metadata),
		"admin":             object{"profile_path": "/var/lib/istio/data/envoy.prof", "address": socketAddress(addrs.local, int(pc.GetProxyAdminPort()))},
		"dynamic_resources": dynamicResources(in.StateOfTheWorld && in.Node.Role != node.Waypoint),
		"static_resources": object{
			"clusters":  append(clusters(pc, addrs), telemetry.clusters...),
			"listeners": listeners(in, addrs),
		},
	}
	if path := in.Metadata.OutlierLogPath; path != "" {
		rendered["cluster_manager"] = object{"outlier_detection": object{"event_log_path": path}}
	}
	if telemetry.tracing != nil {
		rendered["tracing"] = telemetry.tracing
	}
	if telemetry.sinks != nil {
		rendered["stats_sinks"] = telemetry.sinks
	}
	return marshal(rendered)
}

// addresses are the two sides of the ports of agent and Envoy: where a
// listener for others binds, and where the local ports are found.
type addresses struct {
	wildcard, local string
	// dnsFamily is which addresses Envoy looks up.
	dnsFamily string
	// both has listeners on the IPv6 wildcard take IPv4 connections too.
	both bool
}

func addressesOf(in Input) (addresses, error) {
	ips := node.Addresses(in.Node, in.Metadata)
	family := "V4_ONLY"
	switch {
	case OnlyIPv6(ips):
		family = "V6_ONLY"
	case in.DualStack && slices.ContainsFunc(ips, isIPv6):
		family = "ALL"
	}
	local := LocalAddress(in.BindAddress, ips, in.DualStack)
	parsed, err := netip.ParseAddr(local)
	if err != nil {
		return addresses{}, fmt.Errorf("bind address %q is not an IP address", local)
	}
	switch {
	case in.BindAddress != "":
		return addresses{wildcard: local, local: local, dnsFamily: family}, nil
	case parsed.Is4():
		return addresses{wildcard: "0.0.0.0", local: local, dnsFamily: family}, nil
	default:
		return addresses{wildcard: "::", local: local, dnsFamily: family, both: family == "ALL"}, nil
	}
}

// LocalAddress is where the local ports of agent and Envoy are found: the bind
// address, or a loopback address. That is of IPv6 when the proxy has no other
// address, or with dual stack when its first address is one.
func LocalAddress(bind string, ips []string, dualStack bool) string {
	switch {
	case bind != "":
		return bind
	case OnlyIPv6(ips), dualStack && len(ips) > 0 && isIPv6(ips[0]):
		return "::1"
	default:
		return "127.0.0.1"
	}
}

func isIPv6(ip string) bool {
	parsed := net.ParseIP(ip)
	return parsed != nil && parsed.To4() == nil
}

// OnlyIPv6 tells whether there are addresses and all of them are IPv6.
func OnlyIPv6(ips []string) bool {
	for _, ip := range ips {
		if !isIPv6(ip) {
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
