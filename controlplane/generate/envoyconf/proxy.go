// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoyconf

import (
	"fmt"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// http10 is the name of HTTP/1.0 where the protocol is detected.
const http10 = "http/1.0"

// FirstFreePort is the first unprivileged port.
const FirstFreePort = 1024

// ApplyListener applies the settings of a proxy to a listener that was built for all proxies of
// its kind. The listeners of a gateway serve clients outside the mesh, whatever their traffic
// direction. ApplyListener returns an error if the proxy cannot listen on the port.
func ApplyListener(l *listenerv3.Listener, s *model.ProxySettings, gateway bool) error {
	if !s.Changes() {
		return nil
	}
	bound := l.GetBindToPort() == nil || l.GetBindToPort().GetValue()
	if port := l.GetAddress().GetSocketAddress().GetPortValue(); s.Unprivileged && bound && port > 0 && port < FirstFreePort {
		return fmt.Errorf("the proxy is in an unprivileged pod (UNPRIVILEGED_POD) and cannot listen at port %d: choose a port from %d", port, FirstFreePort)
	}
	inbound := !gateway && l.GetTrafficDirection() == corev3.TrafficDirection_INBOUND
	// A listener that only hands connections to other listeners is skipped: connections are
	// balanced by the listener that processes them.
	tcp := l.GetUdpListenerConfig() == nil
	if tcp && (inbound && s.InboundBalance || !inbound && s.OutboundBalance && !l.GetUseOriginalDst().GetValue()) {
		l.ConnectionBalanceConfig = &listenerv3.Listener_ConnectionBalanceConfig{BalanceType: &listenerv3.Listener_ConnectionBalanceConfig_ExactBalance_{
			ExactBalance: &listenerv3.Listener_ConnectionBalanceConfig_ExactBalance{},
		}}
	}
	kind := outboundRequests
	switch {
	case gateway:
		kind = edgeRequests
	case inbound:
		kind = inboundRequests
	}
	for _, chain := range append(l.GetFilterChains()[:len(l.GetFilterChains()):len(l.GetFilterChains())], l.GetDefaultFilterChain()) {
		if m := chain.GetFilterChainMatch(); s.HTTP10 && slices.Contains(m.GetApplicationProtocols(), "h2c") && m.GetApplicationProtocols()[0] != http10 { // HTTP is detected
			m.ApplicationProtocols = append([]string{http10}, m.GetApplicationProtocols()...)
		}
		for i, filter := range chain.GetFilters() {
			changed, err := applyFilter(filter, s, kind)
			if err != nil {
				return err
			}
			chain.Filters[i] = changed
		}
	}
	return nil
}

// applyFilter returns a network filter with the settings applied. It does not modify its argument,
// which several chains may share.
func applyFilter(filter *listenerv3.Filter, s *model.ProxySettings, kind requests) (*listenerv3.Filter, error) {
	message, err := filter.GetTypedConfig().UnmarshalNew()
	if err != nil {
		return nil, fmt.Errorf("the filter %s: %w", filter.GetName(), err)
	}
	switch config := message.(type) {
	case *hcmv3.HttpConnectionManager:
		if err := applyHTTP(config, s, kind); err != nil {
			return nil, err
		}
	case *tcpproxyv3.TcpProxy:
		if config.IdleTimeout != nil || s.IdleTimeout == 0 { // the idle timeout of a DestinationRule takes precedence
			return filter, nil
		}
		config.IdleTimeout = durationpb.New(s.IdleTimeout)
	default:
		return filter, nil
	}
	return &listenerv3.Filter{Name: filter.GetName(), ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: Pack(message)}}, nil
}

// requests describes the source of a connection manager's requests.
type requests int

const (
	outboundRequests requests = iota // from the application
	inboundRequests                  // to the application
	edgeRequests                     // from clients outside the mesh
)

func applyHTTP(hcm *hcmv3.HttpConnectionManager, s *model.ProxySettings, kind requests) error {
	if s.HTTP10 {
		http1(hcm).AcceptHttp_10 = true
	}
	if s.IdleTimeout != 0 {
		if hcm.CommonHttpProtocolOptions == nil {
			hcm.CommonHttpProtocolOptions = &corev3.HttpProtocolOptions{}
		}
		hcm.CommonHttpProtocolOptions.IdleTimeout = durationpb.New(s.IdleTimeout)
	}
	h := s.Headers
	switch server := h.GetServer(); {
	case server.GetDisabled().GetValue():
		hcm.ServerName, hcm.ServerHeaderTransformation = "", hcmv3.HttpConnectionManager_PASS_THROUGH
	case server.GetValue() != "":
		hcm.ServerName = server.GetValue()
	}
	if h.GetRequestId().GetDisabled().GetValue() {
		hcm.GenerateRequestId = wrapperspb.Bool(false)
	}
	if h.GetXForwardedPort().GetEnabled().GetValue() {
		hcm.AppendXForwardedPort = true
	}
	if kind == inboundRequests && h.GetForwardedClientCert() != meshv1alpha1.ForwardClientCertDetails_UNDEFINED {
		hcm.ForwardClientCertDetails = forwardCertificate(h.GetForwardedClientCert())
	}
	if d := h.GetSetCurrentClientCertDetails(); d != nil && kind != outboundRequests {
		hcm.SetCurrentClientCertDetails = certificateDetails(d)
	}
	switch hcm.GetForwardClientCertDetails() {
	case hcmv3.HttpConnectionManager_APPEND_FORWARD, hcmv3.HttpConnectionManager_SANITIZE_SET:
	default:
		hcm.SetCurrentClientCertDetails = nil // Envoy would ignore it
	}
	if h.GetEnvoyDebugHeaders().GetDisabled().GetValue() {
		return suppressEnvoyHeaders(hcm)
	}
	return nil
}

func http1(hcm *hcmv3.HttpConnectionManager) *corev3.Http1ProtocolOptions {
	if hcm.HttpProtocolOptions == nil {
		hcm.HttpProtocolOptions = &corev3.Http1ProtocolOptions{}
	}
	return hcm.HttpProtocolOptions
}

// certificateDetails returns the details of a client certificate that are forwarded: the subject,
// URIs and DNS names unless disabled, and the others if enabled.
func certificateDetails(d *meshv1alpha1.ProxyConfig_ProxyHeaders_SetCurrentClientCertDetails) *hcmv3.HttpConnectionManager_SetCurrentClientCertDetails {
	unlessOff := func(v *wrapperspb.BoolValue) bool { return v == nil || v.GetValue() }
	return &hcmv3.HttpConnectionManager_SetCurrentClientCertDetails{
		Subject: wrapperspb.Bool(unlessOff(d.GetSubject())), Cert: d.GetCert().GetValue(), Chain: d.GetChain().GetValue(),
		Dns: unlessOff(d.GetDns()), Uri: unlessOff(d.GetUri()),
	}
}

// suppressEnvoyHeaders makes the router omit the headers that Envoy adds.
func suppressEnvoyHeaders(hcm *hcmv3.HttpConnectionManager) error {
	for _, filter := range hcm.GetHttpFilters() {
		router := &routerv3.Router{}
		if !filter.GetTypedConfig().MessageIs(router) {
			continue
		}
		if err := filter.GetTypedConfig().UnmarshalTo(router); err != nil {
			return fmt.Errorf("the filter %s: %w", filter.GetName(), err)
		}
		router.SuppressEnvoyHeaders = true
		filter.ConfigType = &hcmv3.HttpFilter_TypedConfig{TypedConfig: Pack(router)}
	}
	return nil
}

// ApplyHosts applies the settings of a proxy to virtual hosts that were built for all proxies of
// its kind.
func ApplyHosts(hosts []*routev3.VirtualHost, s *model.ProxySettings) {
	if s.RouteKey() == "" {
		return
	}
	for _, vh := range hosts {
		if s.Headers.GetAttemptCount().GetDisabled().GetValue() {
			vh.IncludeRequestAttemptCount = false
		}
		if !s.Headers.GetXForwardedHost().GetEnabled().GetValue() {
			continue
		}
		for _, r := range vh.GetRoutes() {
			if r.GetRoute().GetHostRewriteSpecifier() != nil {
				r.GetRoute().AppendXForwardedHost = true
			}
		}
	}
}
