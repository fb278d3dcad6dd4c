// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package model

import "net/netip"

// Interception says how traffic reaches a proxy.
type Interception string

// The interception modes of Istio.
const (
	InterceptionNone     Interception = "NONE"
	InterceptionRedirect Interception = "REDIRECT"
	InterceptionTProxy   Interception = "TPROXY"
)

// Proxy is an Envoy as the control plane sees it: what the node of its
// stream says about it. It is immutable for the life of the stream.
type Proxy struct {
	// ID is "<name>.<namespace>", the third part of the node id.
	ID string
	// Role is "sidecar" or "router".
	Role string
	// IPs are the addresses of the workload; never empty.
	IPs []string
	// Namespace and ServiceAccount are those of its identity; on a port that
	// takes everybody, what the proxy claims.
	Namespace      string
	ServiceAccount string
	// Domain is the DNS domain of the proxy, for example
	// "default.svc.cluster.local".
	Domain string
	// Labels are those of its workload: what a registry says, or, where none
	// knows the workloads, what the proxy claims.
	Labels map[string]string
	// ClaimedLabels are set if a registry knows the workloads but not yet this
	// one: Labels is empty then.
	ClaimedLabels map[string]string
	ClusterID     string
	Interception  Interception
	// WorkloadEntry is the name of the object that the proxy says is its own;
	// AutoRegisterGroup the WorkloadGroup that it wants to be in. Both may be
	// empty, as may Network.
	WorkloadEntry     string
	AutoRegisterGroup string
	Network           string
	// Node is the machine that it runs on; NetworkView are the networks whose
	// endpoints it takes, all if there are none. Both may be empty.
	Node        string
	NetworkView []string
	// Locality is region/zone/subzone, as far as it is known.
	Locality string
	// AutoAllocate is true if its agent answers DNS and gives out the addresses
	// that were allocated to services without one.
	AutoAllocate bool
	// HTTPProxyPort overrides the mesh's proxyHttpPort when not 0.
	HTTPProxyPort uint32
	// VHDS is true if it takes virtual hosts as resources of their own.
	VHDS bool
	// Proxyless is true for an application that reads xDS itself, through gRPC.
	Proxyless bool
	// Listens are the addresses, "host:port", at which a proxyless server said
	// that it listens; sorted, each once.
	Listens []string
	// Settings are what was set for it alone; nil means nothing.
	Settings *ProxySettings
	// Agent and Envoy are the versions that they say they have, for display; may
	// be empty.
	Agent, Envoy string
}

// OwnLabels returns the labels by which objects are chosen that decide who may
// reach the proxy itself. Claims count here: with them a proxy can only harm
// itself, and without them it would be unprotected until its workload is known.
func (p *Proxy) OwnLabels() map[string]string {
	if p.ClaimedLabels != nil {
		return p.ClaimedLabels
	}
	return p.Labels
}

// ConnectedProxy is a proxy that has opened a stream.
type ConnectedProxy struct {
	Proxy *Proxy
	// Verified is true if its identity was proven on an encrypted stream.
	Verified bool
	// Source is the remote address of the connection; invalid if that is not an
	// IP address.
	Source netip.Addr
	// Locality is region/zone/subzone, as its node says; may be empty.
	Locality string
	// Probed is true if its agent probes the application.
	Probed bool
}
