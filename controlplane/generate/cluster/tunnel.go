// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package cluster

import (
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	proxyprotocolv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/proxy_protocol/v3"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
)

// Tunneling returns the configuration that makes endpoints tunnel a non-HTTP stream to another
// host before any of its data is sent, or nil without a tunnel. It belongs in the filter that
// forwards the stream to the cluster.
func (p Policy) Tunneling() *tcpproxyv3.TcpProxy_TunnelingConfig {
	t := p.Tunnel
	if t == nil {
		return nil
	}
	return &tcpproxyv3.TcpProxy_TunnelingConfig{
		Hostname: envoyconf.HostPort(t.GetTargetHost(), t.GetTargetPort()),
		UsePost:  t.GetProtocol() == "POST",
	}
}

// applyProxyProtocol sends the address of the client to the endpoints before any other data.
func (p Policy) applyProxyProtocol(c *clusterv3.Cluster) {
	if p.Proxy == nil {
		return
	}
	for _, m := range c.GetTransportSocketMatches() {
		m.TransportSocket = p.withAddress(m.GetTransportSocket())
	}
	if len(c.GetTransportSocketMatches()) > 0 {
		return
	}
	inner := c.GetTransportSocket()
	if inner == nil {
		inner = plaintext()
	}
	c.TransportSocket = p.withAddress(inner)
}

func (p Policy) withAddress(inner *corev3.TransportSocket) *corev3.TransportSocket {
	version := corev3.ProxyProtocolConfig_V1
	if p.Proxy.GetVersion() == networkingv1alpha3.TrafficPolicy_ProxyProtocol_V2 {
		version = corev3.ProxyProtocolConfig_V2
	}
	return &corev3.TransportSocket{
		Name: "envoy.transport_sockets.upstream_proxy_protocol",
		ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: envoyconf.Pack(&proxyprotocolv3.ProxyProtocolUpstreamTransport{
			Config: &corev3.ProxyProtocolConfig{Version: version}, TransportSocket: inner,
		})},
	}
}
