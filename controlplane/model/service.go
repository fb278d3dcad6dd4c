// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package model

import (
	"cmp"
	"strings"
	"time"
)

// Protocol is the application protocol of a port, upper case as in Istio's
// port.protocol.
type Protocol string

// The protocols that decide how a port is served. Everything else is treated
// as [ProtocolTCP].
const (
	ProtocolHTTP  Protocol = "HTTP"
	ProtocolHTTP2 Protocol = "HTTP2"
	ProtocolGRPC  Protocol = "GRPC"
	ProtocolTCP   Protocol = "TCP"
)

// ParseProtocol reads the protocol of an Istio port, any case. An empty or
// unknown value is TCP, except that names with a known prefix ("http-web")
// count as that protocol, as in Istio's port naming.
func ParseProtocol(s string) Protocol {
	base, _, _ := strings.Cut(strings.ToUpper(s), "-")
	switch base {
	case "HTTP":
		return ProtocolHTTP
	case "HTTP2":
		return ProtocolHTTP2
	case "GRPC":
		return ProtocolGRPC
	}
	return ProtocolTCP
}

// IsHTTP reports whether requests on the port are HTTP requests.
func (p Protocol) IsHTTP() bool { return p == ProtocolHTTP || p.IsHTTP2() }

// IsHTTP2 reports whether upstream connections must speak HTTP/2.
func (p Protocol) IsHTTP2() bool { return p == ProtocolHTTP2 || p == ProtocolGRPC }

// Resolution says how the endpoints of a service are found.
type Resolution int

const (
	// ResolutionStatic uses the endpoints that the registry knows (EDS).
	ResolutionStatic Resolution = iota
	// ResolutionDNS lets Envoy resolve the endpoints' names.
	ResolutionDNS
)

// Kinds that a registry names in a [Change]. They are no configuration.
const (
	// KubernetesService is the definition of a service; KubernetesEndpoints
	// its endpoints alone, under the same name.
	KubernetesService   Kind = "Service"
	KubernetesEndpoints Kind = "Endpoints"
	KubernetesPod       Kind = "Pod"
)

// Registry says where a service comes from.
type Registry string

// The registries. The zero value is that of ServiceEntry objects.
const (
	RegistryExternal   Registry = ""
	RegistryKubernetes Registry = "Kubernetes"
)

// ServiceKey names a service. The same host may exist in several namespaces.
type ServiceKey struct {
	Hostname  string
	Namespace string
}

// Compare orders service keys by hostname, then namespace.
func (k ServiceKey) Compare(o ServiceKey) int {
	if c := cmp.Compare(k.Hostname, o.Hostname); c != 0 {
		return c
	}
	return cmp.Compare(k.Namespace, o.Namespace)
}

// Service is one hostname that workloads or outside servers answer for.
type Service struct {
	ServiceKey
	Ports      []Port
	Resolution Resolution
	// Addresses are virtual IPs; may be empty.
	Addresses []string
	// External is true for MESH_EXTERNAL: no mesh identity is expected.
	External bool
	// Registry is where the service comes from.
	Registry Registry
	// SubjectAltNames are the identities that the object demands of its
	// endpoints, beside those that their service accounts give.
	SubjectAltNames []string
	// ServiceAccounts are accounts of its namespace that its endpoints may
	// have, beside those that they are known to have.
	ServiceAccounts []string
	// ExportTo are the namespaces that see the service: names, "." for its own,
	// "*" for all; empty means all.
	ExportTo []string
	// NodeLocal is true if requests must stay on the node of the caller.
	NodeLocal bool
	// Allocated are an IPv4 and an IPv6 address out of a reserved range for a
	// service that has none. Nothing listens there: they are for proxies that
	// answer for the name and catch what is sent to them.
	Allocated []string
	// Created and Source come from the object that defines the service.
	Created time.Time
	Source  Key
}

// Port is one port of a service.
type Port struct {
	Name     string
	Number   uint32
	Protocol Protocol
}

// Endpoint is one address that serves one port of a service.
type Endpoint struct {
	// Address is an IP, or a DNS name for services of [ResolutionDNS].
	Address string
	// Port is the port at the address; ServicePort the number of the
	// service's port that it serves.
	Port        uint32
	ServicePort uint32
	Labels      map[string]string
	// Namespace and ServiceAccount are the identity of the workload; an
	// empty ServiceAccount means that no identity is expected.
	Namespace      string
	ServiceAccount string
	// Workload is the name of the workload, for people.
	Workload string
	// Hostname is "<hostname>.<subdomain>" of a pod of a headless service that
	// has a DNS name of its own; otherwise empty.
	Hostname string
	// Cluster is the cluster that the workload runs in, Network the network in
	// which the address is one, Node the machine; each may be empty.
	Cluster, Network, Node string
	// Locality is region/zone/subzone; parts may be missing.
	Locality string
	// Weight is relative to the other endpoints; at least 1.
	Weight uint32
	// MutualTLS is true when the endpoint is known to speak mesh mutual TLS
	// (tlsMode istio).
	MutualTLS bool
	// Unhealthy is true for an endpoint that gets no requests, because its own
	// agent says that the application does not answer. Its identity still
	// counts as one of the service.
	Unhealthy bool
}
