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

// Resolution is how the endpoints of a service are found.
type Resolution int

const (
	// ResolutionStatic uses the endpoints that the registry knows (EDS).
	ResolutionStatic Resolution = iota
	// ResolutionDNS lets Envoy resolve the names of the endpoints and use all addresses.
	ResolutionDNS
	// ResolutionDNSRoundRobin lets Envoy resolve one name and use the first address for new
	// connections. Each port has at most one endpoint.
	ResolutionDNSRoundRobin
	// ResolutionDynamicDNS lets Envoy resolve the host of each request. The service has no
	// endpoints, and its host is a wildcard.
	ResolutionDynamicDNS
	// ResolutionPassthrough forwards to the original destination address of the connection. It is
	// only returned by [Service.ResolutionFor], never set in a Service.
	ResolutionPassthrough
)

// ByName reports whether Envoy resolves names, so that no endpoints are sent.
func (r Resolution) ByName() bool {
	return r == ResolutionDNS || r == ResolutionDNSRoundRobin || r == ResolutionDynamicDNS
}

// Kinds that a registry uses in a [Change]. They are not configuration.
const (
	// KubernetesService is the definition of a service. KubernetesEndpoints is only its endpoints,
	// under the same name.
	KubernetesService   Kind = "Service"
	KubernetesEndpoints Kind = "Endpoints"
	KubernetesPod       Kind = "Pod"
)

// Registry is the origin of a service.
type Registry string

// The registries. The zero value is used for ServiceEntry objects.
const (
	RegistryExternal   Registry = ""
	RegistryKubernetes Registry = "Kubernetes"
)

// ClusterSetSuffix is the suffix of the name, on its platform, of the service of a cluster set (the
// Multi-Cluster Services API) that belongs to a Service. No Service has a dot in its name.
const ClusterSetSuffix = ".clusterset"

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

// Distribution is the preference of the owner of a service for certain endpoints, like
// trafficDistribution in Kubernetes.
type Distribution string

// The distributions; the zero value means no preference.
const (
	PreferSameZone Distribution = "PreferSameZone"
	PreferSameNode Distribution = "PreferSameNode"
)

// ParseDistribution parses a value of trafficDistribution, ignoring case. ok is false if the value
// is unknown.
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

// NoPortTranslation is the label of a Service whose target ports do not apply to the gateways
// behind it.
const NoPortTranslation = "experimental.istio.io/disable-gateway-port-translation"

// Service is one hostname that is served by workloads or by servers outside of the mesh.
type Service struct {
	ServiceKey
	// Labels are the labels of the object that defines the service.
	Labels     map[string]string
	Ports      []Port
	Resolution Resolution
	// Passthrough is true if connections go to the original destination address: for a headless
	// service or a ServiceEntry with resolution NONE. A proxy that does not know that address uses
	// one of the endpoints.
	Passthrough bool
	// Headless is true if the DNS name resolves to the endpoints themselves.
	Headless bool
	// Addresses are virtual IPs and CIDR ranges (10.0.0.0/8); may be empty.
	Addresses []string
	// ClusterAddresses are the virtual IPs by cluster if the service exists in several clusters;
	// see [Service.AddressesFor].
	ClusterAddresses map[string][]string
	// ExternalAddresses are the IPs and names at which each cluster accepts requests from outside.
	// ExternalPorts maps, for each cluster, a service port to the external port if they differ.
	ExternalAddresses map[string][]string
	ExternalPorts     map[string]map[uint32]uint32
	// AwaitsAddress is true if the service has no external address yet, but its load balancer will
	// provide one.
	AwaitsAddress bool
	// External is true for MESH_EXTERNAL: the endpoints are not expected to have a mesh identity.
	External bool
	// Registry is the origin of the service.
	Registry Registry
	// SubjectAltNames are the identities that the object requires of its endpoints, in addition to
	// those of their service accounts.
	SubjectAltNames []string
	// ServiceAccounts are accounts of its namespace that its endpoints may have, in addition to the
	// known accounts of the endpoints.
	ServiceAccounts []string
	// ExportTo are the namespaces that can see the service: names, "." for its own, "*" for all;
	// empty means all.
	ExportTo []string
	// NodeLocal is true if requests must stay on the node of the client.
	NodeLocal bool
	// Distribution is the preference for certain endpoints.
	Distribution Distribution
	// Allocated are an IPv4 and an IPv6 address from a reserved range for a service without
	// addresses. Nothing listens on them: proxies that answer DNS queries for the name return them
	// and intercept the connections to them.
	Allocated []string
	// Created and Source are the creation time and the key of the object that defines the service.
	Created time.Time
	Source  Key
	// EndpointsFrom are the ServiceEntry objects that add endpoints to a service of a cluster.
	EndpointsFrom []Key
}

// The labels that enable persistent sessions, by cookie and by header.
const (
	PersistentSessionLabel       = "istio.io/persistent-session"
	PersistentSessionHeaderLabel = "istio.io/persistent-session-header"
)

// DrainingLabel is the label of workloads that receive no requests except those of persistent sessions.
const DrainingLabel = "istio.io/draining"

// Persistent reports whether the service has persistent sessions. If so, a draining endpoint still
// receives the requests of its clients.
func (s *Service) Persistent() bool {
	return s.Labels[PersistentSessionLabel] != "" || s.Labels[PersistentSessionHeaderLabel] != ""
}

// ResolutionFor returns how a proxy finds the endpoints. It returns [ResolutionPassthrough] if the
// service uses the original destination address and the proxy knows that address.
func (s *Service) ResolutionFor(p *Proxy) Resolution {
	if s.Passthrough && p.Role == "sidecar" && !p.Proxyless && p.Interception != InterceptionNone {
		return ResolutionPassthrough
	}
	return s.Resolution
}

// AddressesFor returns the virtual IPs and CIDR ranges of the service as seen by a proxy. The
// addresses in the cluster of the proxy take precedence. If the service has no addresses and the
// proxy supports allocated ones, it returns those of the IP families of the proxy.
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

// NetworkGateway is an address through which the workloads of a network can be reached from other
// networks, over mutual TLS with the name of the service as SNI.
type NetworkGateway struct {
	Network string
	// Cluster is the cluster of the gateway; empty if it serves the whole network.
	Cluster string
	// Address is an IP address.
	Address string
	Port    uint32
}

// Compare orders gateways by network, cluster, address and port.
func (g NetworkGateway) Compare(o NetworkGateway) int {
	return cmp.Or(cmp.Compare(g.Network, o.Network), cmp.Compare(g.Cluster, o.Cluster), cmp.Compare(g.Address, o.Address), cmp.Compare(g.Port, o.Port))
}

// Port is one port of a service.
type Port struct {
	Name     string
	Number   uint32
	Protocol Protocol
}

// ShortName returns the name of a Kubernetes Service, or the host of another one.
func (s *Service) ShortName() string {
	if s.Registry != RegistryKubernetes {
		return s.Hostname
	}
	name, _, _ := strings.Cut(s.Hostname, ".")
	return name
}

// Endpoint is one address that serves one port of a service.
type Endpoint struct {
	// Address is an IP address, "unix://" followed by a path, or a DNS name for services that Envoy
	// resolves. It is empty if the endpoint is reachable only through gateways of its network.
	Address string
	// Port is the port at the address, 0 for a Unix socket. ServicePort is the number of the
	// service port that the endpoint serves.
	Port        uint32
	ServicePort uint32
	Labels      map[string]string
	// Namespace and ServiceAccount are the identity of the workload; an empty ServiceAccount means
	// that no identity is expected.
	Namespace      string
	ServiceAccount string
	// Workload is the name of the workload: of a WorkloadEntry in Namespace if Entry is true,
	// otherwise of a pod, for display.
	Workload string
	Entry    bool
	// Hostname is "<hostname>.<subdomain>" for a pod of a headless service that has its own DNS
	// name; otherwise empty.
	Hostname string
	// Cluster is the cluster that the workload runs in, Network the network that the address
	// belongs to, and Node the name of the node; each may be empty.
	Cluster, Network, Node string
	// Locality is region/zone/subzone; parts may be missing.
	Locality string
	// Weight is relative to the weights of the other endpoints; at least 1.
	Weight uint32
	// MutualTLS is true if the endpoint is known to accept mesh mutual TLS (tlsMode istio).
	MutualTLS bool
	// Unhealthy is true for an endpoint that receives no requests because its agent reports that
	// the application does not answer. Its identity still counts as an identity of the service.
	Unhealthy bool
	// Draining is true for an endpoint that is terminating, or has the label. It receives only requests of clients
	// with a persistent session to it.
	Draining bool
	// Unexported is true for an endpoint that only clients of its own cluster discover.
	Unexported bool
}

// HiddenFrom reports whether clients of a cluster do not discover the endpoint. Clients of an unknown
// cluster discover all endpoints.
func (e *Endpoint) HiddenFrom(cluster string) bool {
	return e.Unexported && cluster != "" && e.Cluster != "" && e.Cluster != cluster
}

// WorkloadName returns the name of the workload that an endpoint belongs to, as far as its own name
// and its labels say: of the Deployment, StatefulSet or DaemonSet of a pod, or of a WorkloadEntry.
func (e *Endpoint) WorkloadName() string {
	if name := e.Labels["service.istio.io/workload-name"]; name != "" || e.Entry {
		return cmp.Or(name, e.Workload)
	}
	if hash := e.Labels["pod-template-hash"]; hash != "" { // of a ReplicaSet: <deployment>-<hash>-<random>
		if name, _, ok := strings.Cut(e.Workload, "-"+hash+"-"); ok {
			return name
		}
	}
	if e.Labels["statefulset.kubernetes.io/pod-name"] != "" || e.Labels["controller-revision-hash"] != "" {
		if i := strings.LastIndexByte(e.Workload, '-'); i > 0 {
			return e.Workload[:i]
		}
	}
	return e.Workload
}

// EntryKey returns the key of the WorkloadEntry object that the endpoint comes from, or the zero
// Key if it comes from another object.
func (e *Endpoint) EntryKey() Key {
	if !e.Entry {
		return Key{}
	}
	return Key{Kind: WorkloadEntry, Namespace: e.Namespace, Name: e.Workload}
}
