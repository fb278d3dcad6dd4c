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

// The labels by which failoverPriority and trafficDistribution name what is no
// label of a workload.
const (
	labelNetwork = "topology.istio.io/network"
	labelCluster = "topology.istio.io/cluster"
	labelRegion  = "topology.kubernetes.io/region"
	labelZone    = "topology.kubernetes.io/zone"
	labelSubzone = "topology.istio.io/subzone"
	labelNode    = "kubernetes.io/hostname"
)

// The settings that a service's trafficDistribution stands for. They are never
// written to.
var distributions = map[model.Distribution]*networkingv1alpha3.LocalityLoadBalancerSetting{
	model.PreferSameZone: {FailoverPriority: []string{labelNetwork, labelRegion, labelZone, labelSubzone}},
	model.PreferSameNode: {FailoverPriority: []string{labelNetwork, labelRegion, labelZone, labelSubzone, labelNode}},
}

// Locality says which endpoints a proxy prefers because of where they are. It is
// comparable; the zero value prefers none.
type Locality struct {
	setting *networkingv1alpha3.LocalityLoadBalancerSetting
	// place is region/zone/subzone of the proxy.
	place string
	// wants are the values of the labels of failoverPriority, with a 0 byte
	// between each two.
	wants string
}

// localities returns the setting that holds for a service: that of the rule, that
// which the service asks for, that of the mesh. Nil means that where endpoints
// are makes no difference.
func (p Policy) localities(svc *model.Service, mesh *meshv1alpha1.MeshConfig) *networkingv1alpha3.LocalityLoadBalancerSetting {
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

// Locality returns which endpoints of a service a proxy prefers. Proxies that
// prefer the same get equal values. As the order of preference shows only when
// endpoints fail, it counts only with outlier detection, or if the service asks
// for it.
func (p Policy) Locality(svc *model.Service, mesh *meshv1alpha1.MeshConfig, proxy *model.Proxy) Locality {
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
			return Locality{} // from nowhere all are equally far
		}
		return Locality{setting: setting, place: proxy.Locality}
	}
	l := Locality{setting: setting}
	if len(setting.GetFailover()) > 0 {
		l.place = proxy.Locality
	}
	wants := make([]string, 0, len(setting.GetFailoverPriority()))
	for _, label := range setting.GetFailoverPriority() {
		key, value, given := strings.Cut(label, "=")
		if !given {
			value = PlaceLabel(proxy, key)
		}
		wants = append(wants, value)
	}
	l.wants = strings.Join(wants, "\x00")
	return l
}

// DistributionLabels are the labels that a trafficDistribution looks at.
func DistributionLabels(d model.Distribution) []string { return distributions[d].GetFailoverPriority() }

// PlaceLabel returns the value of a label of a proxy, or of what such a label
// stands for.
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

// localityPart returns the part of a locality that a label names; empty for other
// labels.
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

// ApplyLocality orders and weighs the localities of a cluster as a proxy prefers
// them. The map says what stands behind each endpoint; only labels need it.
func ApplyLocality(cla *endpointv3.ClusterLoadAssignment, behind map[*endpointv3.LbEndpoint]*model.Endpoint, l Locality) {
	switch {
	case l.setting == nil || cla == nil:
	case len(l.setting.GetDistribute()) > 0:
		l.distribute(cla)
	default:
		if len(l.setting.GetFailoverPriority()) > 0 {
			l.byLabels(cla, behind)
		}
		if len(l.setting.GetFailoverPriority()) == 0 || len(l.setting.GetFailover()) > 0 {
			l.byDistance(cla)
		}
		compact(cla)
	}
}

// distribute returns the localities that the first matching entry names the
// weights that it names, and leaves out the others.
func (l Locality) distribute(cla *endpointv3.ClusterLoadAssignment) {
	from := parseLocality(l.place)
	i := slices.IndexFunc(l.setting.GetDistribute(), func(d *networkingv1alpha3.LocalityLoadBalancerSetting_Distribute) bool {
		return covers(d.GetFrom(), from)
	})
	if i < 0 {
		return
	}
	to := l.setting.GetDistribute()[i].GetTo()
	// "b/c" before "b/*" before "*": of several the most specific counts.
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
		for _, g := range groups { // at least 1: nothing else gets no requests at all
			share := math.Ceil(float64(weightOf(g)) * float64(to[target]) / total)
			g.LoadBalancingWeight = wrapperspb.UInt32(uint32(max(share, 1)))
		}
	}
	cla.Endpoints = slices.DeleteFunc(cla.GetEndpoints(), func(g *endpointv3.LocalityLbEndpoints) bool { return !chosen[g] })
}

func weightOf(g *endpointv3.LocalityLbEndpoints) uint32 {
	return max(g.GetLoadBalancingWeight().GetValue(), 1)
}

// wildness is how much a pattern of localities leaves open.
func wildness(pattern string) int {
	set := 0
	for part := range strings.SplitSeq(pattern, "/") {
		if part != "*" && part != "" {
			set++
		}
	}
	return -set
}

// covers reports whether a locality is one of those that a pattern names:
// "region/zone/subzone" with "*" or nothing for any.
func covers(pattern string, l *corev3.Locality) bool {
	want := parseLocality(pattern)
	match := func(want, is string) bool { return want == "*" || want == "" || want == is }
	return match(want.GetRegion(), l.GetRegion()) && match(want.GetZone(), l.GetZone()) && match(want.GetSubZone(), l.GetSubZone())
}

// byDistance puts the localities that are further away behind the nearer ones of
// equal priority: the same subzone, zone and region, the region that failover
// names, all others.
func (l Locality) byDistance(cla *endpointv3.ClusterLoadAssignment) {
	const distances = 5
	own := parseLocality(l.place)
	region := own.GetRegion()
	i := slices.IndexFunc(l.setting.GetFailover(), func(f *networkingv1alpha3.LocalityLoadBalancerSetting_Failover) bool {
		return f.GetFrom() == region
	})
	for _, g := range cla.GetEndpoints() {
		at := g.GetLocality()
		distance := uint32(3)
		switch {
		case at.GetRegion() != region:
			if i >= 0 && at.GetRegion() != l.setting.GetFailover()[i].GetTo() {
				distance = 4
			}
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

// byLabels assigns to each endpoint the number of the labels, counted from the last,
// of which it lacks one as its priority. A locality whose endpoints differ in
// that becomes several.
func (l Locality) byLabels(cla *endpointv3.ClusterLoadAssignment, behind map[*endpointv3.LbEndpoint]*model.Endpoint) {
	wants := strings.Split(l.wants, "\x00")
	labels := l.setting.GetFailoverPriority()
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

// compact numbers the priorities from 0 without gaps, as Envoy demands, and
// sorts by them.
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
