// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package cluster

import (
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// minRing is the minimum hash ring size if the rule sets none.
const minRing = 1024

// applyBalancer sets the load balancing policy.
func (p Policy) applyBalancer(c *clusterv3.Cluster, src Source) {
	c.LbPolicy = clusterv3.Cluster_LEAST_REQUEST
	if hash := p.Balancer.GetConsistentHash(); hash != nil {
		consistent(c, hash)
	}
	switch p.Balancer.GetSimple() {
	case networkingv1alpha3.LoadBalancerSettings_RANDOM:
		c.LbPolicy = clusterv3.Cluster_RANDOM
	case networkingv1alpha3.LoadBalancerSettings_ROUND_ROBIN:
		c.LbPolicy = clusterv3.Cluster_ROUND_ROBIN
	case networkingv1alpha3.LoadBalancerSettings_UNSPECIFIED, networkingv1alpha3.LoadBalancerSettings_LEAST_REQUEST,
		//lint:ignore SA1019 users still write it
		networkingv1alpha3.LoadBalancerSettings_LEAST_CONN,
		networkingv1alpha3.LoadBalancerSettings_PASSTHROUGH: // see Source.Resolution
	}
	if src.Hashed && p.Balancer.GetConsistentHash() == nil {
		c.LbPolicy = clusterv3.Cluster_MAGLEV // any other would look for keys where they are not
	}
	if start := warmup(p.Balancer); start != nil {
		switch c.GetLbPolicy() {
		case clusterv3.Cluster_ROUND_ROBIN:
			c.LbConfig = &clusterv3.Cluster_RoundRobinLbConfig_{RoundRobinLbConfig: &clusterv3.Cluster_RoundRobinLbConfig{SlowStartConfig: start}}
		case clusterv3.Cluster_LEAST_REQUEST:
			c.LbConfig = &clusterv3.Cluster_LeastRequestLbConfig_{LeastRequestLbConfig: &clusterv3.Cluster_LeastRequestLbConfig{SlowStartConfig: start}}
		default: // the other policies do not support warm-up
		}
	}
	if p.localities(src.Service, src.Config) != nil {
		c.CommonLbConfig = &clusterv3.Cluster_CommonLbConfig{
			LocalityConfigSpecifier: &clusterv3.Cluster_CommonLbConfig_LocalityWeightedLbConfig_{
				LocalityWeightedLbConfig: &clusterv3.Cluster_CommonLbConfig_LocalityWeightedLbConfig{},
			},
		}
	} else if z := p.Zones(src.Service, src.Config); z != nil {
		c.CommonLbConfig = &clusterv3.Cluster_CommonLbConfig{
			LocalityConfigSpecifier: &clusterv3.Cluster_CommonLbConfig_ZoneAwareLbConfig_{ZoneAwareLbConfig: zoneAware(z)},
		}
	}
}

// admitDraining makes the sessions of a service continue at endpoints that are terminating.
func admitDraining(c *clusterv3.Cluster, src Source) {
	if !src.Service.Persistent() || c.GetLbPolicy() == clusterv3.Cluster_CLUSTER_PROVIDED {
		return
	}
	if c.CommonLbConfig == nil {
		c.CommonLbConfig = &clusterv3.Cluster_CommonLbConfig{}
	}
	c.CommonLbConfig.OverrideHostStatus = &corev3.HealthStatusSet{Statuses: []corev3.HealthStatus{
		corev3.HealthStatus_HEALTHY, corev3.HealthStatus_DRAINING, corev3.HealthStatus_UNKNOWN, corev3.HealthStatus_DEGRADED,
	}}
}

// zoneAware returns the configuration by which Envoy chooses between the zones of its region.
func zoneAware(z *networkingv1alpha3.ZoneAwareLoadBalancerSetting) *clusterv3.Cluster_CommonLbConfig_ZoneAwareLbConfig {
	out := &clusterv3.Cluster_CommonLbConfig_ZoneAwareLbConfig{}
	if n := z.GetMinClusterSize(); n != nil {
		out.MinClusterSize = wrapperspb.UInt64(uint64(n.GetValue()))
	}
	if !ZonesEnabled(z) {
		out.RoutingEnabled = &typev3.Percent{} // Envoy's default is 100
	}
	return out
}

// consistent sets the consistent hash policy. The routes define what is hashed.
func consistent(c *clusterv3.Cluster, hash *networkingv1alpha3.LoadBalancerSettings_ConsistentHashLB) {
	if m := hash.GetMaglev(); m != nil {
		c.LbPolicy = clusterv3.Cluster_MAGLEV
		if n := m.GetTableSize(); n > 0 {
			c.LbConfig = &clusterv3.Cluster_MaglevLbConfig_{MaglevLbConfig: &clusterv3.Cluster_MaglevLbConfig{TableSize: wrapperspb.UInt64(n)}}
		}
		return
	}
	//lint:ignore SA1019 users still write it
	size := hash.GetMinimumRingSize()
	if n := hash.GetRingHash().GetMinimumRingSize(); n > 0 {
		size = n
	}
	if size == 0 {
		size = minRing
	}
	c.LbPolicy = clusterv3.Cluster_RING_HASH
	c.LbConfig = &clusterv3.Cluster_RingHashLbConfig_{RingHashLbConfig: &clusterv3.Cluster_RingHashLbConfig{
		MinimumRingSize: wrapperspb.UInt64(min(size, snapshot.MaxRing)),
	}}
}

// warmup returns the slow start configuration for new endpoints, or nil if they get their full
// share at once.
func warmup(lb *networkingv1alpha3.LoadBalancerSettings) *clusterv3.Cluster_SlowStartConfig {
	w := lb.GetWarmup()
	if w == nil {
		w = &networkingv1alpha3.WarmupConfiguration{Duration: lb.GetWarmupDurationSecs()}
	}
	d, ok := envoyconf.Positive(w.GetDuration())
	if !ok {
		return nil
	}
	out := &clusterv3.Cluster_SlowStartConfig{SlowStartWindow: d}
	if v := w.GetMinimumPercent(); v != nil {
		out.MinWeightPercent = &typev3.Percent{Value: v.GetValue()}
	}
	if v := w.GetAggression(); v != nil {
		out.Aggression = &corev3.RuntimeDouble{DefaultValue: v.GetValue(), RuntimeKey: "upstream.warmup_aggression"}
	}
	return out
}
