// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package model

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Resolution says how the endpoints of a service are found.
type Resolution int

const (
	// ResolutionStatic uses the endpoints that the registry knows (EDS).
	ResolutionStatic Resolution = iota
	// ResolutionDNS lets Envoy resolve the endpoints' names, and uses all
	// addresses.
	ResolutionDNS
	// ResolutionDNSRoundRobin lets Envoy resolve one name, and uses the first
	// address for new connections. Each port has at most one endpoint.
	ResolutionDNSRoundRobin
	// ResolutionDynamicDNS lets Envoy resolve the name that a request names. The
	// service has no endpoints; its host is a wildcard.
	ResolutionDynamicDNS
	// ResolutionPassthrough goes to the address that the caller dialled. No
	// Service has it: see [Service.ResolutionFor].
	ResolutionPassthrough
)

// ByName reports whether Envoy resolves names, and no endpoints are sent.
func (r Resolution) ByName() bool {
	return r == ResolutionDNS || r == ResolutionDNSRoundRobin || r == ResolutionDynamicDNS
}

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

// Distribution says which endpoints of a service the owner of the service
// prefers, as in Kubernetes' trafficDistribution.
type Distribution string

// The distributions; the zero value prefers none.
const (
	PreferSameZone Distribution = "PreferSameZone"
	PreferSameNode Distribution = "PreferSameNode"
)

// ParseDistribution reads trafficDistribution, any of its names in any case;
// false means that it is none.
func ParseDistribution(s string) (d Distribution, ok bool) {
	switch strings.ToLower(s) {
	case "", "any":
		return "", true
	case "preferclose", "prefersamezone":
		return PreferSameZone, true
	case "prefersamenode":
		return PreferSameNode, true
	}
	return "", false
}

// Service is one hostname that workloads or outside servers answer for.
type Service struct {
	ServiceKey
	// Labels are those of the object that defines the service.
	Labels     map[string]string
	Ports      []Port
	Resolution Resolution
	// Passthrough is true if connections are for the very address that the
	// caller dialled: a headless service, or a ServiceEntry of resolution NONE.
	// Who does not know the address takes one of the endpoints.
	Passthrough bool
	// Headless is true if the name stands for the endpoints themselves.
	Headless bool
	// Addresses are virtual IPs and ranges (10.0.0.0/8); may be empty.
	Addresses []string
	// ClusterAddresses are the virtual IPs by cluster, if several have the
	// service; see [Service.AddressesFor].
	ClusterAddresses map[string][]string
	// ExternalAddresses are IPs and names at which each cluster takes requests
	// from outside; ExternalPorts their ports by the service's, if they differ.
	ExternalAddresses map[string][]string
	ExternalPorts     map[string]map[uint32]uint32
	// AwaitsAddress is true if the service has no external address yet and its
	// load balancer will provide one.
	AwaitsAddress bool
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
	// Distribution is which endpoints are preferred.
	Distribution Distribution
	// Allocated are an IPv4 and an IPv6 address out of a reserved range for a
	// service that has none. Nothing listens there: they are for proxies that
	// answer for the name and catch what is sent to them.
	Allocated []string
	// Created and Source come from the object that defines the service.
	Created time.Time
	Source  Key
	// EndpointsFrom are the ServiceEntry objects that add endpoints to a service of
	// a cluster.
	EndpointsFrom []Key
}

// The labels of a service whose clients come back to the endpoint that they had.
const (
	PersistentSessionLabel       = "istio.io/persistent-session"
	PersistentSessionHeaderLabel = "istio.io/persistent-session-header"
)

// Persistent reports whether clients come back to the endpoint that they had, so
// that one that is draining still takes their requests.
func (s *Service) Persistent() bool {
	return s.Labels[PersistentSessionLabel] != "" || s.Labels[PersistentSessionHeaderLabel] != ""
}

// ResolutionFor returns how a proxy finds the endpoints: [ResolutionPassthrough] if
// the service wants the address that was dialled, and the proxy knows it.
func (s *Service) ResolutionFor(p *Proxy) Resolution {
	if s.Passthrough && p.Role == "sidecar" && !p.Proxyless && p.Interception != InterceptionNone {
		return ResolutionPassthrough
	}
	return s.Resolution
}

// AddressesFor returns the virtual IPs and ranges of the service as a proxy sees
// it: those of its own cluster; those that were allocated, if there are none and
// the proxy takes such; both kinds of address only if the proxy has both.
func (s *Service) AddressesFor(p *Proxy) []string {
	if own := s.ClusterAddresses[p.ClusterID]; len(own) > 0 {
		return own
	}
	if len(s.Addresses) > 0 || !p.AutoAllocate {
		return s.Addresses
	}
	var four, six bool
	for _, ip := range p.IPs {
		addr, err := netip.ParseAddr(ip)
		four, six = four || err == nil && addr.Unmap().Is4(), six || err == nil && !addr.Unmap().Is4()
	}
	return slices.DeleteFunc(slices.Clone(s.Allocated), func(a string) bool {
		addr, err := netip.ParseAddr(a)
		return err != nil || addr.Is4() && !four || addr.Is6() && !six
	})
}

// NetworkGateway is an address through which the workloads of a network can be
// reached from others, with mutual TLS and the name of the service as SNI.
type NetworkGateway struct {
	Network string
	// Cluster is the cluster of the gateway; empty if it serves all of the
	// network.
	Cluster string
	// Address is an IP address.
	Address string
	Port    uint32
}

// Compare orders gateways.
func (g NetworkGateway) Compare(o NetworkGateway) int {
	return cmp.Or(cmp.Compare(g.Network, o.Network), cmp.Compare(g.Cluster, o.Cluster), cmp.Compare(g.Address, o.Address), cmp.Compare(g.Port, o.Port))
}

// Port is one port of a service.
type Port struct {
	Name     string
	Number   uint32
	Protocol Protocol
}

// Endpoint is one address that serves one port of a service.
type Endpoint struct {
	// Address is an IP, "unix://" and a path, or a DNS name for services that
	// Envoy resolves. It is empty if only gateways of the network lead there.
	Address string
	// Port is the port at the address, 0 for a path; ServicePort the number of
	// the service's port that it serves.
	Port        uint32
	ServicePort uint32
	Labels      map[string]string
	// Namespace and ServiceAccount are the identity of the workload; an
	// empty ServiceAccount means that no identity is expected.
	Namespace      string
	ServiceAccount string
	// Workload is the name of the workload: of a WorkloadEntry in Namespace if
	// Entry is true, otherwise of a pod, for display.
	Workload string
	Entry    bool
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
	// Draining is true for an endpoint that is about to end: it takes the
	// requests of clients that had it, and no others.
	Draining bool
}

// EntryKey names the WorkloadEntry object that the endpoint comes from; the zero
// Key for others.
func (e *Endpoint) EntryKey() Key {
	if !e.Entry {
		return Key{}
	}
	return Key{Kind: WorkloadEntry, Namespace: e.Namespace, Name: e.Workload}
}
