// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/cluster"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// ownWorkload identifies the workload that a proxy belongs to, as far as its endpoints say. The zero
// value is that of a proxy that does not ask for the endpoints of its workload, or has none.
type ownWorkload struct {
	asked     bool
	service   *model.Service // nil if it has none
	port      uint32
	namespace string
	name      string // see ownOf
	template  string // pods of another template may get other shares of the requests
	region    string
}

// ownWorkload returns the workload of the proxy. Its first service counts.
func (s *target) ownWorkload() ownWorkload {
	if !s.proxy.SelfDiscovery || s.proxy.Proxyless {
		return ownWorkload{}
	}
	own := ownWorkload{asked: true}
	if all := s.instances(); len(all) > 0 {
		own = ownOf(all[0].Endpoint)
		own.asked, own.service, own.port = true, all[0].Service, all[0].Endpoint.ServicePort
	}
	return own
}

// ownOf returns the workload of an endpoint, without its service.
func ownOf(ep *model.Endpoint) ownWorkload {
	name := ep.WorkloadName()
	if ep.Entry {
		name = ep.Labels["service.istio.io/workload-name"] // the entries of a service have names of their own
	}
	return ownWorkload{
		namespace: ep.Namespace, name: name, region: localityOf(ep.Locality).GetRegion(),
		template: ep.Labels["pod-template-hash"] + "/" + ep.Labels["rollouts-pod-template-hash"],
	}
}

// ownSource contains everything that the endpoints of a workload are built from.
type ownSource struct {
	own       ownWorkload
	endpoints *snapshot.EndpointSet
}

// list returns the endpoints of the workload in the region of the proxy.
func (src ownSource) list() []*model.Endpoint {
	want := src.own
	want.asked, want.service, want.port = false, nil, 0
	return slices.DeleteFunc(onlyIP(src.endpoints.OfPort(src.own.port)), func(ep *model.Endpoint) bool { return ownOf(ep) != want })
}

// ownEndpoints adds the endpoints of the workload of a proxy that asks for them. Envoy compares how
// they spread over zones with how the endpoints of a cluster do.
func (g *Generator) ownEndpoints(s *target, own ownWorkload, p *part) {
	if !own.asked {
		return
	}
	src := ownSource{own: own}
	if own.service != nil {
		src.endpoints = s.mesh.Endpoints.Of(own.service.ServiceKey)
	}
	p.add(clusterRef{}, func() (*xds.Resource, error) {
		return g.table.Get(src, xds.TypeEndpoint, node.LocalCluster, func() (proto.Message, xds.Sources) {
			var from xds.Sources
			if own.service != nil {
				from.Add(own.service.Source)
				from.Add(own.service.EndpointsFrom...)
			}
			list := src.list()
			addEndpoints(&from, list, nil)
			return loadAssignment(node.LocalCluster, own.port, list, endpointFacts{}), from
		})
	})
}

// withoutZones returns a problem for each object by which Envoy would choose between zones if the proxy
// asked for the endpoints of its workload.
func (v *view) withoutZones(s *target) (out []model.Problem) {
	if s.proxy.SelfDiscovery {
		return nil
	}
	const cure = "zoneAwareLbSetting: proxies without ISTIO_META_ENABLE_SELF_DISCOVERY=true in proxyMetadata send requests to all zones of their region"
	if cluster.ZonesEnabled(s.mesh.Config.GetZoneAwareLbSetting()) {
		out = append(out, model.Problem{Warning: true, Reason: "mesh config: " + cure})
	}
	for _, rule := range v.zones {
		out = append(out, model.Problem{Object: rule, Warning: true, Reason: "spec.trafficPolicy.loadBalancer." + cure})
	}
	return out
}
