// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package cluster

import (
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/config/common/matcher/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// applyConnections sets the connection settings of a cluster.
func (p Policy) applyConnections(c *clusterv3.Cluster, mesh *meshv1alpha1.MeshConfig) {
	if d, ok := envoyconf.Positive(mesh.GetConnectTimeout()); ok {
		c.ConnectTimeout = d
	}
	if d, ok := envoyconf.Positive(p.Pool.GetTcp().GetConnectTimeout()); ok {
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
		k.KeepaliveProbes = wrapperspb.UInt32(min(n, snapshot.MaxKeepaliveProbes))
	}
	if n := keepalive.GetTime().GetSeconds(); n > 0 {
		k.KeepaliveTime = wrapperspb.UInt32(uint32(min(n, snapshot.MaxKeepaliveSeconds)))
	}
	if n := keepalive.GetInterval().GetSeconds(); n > 0 {
		k.KeepaliveInterval = wrapperspb.UInt32(uint32(min(n, snapshot.MaxKeepaliveSeconds)))
	}
	c.UpstreamConnectionOptions = &clusterv3.UpstreamConnectionOptions{TcpKeepalive: k}
}

// httpOptions returns the HTTP version of a cluster. For ports whose protocol is detected, it is
// that of the client. The result is nil for ports that are declared as something other than HTTP.
func (p Policy) httpOptions(protocol model.Protocol, mesh *meshv1alpha1.MeshConfig) *httpv3.HttpProtocolOptions {
	if protocol.IsTCP() {
		return nil
	}
	opts := &httpv3.HttpProtocolOptions{CommonHttpProtocolOptions: p.commonHTTP(), OutlierDetection: p.errorCodes()}
	h1, h2 := &corev3.Http1ProtocolOptions{}, p.http2()
	if p.asClient(protocol) {
		opts.UpstreamProtocolOptions = &httpv3.HttpProtocolOptions_UseDownstreamProtocolConfig{
			UseDownstreamProtocolConfig: &httpv3.HttpProtocolOptions_UseDownstreamHttpConfig{HttpProtocolOptions: h1, Http2ProtocolOptions: h2},
		}
		return opts
	}
	explicit := &httpv3.HttpProtocolOptions_ExplicitHttpConfig{
		ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_HttpProtocolOptions{HttpProtocolOptions: h1},
	}
	if p.speaksHTTP2(protocol, mesh) {
		explicit.ProtocolConfig = &httpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{Http2ProtocolOptions: h2}
	}
	opts.UpstreamProtocolOptions = &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{ExplicitHttpConfig: explicit}
	return opts
}

// commonHTTP returns the limits of HTTP connections, or nil if there are none.
func (p Policy) commonHTTP() *corev3.HttpProtocolOptions {
	pool := p.Pool.GetHttp()
	common := &corev3.HttpProtocolOptions{
		IdleTimeout:           envoyconf.Bounded(pool.GetIdleTimeout()),
		MaxConnectionDuration: envoyconf.Bounded(p.Pool.GetTcp().GetMaxConnectionDuration()),
	}
	if n := pool.GetMaxRequestsPerConnection(); n > 0 {
		common.MaxRequestsPerConnection = wrapperspb.UInt32(uint32(n))
	}
	if common.IdleTimeout == nil && common.MaxConnectionDuration == nil && common.MaxRequestsPerConnection == nil {
		return nil
	}
	return common
}

func (p Policy) http2() *corev3.Http2ProtocolOptions {
	pool := p.Pool.GetHttp()
	h2 := &corev3.Http2ProtocolOptions{}
	if n := pool.GetMaxConcurrentStreams(); n > 0 {
		h2.MaxConcurrentStreams = wrapperspb.UInt32(uint32(n))
	}
	interval, ok := envoyconf.Positive(pool.GetHttp2KeepAlive().GetInterval())
	timeout, both := envoyconf.Positive(pool.GetHttp2KeepAlive().GetTimeout())
	if ok && both {
		h2.ConnectionKeepalive = &corev3.KeepaliveSettings{Interval: interval, Timeout: timeout}
	}
	return h2
}

// errorCodes returns the response codes that outlier detection counts as failures, or nil for all
// 5xx codes.
func (p Policy) errorCodes() *httpv3.HttpProtocolOptions_OutlierDetection {
	codes := p.Outlier.GetOutlierDetectionHttpErrorCodes()
	if len(codes) == 0 {
		return nil
	}
	matches := make([]*matcherv3.MatchPredicate, 0, len(codes))
	for _, code := range codes {
		matches = append(matches, &matcherv3.MatchPredicate{Rule: &matcherv3.MatchPredicate_HttpResponseHeadersMatch{
			HttpResponseHeadersMatch: &matcherv3.HttpHeadersMatch{Headers: []*routev3.HeaderMatcher{{
				Name:                 ":status",
				HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: envoyconf.Exactly(envoyconf.Number(code))},
			}}},
		}})
	}
	if len(matches) == 1 {
		return &httpv3.HttpProtocolOptions_OutlierDetection{ErrorMatcher: matches[0]}
	}
	return &httpv3.HttpProtocolOptions_OutlierDetection{ErrorMatcher: &matcherv3.MatchPredicate{
		Rule: &matcherv3.MatchPredicate_OrMatch{OrMatch: &matcherv3.MatchPredicate_MatchSet{Rules: matches}},
	}}
}

// asClient reports whether requests are forwarded with the HTTP version of the client. Gateways
// forward them to ports of unknown protocol as HTTP/1.1: they offer HTTP/2 to all clients, which says
// nothing about the servers.
func (p Policy) asClient(protocol model.Protocol) bool {
	pool := p.Pool.GetHttp()
	// A setting for the whole mesh does not apply to ports of unknown protocol.
	upgrade := pool.GetH2UpgradePolicy() == networkingv1alpha3.ConnectionPoolSettings_HTTPSettings_UPGRADE
	return pool.GetUseClientProtocol() || protocol.Sniffed() && !upgrade && !p.router
}

// speaksHTTP2 reports whether requests are always forwarded as HTTP/2.
func (p Policy) speaksHTTP2(protocol model.Protocol, mesh *meshv1alpha1.MeshConfig) bool {
	if protocol.IsTCP() || p.asClient(protocol) {
		return false
	}
	if protocol.IsHTTP2() {
		return true
	}
	switch p.Pool.GetHttp().GetH2UpgradePolicy() {
	case networkingv1alpha3.ConnectionPoolSettings_HTTPSettings_UPGRADE:
		return true
	case networkingv1alpha3.ConnectionPoolSettings_HTTPSettings_DO_NOT_UPGRADE:
		return false
	case networkingv1alpha3.ConnectionPoolSettings_HTTPSettings_DEFAULT:
	}
	return !protocol.Sniffed() && mesh.GetH2UpgradePolicy() == meshv1alpha1.MeshConfig_UPGRADE
}
