// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoyconf

import (
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tlsinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Target is a cluster and its share of the connections.
type Target struct {
	Cluster string
	Weight  uint32
}

// Stream configures how connections are forwarded without inspection.
type Stream struct {
	// StatPrefix is the prefix of the counter names.
	StatPrefix string
	// Targets are the destinations of connections, which share them by weight. It is not empty.
	Targets []Target
	// Idle is the idle timeout; nil means Envoy's default, and 0 means none.
	Idle *durationpb.Duration
	// Longest is the maximum duration of connections; nil means no limit.
	Longest *durationpb.Duration
	// BySource sends all connections of one source address to the same endpoint.
	BySource bool
	// Tunnel makes the endpoint open a tunnel first; may be nil.
	Tunnel *tcpproxyv3.TcpProxy_TunnelingConfig
	// AccessLog are the logs of the connections.
	AccessLog []*accesslogv3.AccessLog
}

// BlackHole returns a Stream that closes connections, with its logs.
func BlackHole(logs []*accesslogv3.AccessLog) Stream {
	return Stream{StatPrefix: BlackHoleCluster, Targets: []Target{{Cluster: BlackHoleCluster}}, AccessLog: logs}
}

// TCPProxy returns the network filter that forwards connections.
func TCPProxy(s Stream) *listenerv3.Filter {
	out := &tcpproxyv3.TcpProxy{StatPrefix: s.StatPrefix, IdleTimeout: Bounded(s.Idle), TunnelingConfig: s.Tunnel, AccessLog: s.AccessLog}
	if d, ok := Positive(s.Longest); ok {
		out.MaxDownstreamConnectionDuration = d
	}
	if len(s.Targets) == 1 {
		out.ClusterSpecifier = &tcpproxyv3.TcpProxy_Cluster{Cluster: s.Targets[0].Cluster}
	} else {
		split := &tcpproxyv3.TcpProxy_WeightedCluster{}
		for _, t := range s.Targets {
			split.Clusters = append(split.Clusters, &tcpproxyv3.TcpProxy_WeightedCluster_ClusterWeight{Name: t.Cluster, Weight: t.Weight})
		}
		out.ClusterSpecifier = &tcpproxyv3.TcpProxy_WeightedClusters{WeightedClusters: split}
	}
	if s.BySource {
		out.HashPolicy = []*typev3.HashPolicy{{PolicySpecifier: &typev3.HashPolicy_SourceIp_{SourceIp: &typev3.HashPolicy_SourceIp{}}}}
	}
	return networkFilter("envoy.filters.network.tcp_proxy", out)
}

// TLSInspector returns the listener filter that detects TLS and reads its SNI and ALPN.
func TLSInspector() *listenerv3.ListenerFilter {
	return ListenerFilter("envoy.filters.listener.tls_inspector", &tlsinspectorv3.TlsInspector{})
}

// ListenerFilter returns a listener filter with its configuration.
func ListenerFilter(name string, config proto.Message) *listenerv3.ListenerFilter {
	return &listenerv3.ListenerFilter{Name: name, ConfigType: &listenerv3.ListenerFilter_TypedConfig{TypedConfig: Pack(config)}}
}
