// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoyconf

import (
	"net"
	"net/netip"
	"strconv"
	"strings"
)

const (
	BlackHoleCluster = "BlackHoleCluster"
	// SDSCluster is the cluster of the bootstrap that serves secrets.
	SDSCluster = "sds-grpc"
	// SecretIdentity and secretRoots are the secrets that the agent serves.
	SecretIdentity = "default"
	SecretRoots    = "ROOTCA"
)

// OutboundName is the name of the cluster of a port of a service.
func OutboundName(port uint32, subset, host string) string {
	return "outbound|" + Number(port) + "|" + subset + "|" + host
}

// ServerName is the SNI of mutual TLS to a port of a service.
func ServerName(port uint32, subset, host string) string {
	return "outbound_." + Number(port) + "_." + subset + "_." + host
}

// InboundName is the name of the cluster of a port of the application.
func InboundName(port uint32) string { return "inbound|" + Number(port) + "||" }

// HostPort joins a host and a port as in an URL.
func HostPort(host string, port uint32) string {
	return net.JoinHostPort(host, Number(port))
}

func Number(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

// IsIP reports whether an address is an IP address.
func IsIP(address string) bool {
	ip, err := netip.ParseAddr(address)
	return err == nil && ip.Zone() == "" // Envoy refuses zones, which are of one machine
}

// UnixPath returns the path of an address "unix:///path".
func UnixPath(address string) (string, bool) {
	return strings.CutPrefix(address, "unix://")
}
