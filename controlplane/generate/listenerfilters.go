// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	cachev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/dynamic_forward_proxy/v3"
	httpinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/http_inspector/v3"
	originaldstv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/original_dst/v3"
	originalsrcv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/original_src/v3"
	lookupv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/sni_dynamic_forward_proxy/v3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
)

// httpInspector returns the listener filter that detects HTTP in plaintext connections.
func httpInspector() *listenerv3.ListenerFilter {
	return envoyconf.ListenerFilter("envoy.filters.listener.http_inspector", &httpinspectorv3.HttpInspector{})
}

// originalDst returns the listener filter that restores the original destination of redirected
// connections.
func originalDst() *listenerv3.ListenerFilter {
	return envoyconf.ListenerFilter("envoy.filters.listener.original_dst", &originaldstv3.OriginalDst{})
}

// originalSrc returns the listener filter that makes connections to the application use the
// address of the caller as their source. The mark routes the responses back to Envoy.
func originalSrc(mark uint32) *listenerv3.ListenerFilter {
	return envoyconf.ListenerFilter("envoy.filters.listener.original_src", &originalsrcv3.OriginalSrc{Mark: mark})
}

// lookUp returns the network filter that resolves the SNI of a connection before it is forwarded
// to a cluster with the same DNS cache.
func lookUp(names *cachev3.DnsCacheConfig, port uint32) *listenerv3.Filter {
	return &listenerv3.Filter{
		Name: "envoy.filters.network.sni_dynamic_forward_proxy",
		ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: envoyconf.Pack(&lookupv3.FilterConfig{
			DnsCacheConfig: names, PortSpecifier: &lookupv3.FilterConfig_PortValue{PortValue: port},
		})},
	}
}

// meshHTTPALPN returns the ALPN names of mutual TLS of the mesh that carries HTTP.
func meshHTTPALPN() []string {
	return []string{"istio-http/1.0", envoyconf.ALPNMeshHTTP1, envoyconf.ALPNMeshHTTP2}
}
