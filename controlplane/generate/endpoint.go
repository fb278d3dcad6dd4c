// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"math"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/cluster"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// endpointSource contains everything that the endpoints of a cluster are built from.
type endpointSource struct {
	name      string
	service   *model.Service
	port      uint32
	subset    string
	rule      *snapshot.DestinationRule
	endpoints *snapshot.EndpointSet
	peers     *snapshot.PeerAuthentications
	from      viewpoint
	locality  cluster.Locality
	askedBy   model.Key // see clusterRef
	labelled  bool      // see [telemetry.Effective]
	labeller  model.Key
}

// sources returns the objects that the endpoints are built from.
func (src endpointSource) sources() xds.Sources {
	var from xds.Sources
	from.Add(src.service.Source, src.askedBy, src.labeller)
	from.Add(src.service.EndpointsFrom...)
	from.AddConfigs(src.rule.Objects()...)
	addEndpoints(&from, src.from.seen(endpointsOf(src.endpoints, src.rule, src.subset, src.port)), src.peers)
	return from
}

// addEndpoints adds the objects that define the endpoints, and the PeerAuthentications that
// disable mutual TLS for some of them. With nil peers it adds none of the latter.
func addEndpoints(from *xds.Sources, list []*model.Endpoint, peers *snapshot.PeerAuthentications) {
	for _, ep := range list {
		from.Add(ep.EntryKey())
		if ep.MutualTLS && !secured(ep, peers) {
			from.AddConfigs(peers.Of(ep.Namespace, ep.Labels)...)
		}
	}
}

// list returns the endpoints to send, and the PeerAuthentications that decide whether they use
// mutual TLS. The latter are nil if the endpoints themselves determine that.
func (src endpointSource) list() ([]*model.Endpoint, *snapshot.PeerAuthentications) {
	all := src.from.seen(endpointsOf(src.endpoints, src.rule, src.subset, src.port))
	if src.from.networks == nil {
		return onlyIP(all), src.peers
	}
	return onlyIP(src.from.route(all, src.port, src.peers)), nil
}

// endpoints returns the EDS resources of a proxy: one for each EDS cluster, even if it is empty,
// because Envoy waits for it.
func (g *Generator) endpoints(s *target) *xds.Set {
	v := g.view(s)
	at := viewpointOf(s)
	key := setKey{typeURL: xds.TypeEndpoint, outbound: s.outbound, own: s.ownWorkload()}
	key.outbound.rules += at.String()
	from := inputs{v, s.mesh.Endpoints, s.mesh.NamedEndpoints, s.mesh.PeerAuthentications, s.mesh.Networks, s.mesh.Config}
	return g.sets.get(key, s.mesh.Sequence, from, func(prev *xds.Set) *xds.Set {
		p := &part{resources: make([]*xds.Resource, 0, len(v.clusters)+1), problems: v.withoutZones(s)}
		g.ownEndpoints(s, key.own, p)
		for _, ref := range v.clusters {
			if ref.found != model.ResolutionStatic {
				continue
			}
			src := endpointSource{
				name: ref.name, service: ref.service, port: ref.port.Number, subset: ref.subset, rule: ref.rule,
				endpoints: endpointSetOf(s.mesh, ref.service), peers: s.mesh.PeerAuthentications,
				locality: ref.locality(s), askedBy: ref.askedBy, labelled: s.outbound.labelled, labeller: s.outbound.labeller,
			}
			src.from = at.of(s, ref, src.endpoints)
			p.add(ref, func() (*xds.Resource, error) {
				return g.table.Get(src, xds.TypeEndpoint, ref.name, func() (proto.Message, xds.Sources) {
					list, peers := src.list()
					cla := loadAssignment(ref.name, src.port, list, endpointFacts{peers, src.labelled})
					prefer(cla, list, src.port, src.locality)
					return cla, src.sources()
				})
			})
		}
		return xds.NewSet(prev, p.resources, p.problems)
	})
}

// endpointSetOf returns the endpoints of a service, or nil if it has none.
func endpointSetOf(mesh *snapshot.Mesh, svc *model.Service) *snapshot.EndpointSet {
	if svc.Resolution.ByName() {
		return mesh.NamedEndpoints.Of(svc.ServiceKey)
	}
	return mesh.Endpoints.Of(svc.ServiceKey)
}

// NoEndpoints returns the EDS resource of a cluster without endpoints, or nil if no cluster can
// have the name.
func NoEndpoints(cluster string) *xds.Resource {
	r, err := xds.New(xds.TypeEndpoint, cluster, &endpointv3.ClusterLoadAssignment{ClusterName: cluster})
	if err != nil {
		return nil
	}
	return r
}

// endpointsOf returns the endpoints of a subset that have a port of the service.
func endpointsOf(set *snapshot.EndpointSet, rule *snapshot.DestinationRule, subset string, port uint32) []*model.Endpoint {
	list := set.OfPort(port)
	if subset == "" {
		return list
	}
	labels := rule.Subset(subset).GetLabels()
	var out []*model.Endpoint
	for _, ep := range list {
		if model.Selects(labels, ep.Labels) {
			out = append(out, ep)
		}
	}
	return out
}

// onlyIP removes endpoints without an IP address: a single one would make Envoy reject all
// endpoints of the cluster.
func onlyIP(list []*model.Endpoint) []*model.Endpoint {
	out := make([]*model.Endpoint, 0, len(list))
	for _, ep := range list {
		if _, unix := envoyconf.UnixPath(ep.Address); unix || envoyconf.IsIP(ep.Address) {
			out = append(out, ep)
		}
	}
	return out
}

// loadAssignment groups the endpoints of a service port by locality. The endpoints are sorted by
// locality and keep their order.
func loadAssignment(name string, port uint32, list []*model.Endpoint, facts endpointFacts) *endpointv3.ClusterLoadAssignment {
	cla := &endpointv3.ClusterLoadAssignment{ClusterName: name}
	divisor := weightDivisor(list, port)
	var group *endpointv3.LocalityLbEndpoints
	var locality string
	var weight uint32
	for _, ep := range list {
		if ep.ServicePort != port {
			continue
		}
		if group == nil || ep.Locality != locality {
			locality, weight = ep.Locality, 0
			group = &endpointv3.LocalityLbEndpoints{Locality: localityOf(locality)}
			cla.Endpoints = append(cla.Endpoints, group)
		}
		one := max(uint32(uint64(ep.Weight)/divisor), 1)
		group.LbEndpoints = append(group.LbEndpoints, lbEndpoint(ep, one, facts))
		weight += one
		group.LoadBalancingWeight = wrapperspb.UInt32(weight)
	}
	return cla
}

// weightDivisor returns the divisor of the endpoint weights. Envoy rejects endpoints whose weights
// add up to more than 32 bits.
func weightDivisor(list []*model.Endpoint, port uint32) uint64 {
	var total, count uint64
	for _, ep := range list {
		if ep.ServicePort == port {
			total += uint64(max(ep.Weight, 1))
			count++
		}
	}
	if total <= math.MaxUint32 {
		return 1
	}
	return total/(math.MaxUint32-count) + 1 // leaves room for weights that are rounded up to 1
}

func lbEndpoint(ep *model.Endpoint, weight uint32, facts endpointFacts) *endpointv3.LbEndpoint {
	address := envoyconf.SocketAddress(ep.Address, ep.Port)
	if path, ok := envoyconf.UnixPath(ep.Address); ok {
		address = envoyconf.PipeAddress(path)
	}
	out := &endpointv3.LbEndpoint{
		HostIdentifier:      &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: address}},
		LoadBalancingWeight: wrapperspb.UInt32(weight),
	}
	if ep.Draining {
		out.HealthStatus = corev3.HealthStatus_DRAINING
	}
	metadata := map[string]*structpb.Struct{}
	if secured(ep, facts.peers) {
		metadata["envoy.transport_socket_match"] = cluster.TLSModeIstio()
	}
	if facts.labelled {
		metadata[envoyconf.LabelsNamespace] = workloadLabels(ep)
	}
	if len(metadata) > 0 {
		out.Metadata = &corev3.Metadata{FilterMetadata: metadata}
	}
	return out
}

// endpointFacts is what the metadata of endpoints depends on, besides themselves.
type endpointFacts struct {
	// peers disable mutual TLS for some; nil means for none.
	peers    *snapshot.PeerAuthentications
	labelled bool // see [telemetry.Effective]
}

// workloadLabels returns the metadata of an endpoint for loggers of requests.
func workloadLabels(ep *model.Endpoint) *structpb.Struct {
	w := node.WorkloadOf(ep.WorkloadName(), ep.Namespace, ep.Cluster, ep.Labels)
	return envoyconf.Labels(map[string]string{
		"workload": w.Name, "namespace": w.Namespace, "app": w.App, "version": w.Version, "service": w.Service, "revision": w.Revision, "cluster": w.Cluster,
	})
}

// secured reports whether an endpoint uses mutual TLS.
func secured(ep *model.Endpoint, peers *snapshot.PeerAuthentications) bool {
	return ep.MutualTLS && (peers == nil || peers.Mode(ep.Namespace, ep.Labels, ep.Port) != snapshot.MutualTLSDisabled)
}

// localityOf splits "region/zone/subzone". Envoy applies the weight of a locality only if the
// locality is set, even to empty values.
func localityOf(s string) *corev3.Locality {
	region, rest, _ := strings.Cut(s, "/")
	zone, subzone, _ := strings.Cut(rest, "/")
	return &corev3.Locality{Region: region, Zone: zone, SubZone: subzone}
}
