// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package cluster

import (
	"math"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/parts"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// Policy is what a DestinationRule says about one port and subset.
type Policy struct {
	Balancer *networkingv1alpha3.LoadBalancerSettings
	Pool     *networkingv1alpha3.ConnectionPoolSettings
	Outlier  *networkingv1alpha3.OutlierDetection
	TLS      *networkingv1alpha3.ClientTLSSettings
}

// PolicyOf lays the policy of the subset over that of the rule. In each of
// them the settings of a port replace the others as a whole.
func PolicyOf(rule *snapshot.DestinationRule, subset string, port uint32) Policy {
	var p Policy
	if rule != nil {
		p = p.overlay(rule.Policy, port).overlay(rule.Subset(subset).GetTrafficPolicy(), port)
	}
	return p
}

func (p Policy) overlay(over *networkingv1alpha3.TrafficPolicy, port uint32) Policy {
	if v := over.GetLoadBalancer(); v != nil {
		p.Balancer = v
	}
	if v := over.GetConnectionPool(); v != nil {
		p.Pool = v
	}
	if v := over.GetOutlierDetection(); v != nil {
		p.Outlier = v
	}
	if v := over.GetTls(); v != nil {
		p.TLS = v
	}
	for _, at := range over.GetPortLevelSettings() {
		if at.GetPort().GetNumber() == port {
			return Policy{Balancer: at.GetLoadBalancer(), Pool: at.GetConnectionPool(), Outlier: at.GetOutlierDetection(), TLS: at.GetTls()}
		}
	}
	return p
}

// ServesTLS reports whether the TLS mode of the policy can be served. Where
// it cannot there must be no cluster: plaintext in place of TLS is no answer.
func (p Policy) ServesTLS() bool {
	switch p.TLS.GetMode() {
	case networkingv1alpha3.ClientTLSSettings_SIMPLE, networkingv1alpha3.ClientTLSSettings_MUTUAL:
		return false
	case networkingv1alpha3.ClientTLSSettings_DISABLE, networkingv1alpha3.ClientTLSSettings_ISTIO_MUTUAL:
	}
	return true
}

// lbPolicy is the way of choosing an endpoint.
func (p Policy) lbPolicy() clusterv3.Cluster_LbPolicy {
	switch p.Balancer.GetSimple() {
	case networkingv1alpha3.LoadBalancerSettings_RANDOM:
		return clusterv3.Cluster_RANDOM
	case networkingv1alpha3.LoadBalancerSettings_ROUND_ROBIN:
		return clusterv3.Cluster_ROUND_ROBIN
	default:
		return clusterv3.Cluster_LEAST_REQUEST
	}
}

// CircuitBreakers are without a limit unless the policy sets one.
func (p Policy) CircuitBreakers() *clusterv3.CircuitBreakers {
	limit := func(n int32) *wrapperspb.UInt32Value {
		if n > 0 {
			return wrapperspb.UInt32(uint32(n))
		}
		return wrapperspb.UInt32(math.MaxUint32)
	}
	return &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{{
		MaxConnections:     limit(p.Pool.GetTcp().GetMaxConnections()),
		MaxPendingRequests: limit(p.Pool.GetHttp().GetHttp1MaxPendingRequests()),
		MaxRequests:        limit(p.Pool.GetHttp().GetHttp2MaxRequests()),
		MaxRetries:         limit(p.Pool.GetHttp().GetMaxRetries()),
		TrackRemaining:     true,
	}}}
}

// ApplyOutlier sets outlier detection and the share of healthy endpoints below
// which it is ignored; that share is 0 unless the policy sets one.
func (p Policy) ApplyOutlier(c *clusterv3.Cluster) {
	o := p.Outlier
	if o == nil {
		return
	}
	out := &clusterv3.OutlierDetection{
		Interval:             o.GetInterval(),
		BaseEjectionTime:     o.GetBaseEjectionTime(),
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
	c.CommonLbConfig = &clusterv3.Cluster_CommonLbConfig{
		HealthyPanicThreshold: &typev3.Percent{Value: float64(max(o.GetMinHealthPercent(), 0))},
	}
}

// threshold gives a number of failures and how surely it ejects: 0 never does.
func threshold(n *wrapperspb.UInt32Value) (failures, enforcing *wrapperspb.UInt32Value) {
	switch {
	case n == nil:
		return nil, nil
	case n.GetValue() == 0:
		return nil, wrapperspb.UInt32(0)
	}
	return wrapperspb.UInt32(n.GetValue()), wrapperspb.UInt32(100)
}

// applyConnections sets what holds for the connections of a cluster.
func (p Policy) applyConnections(c *clusterv3.Cluster, mesh *meshv1alpha1.MeshConfig) {
	if d, ok := parts.Positive(mesh.GetConnectTimeout()); ok {
		c.ConnectTimeout = d
	}
	if d, ok := parts.Positive(p.Pool.GetTcp().GetConnectTimeout()); ok {
		c.ConnectTimeout = d
	}
	keepalive := mesh.GetTcpKeepalive()
	if k := p.Pool.GetTcp().GetTcpKeepalive(); k != nil {
		keepalive = k
	}
	if keepalive == nil {
		return
	}
	k := &corev3.TcpKeepalive{}
	if n := keepalive.GetProbes(); n > 0 {
		k.KeepaliveProbes = wrapperspb.UInt32(n)
	}
	if n := keepalive.GetTime().GetSeconds(); n > 0 {
		k.KeepaliveTime = wrapperspb.UInt32(uint32(n))
	}
	if n := keepalive.GetInterval().GetSeconds(); n > 0 {
		k.KeepaliveInterval = wrapperspb.UInt32(uint32(n))
	}
	c.UpstreamConnectionOptions = &clusterv3.UpstreamConnectionOptions{TcpKeepalive: k}
}

// httpOptions says which HTTP a cluster speaks; nil for ports that are not
// declared as HTTP.
func (p Policy) httpOptions(protocol model.Protocol, mesh *meshv1alpha1.MeshConfig) *httpv3.HttpProtocolOptions {
	if !protocol.IsHTTP() {
		return nil
	}
	pool := p.Pool.GetHttp()
	opts := &httpv3.HttpProtocolOptions{}
	common := &corev3.HttpProtocolOptions{
		IdleTimeout:           pool.GetIdleTimeout(),
		MaxConnectionDuration: p.Pool.GetTcp().GetMaxConnectionDuration(),
	}
	if n := pool.GetMaxRequestsPerConnection(); n > 0 {
		common.MaxRequestsPerConnection = wrapperspb.UInt32(uint32(n))
	}
	if common.IdleTimeout != nil || common.MaxConnectionDuration != nil || common.MaxRequestsPerConnection != nil {
		opts.CommonHttpProtocolOptions = common
	}
	h2 := &corev3.Http2ProtocolOptions{}
	if n := pool.GetMaxConcurrentStreams(); n > 0 {
		h2.MaxConcurrentStreams = wrapperspb.UInt32(uint32(n))
	}
	explicit := &httpv3.HttpProtocolOptions_ExplicitHttpConfig{}
	switch {
	case pool.GetUseClientProtocol():
		opts.UpstreamProtocolOptions = &httpv3.HttpProtocolOptions_UseDownstreamProtocolConfig{
			UseDownstreamProtocolConfig: &httpv3.HttpProtocolOptions_UseDownstreamHttpConfig{
				HttpProtocolOptions: &corev3.Http1ProtocolOptions{}, Http2ProtocolOptions: h2,
			},
		}
		return opts
	case protocol.IsHTTP2() || p.upgradesToHTTP2(mesh):
		explicit.ProtocolConfig = &httpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{Http2ProtocolOptions: h2}
	default:
		explicit.ProtocolConfig = &httpv3.HttpProtocolOptions_ExplicitHttpConfig_HttpProtocolOptions{HttpProtocolOptions: &corev3.Http1ProtocolOptions{}}
	}
	opts.UpstreamProtocolOptions = &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{ExplicitHttpConfig: explicit}
	return opts
}

func (p Policy) upgradesToHTTP2(mesh *meshv1alpha1.MeshConfig) bool {
	switch p.Pool.GetHttp().GetH2UpgradePolicy() {
	case networkingv1alpha3.ConnectionPoolSettings_HTTPSettings_UPGRADE:
		return true
	case networkingv1alpha3.ConnectionPoolSettings_HTTPSettings_DO_NOT_UPGRADE:
		return false
	case networkingv1alpha3.ConnectionPoolSettings_HTTPSettings_DEFAULT:
	}
	return mesh.GetH2UpgradePolicy() == meshv1alpha1.MeshConfig_UPGRADE
}
