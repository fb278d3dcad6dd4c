// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package cluster

import (
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// The clusters that lead to the original destination address.
const (
	PassthroughName     = "PassthroughCluster"
	InboundPassthrough4 = "InboundPassthroughClusterIpv4"
	InboundPassthrough6 = "InboundPassthroughClusterIpv6"
)

// ForwardName is the name of the cluster for hosts that are not in the mesh.
const ForwardName = "ForwardProxyCluster"

// The source addresses of connections from a proxy to its own application. The rules that redirect
// inbound connections ignore these addresses.
const (
	inboundSource4 = "127.0.0.6"
	inboundSource6 = "::6"
)

// passthroughIdle is the idle time after which connections to an original destination are closed.
// The number of such destinations is unbounded.
const passthroughIdle = 5 * time.Minute

// Passthrough returns the cluster that forwards outbound connections to their original destination
// with the HTTP version of the client.
func Passthrough(mesh *meshv1alpha1.MeshConfig, own ...Policy) *clusterv3.Cluster {
	return toOriginal(PassthroughName, model.ProtocolUnsupported, mesh, first(own))
}

// Forward returns the cluster that resolves the host of each request, for proxies that do not know
// the original destination of a connection.
func Forward(mesh *meshv1alpha1.MeshConfig, v Viewer) *clusterv3.Cluster {
	c := toOriginal(ForwardName, model.ProtocolUnsupported, mesh, Policy{})
	c.ClusterDiscoveryType = ofAnyName(mesh, v)
	return c
}

// InboundPassthrough returns the cluster that forwards inbound connections to unknown ports to
// their original destination. At most one policy configures the connections (inboundConnectionPool
// of a Sidecar).
func InboundPassthrough(v6 bool, mesh *meshv1alpha1.MeshConfig, own ...Policy) *clusterv3.Cluster {
	name := InboundPassthrough4
	if v6 {
		name = InboundPassthrough6
	}
	c := toOriginal(name, model.ProtocolUnsupported, mesh, first(own))
	c.UpstreamBindConfig = fromInbound(v6)
	return c
}

// InboundOriginal returns the cluster that leads to a port of the application at the original
// destination address. It supports both IP families if both are set. The policy is as for
// [InboundPassthrough].
func InboundOriginal(name string, protocol model.Protocol, v4, v6 bool, mesh *meshv1alpha1.MeshConfig, own ...Policy) *clusterv3.Cluster {
	c := toOriginal(name, protocol, mesh, first(own))
	c.UpstreamBindConfig = fromInbound(v6 && !v4)
	if v4 && v6 {
		c.UpstreamBindConfig.ExtraSourceAddresses = []*corev3.ExtraSourceAddress{{Address: envoyconf.SocketAddress(inboundSource6, 0).GetSocketAddress()}}
	}
	return c
}

// first returns the given policy, or the zero policy, which sets no limits.
func first(own []Policy) Policy {
	if len(own) == 0 {
		return Policy{}
	}
	return own[0]
}

// toOriginal returns a cluster whose endpoint is the original destination address.
func toOriginal(name string, protocol model.Protocol, mesh *meshv1alpha1.MeshConfig, p Policy) *clusterv3.Cluster {
	c := &clusterv3.Cluster{
		Name:                 name,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_ORIGINAL_DST},
		ConnectTimeout:       durationpb.New(10 * time.Second),
		LbPolicy:             clusterv3.Cluster_CLUSTER_PROVIDED,
		CircuitBreakers:      p.CircuitBreakers(),
	}
	// A mesh setting that enables HTTP/2 for all services does not apply to the application
	// itself.
	http := p.httpOptions(protocol, &meshv1alpha1.MeshConfig{})
	if protocol.Sniffed() && http.GetCommonHttpProtocolOptions().GetIdleTimeout() == nil {
		if http.GetCommonHttpProtocolOptions() == nil {
			http.CommonHttpProtocolOptions = &corev3.HttpProtocolOptions{}
		}
		http.CommonHttpProtocolOptions.IdleTimeout = durationpb.New(passthroughIdle)
	}
	setHTTP(c, http)
	p.applyConnections(c, mesh)
	return c
}

// setHTTP sets the HTTP options of a cluster unless they are nil.
func setHTTP(c *clusterv3.Cluster, options *httpv3.HttpProtocolOptions) {
	if options != nil {
		c.TypedExtensionProtocolOptions = map[string]*anypb.Any{HTTPOptionsKey: envoyconf.Pack(options)}
	}
}

func fromInbound(v6 bool) *corev3.BindConfig {
	source := inboundSource4
	if v6 {
		source = inboundSource6
	}
	return &corev3.BindConfig{SourceAddress: envoyconf.SocketAddress(source, 0).GetSocketAddress()}
}
