// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"net"
	"net/netip"
	"strconv"
	"strings"
)

const (
	blackHoleCluster = "BlackHoleCluster"
	// httpProxyRoute is the name of the routes of the HTTP proxy listener.
	httpProxyRoute = "http_proxy"
	// httpProxyVHDS is their name for proxies with VHDS. It is another one, so
	// that a listener that goes over from one to the other waits for what it
	// goes to: under one name Envoy would mix them.
	httpProxyVHDS = "http_proxy.vhds"
	// sdsCluster is the cluster of the bootstrap that serves secrets.
	sdsCluster = "sds-grpc"
	// secretIdentity and secretRoots are the secrets that the agent serves.
	secretIdentity = "default"
	secretRoots    = "ROOTCA"
)

// outboundName is the name of the cluster of a port of a service.
func outboundName(port uint32, subset, host string) string {
	return "outbound|" + number(port) + "|" + subset + "|" + host
}

// serverName is the SNI of mutual TLS to a port of a service.
func serverName(port uint32, subset, host string) string {
	return "outbound_." + number(port) + "_." + subset + "_." + host
}

// inboundName is the name of the cluster of a port of the application.
func inboundName(port uint32) string { return "inbound|" + number(port) + "||" }

// hostPort joins a host and a port as in an URL.
func hostPort(host string, port uint32) string {
	return net.JoinHostPort(host, number(port))
}

func number(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

// isIP reports whether an address is an IP address.
func isIP(address string) bool {
	_, err := netip.ParseAddr(address)
	return err == nil
}

// unixPath gives the path of an address "unix:///path".
func unixPath(address string) (string, bool) {
	return strings.CutPrefix(address, "unix://")
}
