// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package cluster

import (
	"math"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// What an Envoy keeps for a receiver of logs or spans that does not answer. It has no time limit for
// OTLP over gRPC: without these limits each span that it sends takes 5 KiB of its memory until the
// receiver closes the connection.
const (
	maxReports    = 250     // requests to the receiver, each with up to 5 spans or 16 KiB of logs
	maxLogBacklog = 1 << 20 // bytes of the stream of an access log service, for each worker
)

// boundReceiver limits what an Envoy keeps for a receiver of logs or spans, where the policy sets no
// limit. The options of HTTP may be nil.
func boundReceiver(c *clusterv3.Cluster, http *httpv3.HttpProtocolOptions) {
	for _, t := range c.GetCircuitBreakers().GetThresholds() {
		for _, limit := range []*wrapperspb.UInt32Value{t.GetMaxConnections(), t.GetMaxPendingRequests(), t.GetMaxRequests()} {
			if limit.GetValue() == math.MaxUint32 {
				limit.Value = maxReports
			}
		}
	}
	for _, h2 := range []*corev3.Http2ProtocolOptions{
		http.GetExplicitHttpConfig().GetHttp2ProtocolOptions(), http.GetUseDownstreamProtocolConfig().GetHttp2ProtocolOptions(),
	} {
		if h2 != nil {
			h2.InitialStreamWindowSize = wrapperspb.UInt32(maxLogBacklog)
		}
	}
}
