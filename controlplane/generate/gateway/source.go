// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package gateway

import (
	"cmp"
	"slices"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/authentication"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/authorization"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/route"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// Source is a proxy in a snapshot.
type Source struct {
	Mesh  *snapshot.Mesh
	Proxy *model.Proxy
	// Topology describes the proxies before the gateway; nil means none.
	Topology *meshv1alpha1.Topology
	// Services are the services that the proxy sees. Service returns the one with a host, or nil.
	Services []*model.Service
	Service  func(host string) *model.Service
	// HTTP3 also serves HTTP/3 at servers that can have it.
	HTTP3 bool
	// Sessions makes the labels of services for persistent sessions effective.
	Sessions bool
	// Protocols are the protocols of databases that Envoy reads.
	Protocols envoyconf.Protocols
	// Timeout is the timeout of requests on routes that set none; 0 means no timeout.
	Timeout time.Duration
	// RouteName returns the name under which the proxy requests routes; nil means the name itself.
	RouteName func(string) string
	// Plugins returns the user-defined filters for requests to a port, and adds their objects to
	// from.
	Plugins func(port uint32, from *xds.Sources) envoyconf.Plugins
	// Authentication are the filters that validate tokens in requests.
	Authentication *authentication.Filters
	// Authorization are the filters that decide which requests and connections are accepted.
	Authorization *authorization.Filters
	// Observed is what is recorded about requests and connections, and Recorded are its objects.
	Observed envoyconf.Observed
	Recorded xds.Sources
	// Labelled is true if proxies tell each other about their workloads.
	Labelled bool
	// LabelledBy is the object that causes this; may be empty.
	LabelledBy model.Key
	// NamesRules adds a header to denied requests that names the rule.
	NamesRules bool
	// UnknownKeys is the log of requests whose token no known key verifies.
	UnknownKeys []*accesslogv3.AccessLog
	// Records are the headers that the agent can record.
	Records []string
	// DelimitedStats ends the names of stats with a semicolon.
	DelimitedStats bool
}

// virtualServices returns the objects that are bound to a Gateway and visible to the proxy.
// Objects that are exported to fewer namespaces come first, then older ones.
func (in *Source) virtualServices(gateway *snapshot.Gateway) []*snapshot.VirtualService {
	ns := in.Proxy.Namespace
	out := slices.DeleteFunc(slices.Clone(in.Mesh.VirtualServices.OfGateway(gateway.Name)), func(vs *snapshot.VirtualService) bool {
		return !vs.VisibleFrom(ns)
	})
	slices.SortStableFunc(out, func(a, b *snapshot.VirtualService) int { return cmp.Compare(a.Reach(ns), b.Reach(ns)) })
	return out
}

// builder returns the builder of a server's routes.
func (in *Source) builder(s *server) *route.Builder {
	return &route.Builder{Mesh: in.Mesh, Proxy: in.Proxy, Gateway: s.gateway.Name, Timeout: in.Timeout, Sessions: in.Sessions, TLS: s.terminates(), Service: in.Service}
}

// Passthrough is a service port, or a subset of it, that mutual TLS reaches through the proxy
// without being terminated there.
type Passthrough struct {
	// Name is the name of the cluster and the SNI of clients.
	Name    string
	Service *model.Service
	Port    model.Port
	Subset  string
	Rule    *snapshot.DestinationRule // may be nil
	// Gateways are the objects whose servers lead to the port.
	Gateways xds.Sources
}

// sources returns the objects that allow connections to the port.
func (p Passthrough) sources() xds.Sources {
	from := slices.Clone(p.Gateways)
	from.Add(p.Service.Source)
	if p.Subset != "" {
		from.AddConfigs(p.Rule.Objects()...)
	}
	return from
}

// statName returns the name of the port in the counters of connections.
func (p Passthrough) statName(mesh *meshv1alpha1.MeshConfig) string {
	if pattern := mesh.GetOutboundClusterStatName(); pattern != "" {
		return envoyconf.ClusterStatName(pattern, p.Service, p.Port.Number, p.Subset, 0)
	}
	return p.Name
}

// Passthroughs returns the ports that AUTO_PASSTHROUGH servers lead to, sorted and without
// duplicates.
func (m *Merged) Passthroughs(in *Source) []Passthrough {
	var out []Passthrough
	for _, l := range m.listeners {
		for _, s := range l.servers {
			if s.automatic() {
				out = append(out, s.passthroughs(in)...)
			}
		}
	}
	slices.SortStableFunc(out, func(a, b Passthrough) int { return cmp.Compare(a.Name, b.Name) })
	merged := out[:0]
	for _, p := range out {
		if n := len(merged); n > 0 && merged[n-1].Name == p.Name {
			merged[n-1].Gateways = append(merged[n-1].Gateways, p.Gateways...)
		} else {
			merged = append(merged, p)
		}
	}
	return merged
}

func (s *server) passthroughs(in *Source) []Passthrough {
	var out []Passthrough
	var gateway xds.Sources
	gateway.AddConfigs(s.gateway.Config)
	for _, svc := range in.Services {
		hosts := s.gateway.ServerHosts(s.spec, svc.Namespace)
		if svc.External || serverNameFault(svc.Hostname) != "" || svc.Hostname[0] == '*' ||
			!slices.Contains(snapshot.IntersectHosts(hosts, []string{svc.Hostname}), svc.Hostname) {
			continue
		}
		rule := in.Mesh.DestinationRules.For(svc.ServiceKey, in.Proxy.Namespace, in.Proxy.Labels)
		for _, port := range svc.Ports {
			if port.Protocol == model.ProtocolUDP {
				continue
			}
			add := func(subset string) {
				out = append(out, Passthrough{
					Name: envoyconf.ServerName(port.Number, subset, svc.Hostname), Service: svc, Port: port, Subset: subset, Rule: rule,
					Gateways: slices.Clip(gateway),
				})
			}
			add("")
			if rule != nil {
				for _, subset := range rule.Subsets {
					add(subset.GetName())
				}
			}
		}
	}
	return out
}
