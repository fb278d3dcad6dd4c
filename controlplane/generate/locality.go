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

// kindOf returns a key that distinguishes kinds of proxies that cannot share resources.
func kindOf(v cluster.Viewer) string {
	switch {
	case v.Proxyless:
		return "/proxyless"
	case v.Router:
		return "/router"
	}
	return ""
}

// locate returns the location of a proxy, as far as a service or rule depends on it. It returns
// "" if none does, so that proxies at different locations share results. The returned proxy also
// has the location that only its endpoints specify.
func locate(mesh *snapshot.Mesh, p *model.Proxy) (string, *model.Proxy) {
	setting, zones := mesh.Config.GetLocalityLbSetting(), mesh.Config.GetZoneAwareLbSetting()
	if !mesh.DestinationRules.UsesLocality && len(mesh.Services.Distributions) == 0 && len(setting.GetDistribute()) == 0 && zones == nil {
		return "", p
	}
	for _, at := range mesh.Instances.At(p.IPs) {
		// The address alone is not enough: a proxy in another network may have the same one.
		ep := at.Endpoint
		if ep.Namespace != p.Namespace || ep.Cluster != "" && ep.Cluster != p.ClusterID || ep.Locality == "" {
			continue
		}
		located := *p
		located.Locality, located.Node = ep.Locality, cmp.Or(p.Node, ep.Node)
		p = &located
		break
	}
	keys := slices.Clone(mesh.DestinationRules.LocalityLabels)
	for _, label := range append(slices.Clip(setting.GetFailoverPriority()), zones.GetFailoverPriority()...) {
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

// locality returns the locality preference of a proxy among the endpoints of a cluster.
func (c clusterRef) locality(s *target) cluster.Locality {
	return c.policy().Locality(c.service, s.mesh.Config, s.located)
}

// prefer orders the endpoints of a port by the preference of the proxy. The list contains the
// endpoints that the assignment was built from, in the same order.
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
