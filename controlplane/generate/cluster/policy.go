// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package cluster

import (
	"math"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// Policy contains the settings of a DestinationRule for one port and subset. The zero value sets
// nothing.
type Policy struct {
	Balancer *networkingv1alpha3.LoadBalancerSettings
	Pool     *networkingv1alpha3.ConnectionPoolSettings
	Outlier  *networkingv1alpha3.OutlierDetection
	TLS      *networkingv1alpha3.ClientTLSSettings
	// Tunnel, Proxy and Retries cannot be set for a single port.
	Tunnel  *networkingv1alpha3.TrafficPolicy_TunnelSettings
	Proxy   *networkingv1alpha3.TrafficPolicy_ProxyProtocol
	Retries *networkingv1alpha3.TrafficPolicy_RetryBudget
	// selected is true if the rule applies to selected workloads only.
	selected bool
	// router is true for the clusters of gateways.
	router bool
}

// PolicyOf merges the policy of the subset into that of the rule. In each of them, the settings of
// a port replace the general settings as a whole.
func PolicyOf(rule *snapshot.DestinationRule, subset string, port uint32) Policy {
	var p Policy
	if rule != nil {
		p.selected = rule.Selected()
		p = p.overlay(rule.Policy, port).overlay(rule.Subset(subset).GetTrafficPolicy(), port)
	}
	return p
}

// InboundPolicy returns the policy for connections to a port of the application: the pool of its
// Sidecar, otherwise that of the DestinationRule of its own service. Both may be nil. Other
// settings of the rule do not apply to inbound connections.
func InboundPolicy(pool *networkingv1alpha3.ConnectionPoolSettings, rule *snapshot.DestinationRule, port uint32) Policy {
	if pool == nil {
		pool = PolicyOf(rule, "", port).Pool
	}
	return Policy{Pool: pool}
}

func (p Policy) overlay(over *networkingv1alpha3.TrafficPolicy, port uint32) Policy {
	set(&p.Balancer, over.GetLoadBalancer())
	set(&p.Pool, over.GetConnectionPool())
	set(&p.Outlier, over.GetOutlierDetection())
	set(&p.TLS, over.GetTls())
	set(&p.Tunnel, over.GetTunnel())
	set(&p.Proxy, over.GetProxyProtocol())
	set(&p.Retries, over.GetRetryBudget())
	for _, at := range over.GetPortLevelSettings() {
		if at.GetPort().GetNumber() == port {
			p.Balancer, p.Pool, p.Outlier, p.TLS = at.GetLoadBalancer(), at.GetConnectionPool(), at.GetOutlierDetection(), at.GetTls()
			break
		}
	}
	return p
}

// set sets *to to a value unless the value is nil.
func set[T any](to **T, value *T) {
	if value != nil {
		*to = value
	}
}

// CircuitBreakers returns the circuit breakers. Limits that the policy does not set are unlimited.
func (p Policy) CircuitBreakers() *clusterv3.CircuitBreakers {
	limit := func(n int32) *wrapperspb.UInt32Value {
		if n > 0 {
			return wrapperspb.UInt32(uint32(n))
		}
		return wrapperspb.UInt32(math.MaxUint32)
	}
	t := &clusterv3.CircuitBreakers_Thresholds{
		MaxConnections:     limit(p.Pool.GetTcp().GetMaxConnections()),
		MaxPendingRequests: limit(p.Pool.GetHttp().GetHttp1MaxPendingRequests()),
		MaxRequests:        limit(p.Pool.GetHttp().GetHttp2MaxRequests()),
		MaxRetries:         limit(p.Pool.GetHttp().GetMaxRetries()),
		TrackRemaining:     true,
	}
	if b := p.Retries; b != nil {
		t.RetryBudget = &clusterv3.CircuitBreakers_Thresholds_RetryBudget{BudgetInterval: b.GetBudgetInterval()}
		if v := b.GetPercent(); v != nil {
			t.RetryBudget.BudgetPercent = &typev3.Percent{Value: v.GetValue()}
		}
		if n := b.GetMinRetryConcurrency(); n > 0 {
			t.RetryBudget.MinRetryConcurrency = wrapperspb.UInt32(n)
		}
	}
	return &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{t}}
}

// ApplyOutlier sets outlier detection and the percentage of healthy endpoints below which it is
// ignored, which is 0 unless the policy sets it.
func (p Policy) ApplyOutlier(c *clusterv3.Cluster) {
	o := p.Outlier
	if o == nil {
		return
	}
	out := &clusterv3.OutlierDetection{
		Interval:             envoyconf.Bounded(o.GetInterval()),
		BaseEjectionTime:     envoyconf.Bounded(o.GetBaseEjectionTime()),
		EnforcingSuccessRate: wrapperspb.UInt32(0),
	}
	out.Consecutive_5Xx, out.EnforcingConsecutive_5Xx = threshold(o.GetConsecutive_5XxErrors())
	out.ConsecutiveGatewayFailure, out.EnforcingConsecutiveGatewayFailure = threshold(o.GetConsecutiveGatewayErrors())
	if o.GetMaxEjectionPercent() > 0 {
		out.MaxEjectionPercent = wrapperspb.UInt32(uint32(o.GetMaxEjectionPercent()))
	}
	if o.GetSplitExternalLocalOriginErrors() {
		out.SplitExternalLocalOriginErrors = true
		out.ConsecutiveLocalOriginFailure, out.EnforcingConsecutiveLocalOriginFailure = threshold(o.GetConsecutiveLocalOriginFailures())
	}
	c.OutlierDetection = out
	if c.GetLbPolicy() == clusterv3.Cluster_CLUSTER_PROVIDED {
		return // the panic threshold has no meaning for a single endpoint
	}
	if c.CommonLbConfig == nil {
		c.CommonLbConfig = &clusterv3.Cluster_CommonLbConfig{}
	}
	c.CommonLbConfig.HealthyPanicThreshold = &typev3.Percent{Value: float64(max(o.GetMinHealthPercent(), 0))}
}

// threshold returns the number of failures that eject an endpoint and the enforcing percentage. A
// number of 0 disables the ejection.
func threshold(n *wrapperspb.UInt32Value) (failures, enforcing *wrapperspb.UInt32Value) {
	switch {
	case n == nil:
		return nil, nil
	case n.GetValue() == 0:
		return nil, wrapperspb.UInt32(0)
	}
	return wrapperspb.UInt32(n.GetValue()), wrapperspb.UInt32(100)
}
