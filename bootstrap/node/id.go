// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package node

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// The roles of proxies.
const (
	Sidecar  = "sidecar"
	Router   = "router"
	Waypoint = "waypoint"
	Ztunnel  = "ztunnel"
)

// Roles returns all roles that are valid in a node id.
func Roles() []string { return []string{Sidecar, Router, Waypoint, Ztunnel} }

// DeniedPeers is the name under which listeners of the bootstrap request, over ECDS, the HTTP filter
// that refuses denied peers. They store the serial number of the peer's certificate, as lower case
// hexadecimal, in the filter state PeerSerial. No WasmPlugin has a name with a slash.
const (
	DeniedPeers = "outrigger/denied-peers"
	// BootstrapPatch is the name under which agents request the patches of their bootstrap. The
	// resource is a google.protobuf.Struct, which Envoy merges over the bootstrap.
	BootstrapPatch = "outrigger/bootstrap-patch"
	PeerSerial     = "outrigger.peer_serial"
)

// LocalCluster is the static cluster with the endpoints of the proxy's own workload, under Istio's name.
const LocalCluster = "local_cluster"

// XDSCluster is the static cluster of the agent's XDS socket. It also receives access logs: RecordLog
// of the requests to the workload, or to a gateway, and RecordSentLog of those that the workload
// sends. Each has the name of a runtime key, which is the percentage of requests that Envoy writes; 0
// is the default. UnknownKeyLog has the requests whose token no known key verifies.
const (
	XDSCluster    = "xds-grpc"
	RecordLog     = "outrigger.record"
	RecordSentLog = "outrigger.record_sent"
	UnknownKeyLog = "outrigger.unknown_key"
)

// UnknownKeyType is the type of a request to the control plane that has no response: it says that a
// token was refused whose key is not among those of its issuer, which may have newer ones.
const UnknownKeyType = "type.googleapis.com/outrigger.UnknownKey"

// ID is the node id of a proxy, "<role>~<ip>~<name>~<domain>".
type ID struct {
	// Role is one of Roles.
	Role string
	// IP is the first address of the proxy. It is empty if only the metadata contains addresses.
	IP string
	// Name is "<pod>.<namespace>".
	Name string
	// Domain is the DNS domain of the proxy, such as "default.svc.cluster.local".
	Domain string
}

// String returns the id in the format of Envoy's node.
func (id ID) String() string {
	return id.Role + "~" + id.IP + "~" + id.Name + "~" + id.Domain
}

// Namespace returns the part of the name after its last dot. Namespaces contain no dots; pod names
// may.
func (id ID) Namespace() string {
	if i := strings.LastIndexByte(id.Name, '.'); i >= 0 {
		return id.Name[i+1:]
	}
	return ""
}

// ParseID parses a node id. The role must be known, and the address must be valid or empty.
func ParseID(s string) (ID, error) {
	parts := strings.Split(s, "~")
	if len(parts) != 4 {
		return ID{}, fmt.Errorf("node id %q has %d parts; it must be <role>~<ip>~<name>~<domain>", s, len(parts))
	}
	id := ID{Role: parts[0], IP: parts[1], Name: parts[2], Domain: parts[3]}
	if !slices.Contains(Roles(), id.Role) {
		return ID{}, fmt.Errorf("node id %q has the role %q; it must be one of %s", s, id.Role, strings.Join(Roles(), ", "))
	}
	if id.IP != "" {
		if _, err := netip.ParseAddr(id.IP); err != nil {
			return ID{}, fmt.Errorf("node id %q has %q for an IP address", s, id.IP)
		}
	}
	return id, nil
}

// Addresses returns the addresses of a proxy from its metadata, or else from its id. It skips
// invalid addresses; the result may be empty.
func Addresses(id ID, m *Metadata) []string {
	var ips []string
	if m != nil {
		for _, ip := range m.InstanceIPs {
			if _, err := netip.ParseAddr(ip); err == nil {
				ips = append(ips, ip)
			}
		}
	}
	if len(ips) == 0 && id.IP != "" {
		ips = append(ips, id.IP)
	}
	return ips
}
