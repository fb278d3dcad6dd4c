// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// viewpoint describes the location of a proxy, as far as it determines the endpoints that the
// proxy receives. The viewpoint of one service contains only what affects that service, so that
// proxies can share results.
type viewpoint struct {
	cluster, network, node string
	// visible lists the networks whose endpoints the proxy uses, with commas before, between and
	// after them. Empty means all networks.
	visible string

	// The remaining fields are set for one service.

	// clusterLocal and nodeLocal exclude endpoints of other clusters and nodes.
	clusterLocal, nodeLocal bool
	// exported excludes endpoints that only clients of their cluster discover.
	exported bool
	// networks is nil if all endpoints of the service are in the network of the proxy. secure
	// reports whether connections use mutual TLS, without which a gateway cannot tell their
	// destination.
	networks *snapshot.Networks
	secure   bool
}

// viewpointOf reads the viewpoint from the metadata of the proxy. Missing values come from the
// registry entry of its address.
func viewpointOf(s *target) viewpoint {
	v := viewpoint{cluster: s.proxy.ClusterID}
	if len(s.proxy.NetworkView) > 0 {
		v.visible = "," + strings.Join(s.proxy.NetworkView, ",") + ","
	}
	networks, nodes := s.mesh.Networks.Any(), s.mesh.Services.NodeLocal
	if networks {
		v.network = s.proxy.Network
	}
	if nodes {
		v.node = s.proxy.Node
	}
	if nodes && v.node == "" || networks && v.network == "" {
		for _, i := range s.mesh.Instances.At(s.proxy.IPs) {
			if i.Endpoint.Cluster != v.cluster {
				continue // the address may belong to another workload there
			}
			if nodes {
				v.node = cmp.Or(v.node, i.Endpoint.Node)
			}
			if networks {
				v.network = cmp.Or(v.network, i.Endpoint.Network)
			}
		}
	}
	return v
}

// String returns a part of cache keys. The values are quoted because a proxy may claim any value.
func (v viewpoint) String() string {
	var b strings.Builder
	for _, text := range []string{v.cluster, v.network, v.node, v.visible} {
		b.WriteString(" @" + strconv.Quote(text))
	}
	return b.String()
}

// of returns the part of the viewpoint that affects a cluster with the given endpoints, which may
// be nil.
func (v viewpoint) of(s *target, ref clusterRef, set *snapshot.EndpointSet) viewpoint {
	out := viewpoint{clusterLocal: v.cluster != "" && s.mesh.ClusterLocal.Has(ref.service.Hostname), nodeLocal: ref.service.NodeLocal}
	out.exported = v.cluster != "" && set != nil && set.Unexported
	if out.clusterLocal || out.exported {
		out.cluster = v.cluster
	}
	if out.nodeLocal {
		out.node = v.node
	}
	if set == nil || !set.Networks {
		return out
	}
	out.visible = v.visible
	if s.mesh.Networks.Any() {
		out.network, out.networks, out.secure = v.network, s.mesh.Networks, securesTo(s, ref)
	}
	return out
}

// securesTo reports whether connections use mutual TLS to endpoints that support it.
func securesTo(s *target, ref clusterRef) bool {
	if tls := ref.policy().TLS; tls != nil {
		return tls.GetMode() == networkingv1alpha3.ClientTLSSettings_ISTIO_MUTUAL
	}
	auto := s.mesh.Config.GetEnableAutoMtls()
	return !ref.service.External && (auto == nil || auto.GetValue())
}

// seen returns the endpoints that the proxy uses.
func (v viewpoint) seen(list []*model.Endpoint) []*model.Endpoint {
	if !v.clusterLocal && !v.nodeLocal && !v.exported && v.visible == "" {
		return list
	}
	out := make([]*model.Endpoint, 0, len(list))
	for _, ep := range list {
		switch {
		case v.clusterLocal && ep.Cluster != "" && ep.Cluster != v.cluster:
		case v.exported && ep.HiddenFrom(v.cluster):
		case v.nodeLocal && (v.node == "" || ep.Node != v.node):
		case v.visible != "" && ep.Network != "" && !strings.Contains(v.visible, ","+ep.Network+","):
		default:
			out = append(out, ep)
		}
	}
	return out
}

// route returns the endpoints of a port in the way the proxy reaches them. Endpoints of another
// network are replaced by its gateways, which share their weights; endpoints without mutual TLS
// cannot be reached through a gateway and are omitted. The list is sorted by locality and stays
// sorted.
func (v viewpoint) route(list []*model.Endpoint, port uint32, peers *snapshot.PeerAuthentications) []*model.Endpoint {
	scale := uint64(v.networks.Scale())
	out := make([]*model.Endpoint, 0, len(list))
	through := map[model.NetworkGateway]uint64{}
	var locality string
	flush := func() {
		for _, gateway := range slices.SortedFunc(maps.Keys(through), model.NetworkGateway.Compare) {
			out = append(out, &model.Endpoint{
				Address: gateway.Address, Port: gateway.Port, ServicePort: port, Cluster: gateway.Cluster, Network: gateway.Network,
				Locality: locality, Weight: uint32(min(through[gateway], math.MaxUint32)), MutualTLS: true,
			})
		}
		clear(through)
	}
	for _, ep := range list {
		if ep.ServicePort != port {
			continue
		}
		if ep.Locality != locality {
			flush()
			locality = ep.Locality
		}
		weight := uint64(max(ep.Weight, 1)) * scale
		var gateways []model.NetworkGateway
		if v.network != "" && ep.Network != v.network {
			gateways = v.networks.Gateways(ep.Network, ep.Cluster)
		}
		switch {
		case len(gateways) == 0:
			direct := *ep
			direct.Weight, direct.MutualTLS = uint32(min(weight, math.MaxUint32)), secured(ep, peers)
			out = append(out, &direct)
		case v.secure && secured(ep, peers) && !ep.Draining:
			for _, gateway := range gateways {
				through[gateway] += weight / uint64(len(gateways))
			}
		}
	}
	flush()
	return out
}
