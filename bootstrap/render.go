// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package bootstrap

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
	"github.com/outrigger-mesh/outrigger/internal/tlspolicy"
)

// Files shared by agent and Envoy, relative to their working directory.
const (
	// SDSDir is the directory of the socket on which the agent, or another server, serves secrets.
	SDSDir = "./var/run/secrets/workload-spiffe-uds"
	// SDSSocketName is the file name of the agent's socket in SDSDir.
	SDSSocketName = "socket"
	// XDSSocketName is the file name of the ADS socket in the configPath.
	XDSSocketName = "XDS"
)

// Names of the static clusters. SDSCluster is a contract with every control plane: the listeners
// and clusters that it sends refer to this name.
const (
	XDSCluster        = node.XDSCluster
	SDSCluster        = "sds-grpc"
	AgentCluster      = "agent"
	PrometheusCluster = "prometheus_stats"
)

// Input is the input of Render.
type Input struct {
	// Node is the id of the proxy.
	Node node.ID
	// Metadata is the metadata of the proxy. Its annotations, labels, addresses and listener ports
	// also affect the bootstrap.
	Metadata *node.Metadata
	// ProxyConfig is the resolved and validated configuration of the proxy.
	ProxyConfig *meshv1alpha1.ProxyConfig
	// BindAddress is the address of all listening ports and all local targets. If empty, the admin
	// port binds to the loopback address and the others to all addresses.
	BindAddress string
	// StateOfTheWorld selects the state-of-the-world variant of ADS instead of delta.
	StateOfTheWorld bool
	// TracingSet reports whether the user has set the tracing field of the ProxyConfig. The default
	// names a server that few meshes have, so it does not create a tracer.
	TracingSet bool
	// HostIP is the address of the node. It replaces $(HOST_IP) in the addresses of telemetry
	// servers.
	HostIP string
	// SystemRoots is the file of the system's root certificates. It verifies telemetry servers
	// whose TLS settings name no other roots.
	SystemRoots string
	// DualStack makes the first address of the proxy determine the family of the local ports if it
	// has addresses of both families.
	DualStack bool
	// Locality is the locality reported by the cloud. It applies if no label sets one.
	Locality Locality
	// XDSRootCert is the file of root certificates that verify the control plane. Only templates
	// use it.
	XDSRootCert string
	// Metrics configures additional access to metrics.
	Metrics Metrics
	// SDSSocketName is the file name of the socket in SDSDir from which Envoy gets secrets; empty means
	// SDSSocketName, the agent's.
	SDSSocketName string
	// TLS restricts the TLS of what the bootstrap contains.
	TLS tlspolicy.Policy
}

// sdsSocketName returns the file name of the socket from which Envoy gets secrets.
func (in Input) sdsSocketName() string { return cmp.Or(in.SDSSocketName, SDSSocketName) }

// Metrics configures the ports that serve metrics, in addition to the default one.
type Metrics struct {
	// SecurePort serves Envoy's metrics and SecureMergedPort the merged metrics of the agent, to
	// peers with a certificate of the mesh. 0 disables the port.
	SecurePort, SecureMergedPort int
	// LocalOnly restricts the default port, which requires no certificate, to peers on this
	// machine.
	LocalOnly bool
}

// Locality is the location of a machine in a cloud.
type Locality struct{ Region, Zone, SubZone string }

// object is a JSON object; json.Marshal sorts its keys.
type object = map[string]any

// Render returns Envoy's bootstrap as JSON. It ignores a template named by the ProxyConfig; see
// RenderTemplate.
func Render(in Input) ([]byte, error) {
	pc := in.ProxyConfig
	switch {
	case pc == nil || in.Metadata == nil:
		return nil, errors.New("render bootstrap: the input has no ProxyConfig or no metadata")
	case pc.GetCustomConfigFile() != "":
		return nil, fmt.Errorf("ProxyConfig customConfigFile is %q: nothing is rendered when Envoy has a bootstrap of its own", pc.GetCustomConfigFile())
	}
	maxConnections, err := connectionLimit(in)
	if err != nil {
		return nil, err
	}
	manager, err := clusterManager(in.Metadata)
	if err != nil {
		return nil, err
	}
	reporting, _ := reportingOf(in.Metadata)
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
			object{"name": "global config", "static_layer": runtimeLayer(in)},
			object{"name": "admin", "admin_layer": object{}},
		}},
		"overload_manager": object{"resource_monitors": []any{object{
			"name": "envoy.resource_monitors.global_downstream_max_connections",
			"typed_config": object{
				"@type":                             "type.googleapis.com/envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
				"max_active_downstream_connections": maxConnections,
			},
		}}},
		// Required by listeners without a socket, which the control plane may send.
		"bootstrap_extensions": []any{object{
			"name": "envoy.bootstrap.internal_listener",
			"typed_config": object{
				"@type":          "type.googleapis.com/envoy.extensions.bootstrap.internal_listener.v3.InternalListener",
				"buffer_size_kb": 64,
			},
		}},
		"stats_config":            statsConfig(pc, in.Metadata, reporting.buckets),
		"stats_eviction_interval": seconds(reporting.evictionInterval()),
		// Of clusters without traffic; saves 3 kB each.
		"deferred_stat_options": object{"enable_deferred_creation_stats": true},
		"admin":                 object{"profile_path": "/var/lib/istio/data/envoy.prof", "address": socketAddress(addrs.local, int(pc.GetProxyAdminPort()))},
		"dynamic_resources":     dynamicResources(in.StateOfTheWorld && in.Node.Role != node.Waypoint),
		"static_resources": object{
			"clusters":  append(clusters(in, addrs), telemetry.clusters...),
			"listeners": listeners(in, addrs),
		},
	}
	if reporting.flush != 0 {
		rendered["stats_flush_interval"] = seconds(reporting.flush)
	}
	if len(manager) > 0 {
		rendered["cluster_manager"] = manager
	}
	if telemetry.tracing != nil {
		rendered["tracing"] = telemetry.tracing
	}
	if telemetry.sinks != nil {
		rendered["stats_sinks"] = telemetry.sinks
	}
	restrict(rendered, in.TLS)
	return marshal(rendered)
}

// addresses are the addresses of the agent's and Envoy's ports: wildcard for listeners that accept
// remote peers, local for local ports.
type addresses struct {
	wildcard, local string
	// dnsFamily selects the address families that Envoy resolves.
	dnsFamily string
	// both makes listeners on the IPv6 wildcard also accept IPv4 connections.
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

// LocalAddress returns the address of the local ports of agent and Envoy: the bind address, or else
// a loopback address. The loopback address is IPv6 if the proxy has only IPv6 addresses, or if
// dualStack is set and its first address is IPv6.
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

// OnlyIPv6 reports whether ips is not empty and contains only IPv6 addresses.
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
	// A timeout of 0 waits for the first configuration without limit: an Envoy without listeners
	// must not report itself as ready.
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
				// The agent limits the rate of connections to the control plane, so Envoy may
				// reconnect to the agent quickly.
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
