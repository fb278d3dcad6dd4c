// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/cluster"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// kindOf tells proxies of different kinds apart: not all can be served the same.
func kindOf(v cluster.Viewer) string {
	switch {
	case v.Proxyless:
		return "/proxyless"
	case v.Router:
		return "/router"
	}
	return ""
}

// placeOf returns where a proxy is, as far as a service or rule makes a difference
// of it; empty if none does, so that proxies of different places share. The proxy
// that it gives has what only its endpoints say of its place.
func placeOf(mesh *snapshot.Mesh, p *model.Proxy) (string, *model.Proxy) {
	setting := mesh.Config.GetLocalityLbSetting()
	if !mesh.DestinationRules.Placed && len(mesh.Services.Distributions) == 0 && len(setting.GetDistribute()) == 0 {
		return "", p
	}
	for _, at := range mesh.Instances.At(p.IPs) {
		// An address alone may be that of another in another network.
		ep := at.Endpoint
		if ep.Namespace != p.Namespace || ep.Cluster != "" && ep.Cluster != p.ClusterID || ep.Locality == "" {
			continue
		}
		located := *p
		located.Locality, located.Node = ep.Locality, cmp.Or(p.Node, ep.Node)
		p = &located
		break
	}
	keys := slices.Clone(mesh.DestinationRules.PlaceLabels)
	for _, label := range setting.GetFailoverPriority() {
		key, _, _ := strings.Cut(label, "=")
		keys = append(keys, key)
	}
	for _, d := range mesh.Services.Distributions {
		keys = append(keys, cluster.DistributionLabels(d)...)
	}
	slices.Sort(keys)
	var b strings.Builder
	b.WriteString(strconv.Quote(p.Locality))
	for _, key := range slices.Compact(keys) {
		b.WriteString("," + strconv.Quote(cluster.PlaceLabel(p, key)))
	}
	return b.String(), p
}

// locality says which of the endpoints of a cluster a proxy prefers.
func (c clusterRef) locality(s *target) cluster.Locality {
	return c.policy().Locality(c.service, s.mesh.Config, s.located)
}

// prefer orders the endpoints of a port as the proxy prefers them. The list is
// what they were made of, in the same order.
func prefer(cla *endpointv3.ClusterLoadAssignment, list []*model.Endpoint, port uint32, l cluster.Locality) {
	if l == (cluster.Locality{}) {
		return
	}
	rest := list
	behind := make(map[*endpointv3.LbEndpoint]*model.Endpoint, len(list))
	for _, group := range cla.GetEndpoints() {
		for _, ep := range group.GetLbEndpoints() {
			for rest[0].ServicePort != port {
				rest = rest[1:]
			}
			behind[ep], rest = rest[0], rest[1:]
		}
	}
	cluster.ApplyLocality(cla, behind, l)
}
