// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package gateway

import (
	"fmt"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	quicv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/quic/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
)

// servesHTTP3 reports whether a server also has HTTP/3. Envoy does not verify client certificates
// over QUIC, so that it has not where they are required or accepted.
func (in *Source) servesHTTP3(s *server) bool {
	return in.HTTP3 && s.route != "" && s.terminates() && s.spec.GetTls().GetMode() == networkingv1alpha3.ServerTLSSettings_SIMPLE &&
		in.Topology.GetProxyProtocol() == nil
}

// addHTTP3 adds the chain of HTTP/3 beside that of a server for TCP.
func (b *chains) addHTTP3(s *server, beside *listenerv3.FilterChain) {
	if _, unix := envoyconf.UnixPath(b.bind); unix {
		return
	}
	socket, err := envoyconf.ServerTLS(b.Mesh.Config, b.Mesh.Compliance, s.spec.GetTls(), []string{"h3"})
	if err != nil {
		return // reported for TCP
	}
	context := &tlsv3.DownstreamTlsContext{}
	if err := socket.GetTypedConfig().UnmarshalTo(context); err != nil {
		b.problems = append(b.problems, s.problem("HTTP/3: %v", err))
		return
	}
	context.CommonTlsContext.TlsParams.TlsMaximumProtocolVersion = tlsv3.TlsParameters_TLSv1_3 // the only version of QUIC
	hcm, _ := b.manager([]*server{s})
	hcm.CodecType, hcm.Http3ProtocolOptions = hcmv3.HttpConnectionManager_HTTP3, &corev3.Http3ProtocolOptions{}
	b.quic = append(b.quic, &listenerv3.FilterChain{
		Name: beside.GetName(), FilterChainMatch: beside.GetFilterChainMatch(), Filters: []*listenerv3.Filter{envoyconf.HTTPFilter(hcm)},
		TransportSocket: &corev3.TransportSocket{
			Name:       "envoy.transport_sockets.quic",
			ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: envoyconf.Pack(&quicv3.QuicDownstreamTransport{DownstreamTlsContext: context})},
		},
	})
}

// udp returns the listener of HTTP/3, at the UDP port of the same number.
func (b *chains) udp() *listenerv3.Listener {
	address := envoyconf.SocketAddress(b.bind, b.port)
	address.GetSocketAddress().Protocol = corev3.SocketAddress_UDP
	return &listenerv3.Listener{
		Name: "udp_" + b.name(), Address: address, TrafficDirection: corev3.TrafficDirection_OUTBOUND, FilterChains: b.quic,
		AccessLog:         b.Observed.ListenerLog,
		UdpListenerConfig: &listenerv3.UdpListenerConfig{QuicOptions: &listenerv3.QuicProtocolOptions{}, DownstreamSocketConfig: &corev3.UdpSocketConfig{}},
	}
}

// offerHTTP3 makes responses of a virtual host say that the server also has HTTP/3.
func offerHTTP3(h *routev3.VirtualHost, port uint32) {
	h.ResponseHeadersToAdd = append(h.ResponseHeadersToAdd, &corev3.HeaderValueOption{
		Header:       &corev3.HeaderValue{Key: "alt-svc", Value: fmt.Sprintf(`h3=":%d"; ma=86400`, port)},
		AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
	})
}
