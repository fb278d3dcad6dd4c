// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"fmt"
	"slices"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/proto"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/cluster"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// clusterSource contains everything that an outbound cluster is built from.
type clusterSource struct {
	cluster.Source
	askedBy model.Key // see clusterRef
	// The remaining fields are zero unless Envoy resolves the endpoints or the protocol of the
	// endpoints affects the cluster.
	endpoints *snapshot.EndpointSet
	peers     *snapshot.PeerAuthentications
	locality  cluster.Locality
}

// named reports whether the cluster contains its endpoints because Envoy resolves their names.
func (src clusterSource) named() bool {
	r := src.Resolution()
	return r == model.ResolutionDNS || r == model.ResolutionDNSRoundRobin
}

// list returns the endpoints that affect the cluster.
func (src clusterSource) list() []*model.Endpoint {
	return endpointsOf(src.endpoints, src.Rule, src.Subset, src.Port.Number)
}

// sources returns the objects that the cluster is built from.
func (src clusterSource) sources() xds.Sources {
	from := src.Sources()
	from.Add(src.askedBy)
	if src.endpoints != nil {
		from.Add(src.Service.EndpointsFrom...)
	}
	addEndpoints(&from, src.list(), src.peers)
	return from
}

// assignment returns the endpoints that Envoy resolves, or nil for other kinds of clusters.
func (src clusterSource) assignment(name string) *endpointv3.ClusterLoadAssignment {
	if !src.named() {
		return nil
	}
	list := src.list()
	cla := loadAssignment(name, src.Port.Number, list, endpointFacts{src.peers, src.Labelled})
	prefer(cla, list, src.Port.Number, src.locality)
	if src.Service.Resolution == model.ResolutionDNSRoundRobin {
		oneName(cla)
	}
	return cla
}

// oneName removes all but the first endpoint. Envoy accepts only one in a cluster that resolves a
// single name for new connections.
func oneName(cla *endpointv3.ClusterLoadAssignment) {
	if len(cla.GetEndpoints()) == 0 {
		return
	}
	group := cla.GetEndpoints()[0]
	group.LbEndpoints, group.Priority = group.GetLbEndpoints()[:1], 0
	cla.Endpoints = cla.GetEndpoints()[:1]
}

// source returns the input of the cluster of a reference.
func (s *target) source(ref clusterRef) clusterSource {
	src := clusterSource{Source: ref.source(s), askedBy: ref.askedBy}
	switch {
	case src.named():
		src.endpoints, src.peers = endpointSetOf(s.mesh, ref.service), s.mesh.PeerAuthentications
		src.locality = ref.locality(s)
	case src.Resolution() == model.ResolutionPassthrough:
		src.endpoints, src.peers = endpointSetOf(s.mesh, ref.service), s.mesh.PeerAuthentications
		src.Secured = allSecured(src.list(), src.peers, ref.port.Number)
	}
	return src
}

// allSecured reports whether a port has endpoints that all use mutual TLS.
func allSecured(list []*model.Endpoint, peers *snapshot.PeerAuthentications, port uint32) bool {
	found := false
	for _, ep := range list {
		if ep.ServicePort != port {
			continue
		}
		if found = true; !secured(ep, peers) {
			return false
		}
	}
	return found
}

// clusters returns the CDS resources of a proxy.
func (g *Generator) clusters(s *target) *xds.Set {
	out := g.outboundClusters(s)
	ingress := ingressOf(s)
	key := setKey{typeURL: xds.TypeCluster, outbound: s.outbound, inbound: ingress.clusterKey(), delimited: s.settings.DelimitsStats()}
	if to, _ := s.forwarded(); to == cluster.ForwardName {
		key.unknown, key.inbound.port = s.unknownBy(), httpProxyPort(s)
	}
	return g.sets.get(key, s.mesh.Sequence, inputs{out, ingress.pooled(), s.mesh.DestinationRules, s.mesh.Config}, func(prev *xds.Set) *xds.Set {
		all, problems := out.resources, out.problems
		for _, c := range ingress.clusters(s.mesh.Config) {
			if s.settings.DelimitsStats() {
				cluster.Delimit(c.message)
			}
			r, err := g.table.Put(xds.TypeCluster, c.message.GetName(), c.message, c.from)
			if err != nil {
				problems = append(problems, envoyconf.Left(s.author(model.Key{}), err))
				continue
			}
			all = append(all[:len(all):len(all)], r)
		}
		return xds.NewSet(prev, all, problems)
	})
}

// outboundClusters returns the clusters of all services that a proxy sees.
func (g *Generator) outboundClusters(s *target) *part {
	v := g.view(s)
	from := inputs{v, s.mesh.Accounts, s.mesh.NamedEndpoints, s.mesh.PeerAuthentications, s.mesh.Config, s.mesh.Denied}
	if v.passthrough {
		from[6] = s.mesh.Endpoints // whether they use mutual TLS
	}
	return g.outbound.get(clusterKey{s.outbound, s.settings.DelimitsStats()}, s.mesh.Sequence, from, func(prev *part) *part {
		p := &part{resources: make([]*xds.Resource, 0, len(v.clusters)+1)}
		for _, ref := range v.clusters {
			src := s.source(ref)
			if ref.subset == "" && src.named() && len(src.list()) == 0 {
				p.problems = append(p.problems, withoutNames(ref))
			}
			p.add(ref, func() (*xds.Resource, error) {
				return g.table.Get(src, xds.TypeCluster, ref.name, func() (proto.Message, xds.Sources) {
					return cluster.Outbound(ref.name, src.Source, src.assignment(ref.name)), src.sources()
				})
			})
		}
		p.add(clusterRef{}, func() (*xds.Resource, error) {
			c := cluster.BlackHole()
			if s.settings.DelimitsStats() {
				cluster.Delimit(c)
			}
			var from xds.Sources
			if s.outbound.labelled {
				cluster.Label(c)
				from.Add(s.outbound.labeller)
			}
			return g.table.Put(xds.TypeCluster, envoyconf.BlackHoleCluster, c, from)
		})
		if prev != nil && slices.Equal(prev.resources, p.resources) && slices.Equal(prev.problems, p.problems) {
			return prev // so that the sets that contain it also stay the same
		}
		return p
	})
}

// withoutNames returns the problem of a service that has no name to resolve.
func withoutNames(ref clusterRef) model.Problem {
	return model.Problem{Object: ref.service.Source, Reason: fmt.Sprintf(
		"port %d of %s has no endpoint, so there is nothing to resolve: requests to it are answered with 503; add an endpoint with the port", ref.port.Number, ref.service.Hostname)}
}

// add appends a resource, or the problem of the object that makes it invalid.
func (p *part) add(ref clusterRef, get func() (*xds.Resource, error)) {
	r, err := get()
	switch {
	case err == nil:
		p.resources = append(p.resources, r)
	case ref.rule != nil:
		p.problems = append(p.problems, envoyconf.Left(ref.rule.From[0].Key, err))
	case ref.service != nil:
		p.problems = append(p.problems, envoyconf.Left(ref.service.Source, err))
	}
}
