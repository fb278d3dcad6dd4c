// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package model

import (
	"net/netip"
	"strconv"
	"strings"
)

// Interception is how traffic reaches a proxy.
type Interception string

// The interception modes of Istio.
const (
	InterceptionNone     Interception = "NONE"
	InterceptionRedirect Interception = "REDIRECT"
	InterceptionTProxy   Interception = "TPROXY"
)

// Proxy describes an Envoy according to the node of its stream. It is immutable for the lifetime of
// the stream.
type Proxy struct {
	// ID is "<name>.<namespace>", the third part of the node id.
	ID string
	// Role is "sidecar" or "router".
	Role string
	// IPs are the addresses of the workload; never empty.
	IPs []string
	// Namespace and ServiceAccount are those of its authenticated identity. On a port without
	// authentication they are the values that the proxy claims.
	Namespace      string
	ServiceAccount string
	// Domain is the DNS domain of the proxy, for example
	// "default.svc.cluster.local".
	Domain string
	// Labels are the labels of its workload according to a registry. If no registry has the
	// workloads, they are the labels that the proxy claims.
	Labels map[string]string
	// ClaimedLabels are the labels that the proxy claims if a registry has the workloads but does
	// not know this one yet. Labels is empty in that case.
	ClaimedLabels map[string]string
	ClusterID     string
	Interception  Interception
	// WorkloadEntry is the name of the WorkloadEntry that the proxy claims as its own.
	// AutoRegisterGroup is the WorkloadGroup that it asks to join. Both may be empty, as may
	// Network.
	WorkloadEntry     string
	AutoRegisterGroup string
	Network           string
	// Node is the name of the node that the proxy runs on. NetworkView are the networks whose
	// endpoints it accepts; empty means all. Both may be empty.
	Node        string
	NetworkView []string
	// Locality is region/zone/subzone; unknown parts may be missing.
	Locality string
	// AutoAllocate is true if its agent answers DNS queries with the addresses allocated to
	// services that have none.
	AutoAllocate bool
	// Denies is true if listeners of its bootstrap request the filter that refuses denied peers.
	Denies bool
	// SelfDiscovery is true if its bootstrap requests the endpoints of its own workload.
	SelfDiscovery bool
	// HTTPProxyPort overrides proxyHttpPort of the mesh config if it is not 0.
	HTTPProxyPort uint32
	// VHDS is true if it receives virtual hosts as separate resources.
	VHDS bool
	// Proxyless is true for a gRPC application without a proxy.
	Proxyless bool
	// Listens are the addresses, "host:port", of a proxyless server; sorted,
	// without duplicates.
	Listens []string
	// Occupied are ports of its own loopback address at which it could not listen; sorted.
	Occupied []uint32
	// Metadata are the values of its node metadata that are text, which EnvoyFilters match.
	Metadata map[string]string
	// Settings are its own settings; nil means none.
	Settings *ProxySettings
	// Agent and Envoy are the versions that the proxy claims, for display; both may be empty.
	Agent, Envoy string
}

// OwnLabels returns the labels that select the objects that restrict access to the proxy itself.
// They include claimed labels: with false claims a proxy can only harm itself, and without claims
// it would be unprotected until its workload is known.
func (p *Proxy) OwnLabels() map[string]string {
	if p.ClaimedLabels != nil {
		return p.ClaimedLabels
	}
	return p.Labels
}

// EnvoyMinor returns the second part of the version of the proxy's Envoy, or a large number if it is
// unknown.
func (p *Proxy) EnvoyMinor() int {
	const newest = 1 << 10
	parts := strings.Split(p.Envoy, ".")
	if len(parts) < 2 {
		return newest
	}
	minor, err := strconv.Atoi(parts[1])
	if err != nil {
		return newest
	}
	return minor
}

// ConnectedProxy is a proxy that has opened a stream.
type ConnectedProxy struct {
	Proxy *Proxy
	// Verified is true if it was authenticated on an encrypted stream.
	Verified bool
	// Source is the remote address of the connection; invalid if that is not an
	// IP address.
	Source netip.Addr
	// Locality is region/zone/subzone of its node; may be empty.
	Locality string
	// Probed is true if its agent probes the application.
	Probed bool
}
