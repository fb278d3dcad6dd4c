// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package cluster

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// Names in failoverPriority and trafficDistribution that are not workload labels.
const (
	labelNetwork = "topology.istio.io/network"
	labelCluster = "topology.istio.io/cluster"
	labelRegion  = "topology.kubernetes.io/region"
	labelZone    = "topology.kubernetes.io/zone"
	labelSubzone = "topology.istio.io/subzone"
	labelNode    = "kubernetes.io/hostname"
)

// distributions contains the settings that are equivalent to each trafficDistribution. They must
// not be modified.
var distributions = map[model.Distribution]*networkingv1alpha3.LocalityLoadBalancerSetting{
	model.PreferSameZone: {FailoverPriority: []string{labelNetwork, labelRegion, labelZone, labelSubzone}},
	model.PreferSameNode: {FailoverPriority: []string{labelNetwork, labelRegion, labelZone, labelSubzone, labelNode}},
}

// Locality describes which endpoints a proxy prefers because of their location. It is comparable.
// The zero value has no preference.
type Locality struct {
	setting *networkingv1alpha3.LocalityLoadBalancerSetting
	// zones is set instead of setting if Envoy chooses between the zones of the proxy's region.
	zones *networkingv1alpha3.ZoneAwareLoadBalancerSetting
	// place is the region/zone/subzone of the proxy, or the region.
	place string
	// wants are the values of the failoverPriority labels, separated by 0 bytes.
	wants string
}

// localities returns the locality setting of a service: that of the rule, otherwise that of the
// service, otherwise that of the mesh. It returns nil if the location of endpoints does not
// matter, or Zones returns a setting.
func (p Policy) localities(svc *model.Service, mesh *meshv1alpha1.MeshConfig) *networkingv1alpha3.LocalityLoadBalancerSetting {
	if p.Zones(svc, mesh) != nil {
		return nil
	}
	if own := p.Balancer.GetLocalityLbSetting(); own != nil {
		if own.GetEnabled() != nil && !own.GetEnabled().GetValue() {
			return nil
		}
		return own
	}
	if d := distributions[svc.Distribution]; d != nil {
		return d
	}
	whole := mesh.GetLocalityLbSetting()
	if whole.GetEnabled() != nil && !whole.GetEnabled().GetValue() {
		return nil
	}
	return whole
}

// Zones returns the setting by which Envoy chooses between the zones of its region, or nil. The
// setting may disable that.
func (p Policy) Zones(svc *model.Service, mesh *meshv1alpha1.MeshConfig) *networkingv1alpha3.ZoneAwareLoadBalancerSetting {
	own := p.Balancer.GetZoneAwareLbSetting()
	if own != nil || p.Balancer.GetLocalityLbSetting() != nil || distributions[svc.Distribution] != nil {
		return own
	}
	return mesh.GetZoneAwareLbSetting()
}

// ZonesEnabled reports whether a setting makes Envoy choose between zones.
func ZonesEnabled(z *networkingv1alpha3.ZoneAwareLoadBalancerSetting) bool {
	return z != nil && (z.GetEnabled() == nil || z.GetEnabled().GetValue())
}

// Locality returns which endpoints of a service a proxy prefers. Proxies with the same preference
// have equal values. The order of preference applies only with outlier detection or if the service
// requests it, because it has an effect only when endpoints fail.
func (p Policy) Locality(svc *model.Service, mesh *meshv1alpha1.MeshConfig, proxy *model.Proxy) Locality {
	if z := p.Zones(svc, mesh); ZonesEnabled(z) {
		if proxy.Locality == "" && len(z.GetFailoverPriority()) == 0 {
			return Locality{} // every region is the same to it
		}
		return Locality{zones: z, place: parseLocality(proxy.Locality).GetRegion(), wants: wants(z.GetFailoverPriority(), proxy)}
	}
	setting := p.localities(svc, mesh)
	switch {
	case setting == nil:
		return Locality{}
	case len(setting.GetDistribute()) > 0:
		return Locality{setting: setting, place: proxy.Locality}
	case p.Outlier == nil && setting != distributions[svc.Distribution]:
		return Locality{}
	case len(setting.GetFailoverPriority()) == 0:
		if proxy.Locality == "" {
			return Locality{} // all endpoints are equally far from an unknown location
		}
		return Locality{setting: setting, place: proxy.Locality}
	}
	l := Locality{setting: setting, wants: wants(setting.GetFailoverPriority(), proxy)}
	if len(setting.GetFailover()) > 0 {
		l.place = proxy.Locality
	}
	return l
}

// wants returns the values of labels that a proxy prefers, separated by 0 bytes.
func wants(labels []string, proxy *model.Proxy) string {
	values := make([]string, 0, len(labels))
	for _, label := range labels {
		key, value, given := strings.Cut(label, "=")
		if !given {
			value = PlaceLabel(proxy, key)
		}
		values = append(values, value)
	}
	return strings.Join(values, "\x00")
}

// DistributionLabels returns the labels that a trafficDistribution compares.
func DistributionLabels(d model.Distribution) []string { return distributions[d].GetFailoverPriority() }

// PlaceLabel returns the value of a label of a proxy. The key may be one of the locality names.
func PlaceLabel(p *model.Proxy, key string) string {
	switch key {
	case labelNetwork:
		return cmp.Or(p.Network, p.Labels[key])
	case labelCluster:
		return cmp.Or(p.ClusterID, p.Labels[key])
	case labelNode:
		return cmp.Or(p.Node, p.Labels[key])
	}
	return cmp.Or(localityPart(p.Locality, key), p.Labels[key])
}

func endpointLabel(ep *model.Endpoint, key string) string {
	switch key {
	case labelNetwork:
		return cmp.Or(ep.Network, ep.Labels[key])
	case labelCluster:
		return cmp.Or(ep.Cluster, ep.Labels[key])
	case labelNode:
		return cmp.Or(ep.Node, ep.Labels[key])
	}
	return cmp.Or(localityPart(ep.Locality, key), ep.Labels[key])
}

// localityPart returns the part of a locality that a key names, or "" for other keys.
func localityPart(locality, key string) string {
	l := parseLocality(locality)
	switch key {
	case labelRegion:
		return l.GetRegion()
	case labelZone:
		return l.GetZone()
	case labelSubzone:
		return l.GetSubZone()
	}
	return ""
}

// parseLocality splits "region/zone/subzone".
func parseLocality(s string) *corev3.Locality {
	region, rest, _ := strings.Cut(s, "/")
	zone, subzone, _ := strings.Cut(rest, "/")
	return &corev3.Locality{Region: region, Zone: zone, SubZone: subzone}
}

// ApplyLocality sets the priorities and weights of the localities in an assignment by the
// preference of a proxy. The map contains the endpoint of each Envoy endpoint; it is needed for
// labels only.
func ApplyLocality(cla *endpointv3.ClusterLoadAssignment, behind map[*endpointv3.LbEndpoint]*model.Endpoint, l Locality) {
	labels := append(slices.Clip(l.setting.GetFailoverPriority()), l.zones.GetFailoverPriority()...)
	switch {
	case l.setting == nil && l.zones == nil || cla == nil:
	case len(l.setting.GetDistribute()) > 0:
		l.distribute(cla)
	default:
		if len(labels) > 0 {
			l.byLabels(cla, behind, labels)
		}
		if len(labels) == 0 || len(l.setting.GetFailover()) > 0 || l.zones != nil && l.place != "" {
			l.byDistance(cla)
		}
		compact(cla)
	}
}

// distribute assigns the weights of the first matching entry to the localities that it names, and
// removes all others.
func (l Locality) distribute(cla *endpointv3.ClusterLoadAssignment) {
	from := parseLocality(l.place)
	i := slices.IndexFunc(l.setting.GetDistribute(), func(d *networkingv1alpha3.LocalityLoadBalancerSetting_Distribute) bool {
		return covers(d.GetFrom(), from)
	})
	if i < 0 {
		return
	}
	to := l.setting.GetDistribute()[i].GetTo()
	// "b/c" precedes "b/*", which precedes "*": the most specific pattern wins.
	targets := slices.SortedFunc(maps.Keys(to), func(a, b string) int {
		return cmp.Or(cmp.Compare(wildness(a), wildness(b)), cmp.Compare(a, b))
	})
	chosen := make(map[*endpointv3.LocalityLbEndpoints]bool)
	for _, target := range targets {
		var groups []*endpointv3.LocalityLbEndpoints
		var total float64
		for _, g := range cla.GetEndpoints() {
			if !chosen[g] && covers(target, g.GetLocality()) {
				groups, chosen[g] = append(groups, g), true
				total += float64(weightOf(g))
			}
		}
		for _, g := range groups { // at least 1: a locality of weight 0 receives nothing
			share := math.Ceil(float64(weightOf(g)) * float64(to[target]) / total)
			g.LoadBalancingWeight = wrapperspb.UInt32(uint32(max(share, 1)))
		}
	}
	cla.Endpoints = slices.DeleteFunc(cla.GetEndpoints(), func(g *endpointv3.LocalityLbEndpoints) bool { return !chosen[g] })
}

func weightOf(g *endpointv3.LocalityLbEndpoints) uint32 {
	return max(g.GetLoadBalancingWeight().GetValue(), 1)
}

// wildness returns a rank by which less specific patterns of localities sort last.
func wildness(pattern string) int {
	set := 0
	for part := range strings.SplitSeq(pattern, "/") {
		if part != "*" && part != "" {
			set++
		}
	}
	return -set
}

// covers reports whether a pattern matches a locality. The pattern has the form
// "region/zone/subzone", in which "*" or an empty part matches any value.
func covers(pattern string, l *corev3.Locality) bool {
	want := parseLocality(pattern)
	match := func(want, is string) bool { return want == "*" || want == "" || want == is }
	return match(want.GetRegion(), l.GetRegion()) && match(want.GetZone(), l.GetZone()) && match(want.GetSubZone(), l.GetSubZone())
}

// failover returns the region that replaces a region, or "".
func (l Locality) failover(region string) string {
	for _, f := range l.setting.GetFailover() {
		if f.GetFrom() == region {
			return f.GetTo()
		}
	}
	for _, f := range l.zones.GetFailover() {
		if f.GetFrom() == region {
			return f.GetTo()
		}
	}
	return ""
}

// byDistance lowers the priority of more distant localities within each existing priority. The
// order is: same subzone, same zone, same region, the failover region, all others. If Envoy chooses
// between the zones of its region, they have the same priority.
func (l Locality) byDistance(cla *endpointv3.ClusterLoadAssignment) {
	const distances = 5
	own := parseLocality(l.place)
	region := own.GetRegion()
	next := l.failover(region)
	for _, g := range cla.GetEndpoints() {
		at := g.GetLocality()
		distance := uint32(3)
		switch {
		case at.GetRegion() != region:
			if next != "" && at.GetRegion() != next {
				distance = 4
			}
		case l.zones != nil:
			distance = 0
		case at.GetZone() != own.GetZone():
			distance = 2
		case at.GetSubZone() != own.GetSubZone():
			distance = 1
		default:
			distance = 0
		}
		g.Priority = g.GetPriority()*distances + distance
	}
}

// byLabels sets the priority of each endpoint to the number of labels that remain from the first
// one that does not match. A locality whose endpoints have different priorities is divided.
func (l Locality) byLabels(cla *endpointv3.ClusterLoadAssignment, behind map[*endpointv3.LbEndpoint]*model.Endpoint, labels []string) {
	wants := strings.Split(l.wants, "\x00")
	var out []*endpointv3.LocalityLbEndpoints
	for _, g := range cla.GetEndpoints() {
		levels := make([]*endpointv3.LocalityLbEndpoints, len(labels)+1)
		for _, ep := range g.GetLbEndpoints() {
			level := len(labels)
			if of := behind[ep]; of != nil {
				for i, label := range labels {
					key, _, _ := strings.Cut(label, "=")
					if i >= len(wants) || endpointLabel(of, key) != wants[i] {
						break
					}
					level--
				}
			}
			if levels[level] == nil {
				levels[level] = &endpointv3.LocalityLbEndpoints{
					Locality: g.GetLocality(), Metadata: g.GetMetadata(), Priority: uint32(level), LoadBalancingWeight: wrapperspb.UInt32(0),
				}
				out = append(out, levels[level])
			}
			levels[level].LbEndpoints = append(levels[level].LbEndpoints, ep)
			weight := uint64(levels[level].LoadBalancingWeight.GetValue()) + uint64(max(ep.GetLoadBalancingWeight().GetValue(), 1))
			levels[level].LoadBalancingWeight.Value = uint32(min(weight, math.MaxUint32))
		}
	}
	cla.Endpoints = out
}

// compact renumbers the priorities from 0 without gaps, as Envoy requires, and sorts the
// localities by priority.
func compact(cla *endpointv3.ClusterLoadAssignment) {
	var levels []uint32
	for _, g := range cla.GetEndpoints() {
		levels = append(levels, g.GetPriority())
	}
	slices.Sort(levels)
	levels = slices.Compact(levels)
	for _, g := range cla.GetEndpoints() {
		i, _ := slices.BinarySearch(levels, g.GetPriority())
		g.Priority = uint32(i)
	}
	slices.SortStableFunc(cla.GetEndpoints(), func(a, b *endpointv3.LocalityLbEndpoints) int {
		return cmp.Compare(a.GetPriority(), b.GetPriority())
	})
}
