// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"slices"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/proto"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/cluster"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/parts"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// clusterSource is everything that an outbound cluster is built from.
type clusterSource struct {
	cluster.Source
	// endpoints and peers are nil unless Envoy resolves the endpoints.
	endpoints *snapshot.EndpointSet
	peers     *snapshot.PeerAuthentications
}

// assignment are the endpoints that Envoy resolves; nil for others.
func (src clusterSource) assignment(name string) *endpointv3.ClusterLoadAssignment {
	if src.Service.Resolution != model.ResolutionDNS {
		return nil
	}
	return loadAssignment(name, src.Port.Number, endpointsOf(src.endpoints, src.Rule, src.Subset), src.peers)
}

// clusters gives the CDS resources of a proxy.
func (g *Generator) clusters(s *scope) *Set {
	out := g.outboundClusters(s)
	ingress := ingressOf(s)
	key := setKey{typeURL: TypeCluster, outbound: s.outbound, inbound: ingress.clusterKey()}
	return g.sets.get(key, s.mesh.Sequence, sources{out, ingress.sidecar(), s.mesh.Config}, func(prev *Set) *Set {
		all, problems := out.resources, out.problems
		for _, c := range ingress.clusters(s.mesh.Config) {
			r, err := g.table.put(TypeCluster, c.GetName(), c)
			if err != nil {
				problems = append(problems, parts.Left(s.sidecar.Config.Key, err))
				continue
			}
			all = append(all[:len(all):len(all)], r)
		}
		return newSet(prev, all, problems)
	})
}

// outboundClusters gives the clusters of all services that a scope sees.
func (g *Generator) outboundClusters(s *scope) *part {
	v := g.view(s)
	from := sources{v, s.mesh.Accounts, s.mesh.NamedEndpoints, s.mesh.PeerAuthentications, s.mesh.Config}
	return g.outbound.get(s.outbound, s.mesh.Sequence, from, func(prev *part) *part {
		p := &part{resources: make([]*Resource, 0, len(v.clusters)+1)}
		for _, ref := range v.clusters {
			if !ref.policy().ServesTLS() {
				continue // the snapshot reports it
			}
			src := clusterSource{Source: ref.source(s)}
			if ref.service.Resolution == model.ResolutionDNS {
				src.endpoints, src.peers = s.mesh.NamedEndpoints.Of(ref.service.ServiceKey), s.mesh.PeerAuthentications
			}
			p.add(ref, func() (*Resource, error) {
				return g.table.get(src, TypeCluster, ref.name, func() proto.Message { return cluster.Outbound(ref.name, src.Source, src.assignment(ref.name)) })
			})
		}
		p.add(clusterRef{}, func() (*Resource, error) {
			return g.table.put(TypeCluster, parts.BlackHoleCluster, cluster.BlackHole())
		})
		if prev != nil && slices.Equal(prev.resources, p.resources) && slices.Equal(prev.problems, p.problems) {
			return prev // so that the sets that hold it stay too
		}
		return p
	})
}

// add appends a resource, or the problem of the object that spoils it.
func (p *part) add(ref clusterRef, get func() (*Resource, error)) {
	r, err := get()
	switch {
	case err == nil:
		p.resources = append(p.resources, r)
	case ref.rule != nil:
		p.problems = append(p.problems, parts.Left(ref.rule.From[0].Key, err))
	case ref.service != nil:
		p.problems = append(p.problems, parts.Left(ref.service.Source, err))
	}
}
