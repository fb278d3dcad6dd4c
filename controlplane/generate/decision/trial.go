// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package decision

import (
	"fmt"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matchingv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/matching/v3"
	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	proxyprotocolv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/proxy_protocol/v3"
	echov3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/echo/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// Files of a trial, in the directory that its Envoy runs in.
const (
	TrialChain = "server.pem" // certificate of the listeners
	TrialKey   = "server.key"
	TrialRoots = "roots.pem" // for the certificates of clients
	TrialKeys  = "keys.json" // key set of the issuers of tokens
)

// Trial returns listeners for another Envoy, which decides about requests as this one, forwards
// nothing and asks nobody: it answers requests that it accepts with the status 200 or 404. Ports
// whose requests are not read return what they receive. The names have a prefix. The listeners bind to
// a free loopback port. They read the addresses of connections from the PROXY protocol.
func (e *Envoy) Trial(prefix string) ([]*listenerv3.Listener, error) {
	var out []*listenerv3.Listener
	for _, l := range e.listeners {
		if l.GetTrafficDirection() != corev3.TrafficDirection_INBOUND && !e.gateway {
			continue
		}
		t := &listenerv3.Listener{
			Name: prefix + l.GetName(), Address: loopback(), TrafficDirection: l.GetTrafficDirection(),
			ListenerFilters:        []*listenerv3.ListenerFilter{{Name: "proxy_protocol", ConfigType: &listenerv3.ListenerFilter_TypedConfig{TypedConfig: pack(&proxyprotocolv3.ProxyProtocol{})}}},
			ListenerFiltersTimeout: l.GetListenerFiltersTimeout(), ContinueOnListenerFiltersTimeout: l.GetContinueOnListenerFiltersTimeout(),
		}
		for _, f := range l.GetListenerFilters() {
			if strings.HasSuffix(f.GetName(), "_inspector") {
				t.ListenerFilters = append(t.ListenerFilters, f)
			}
		}
		for _, chain := range l.GetFilterChains() {
			c, err := e.trialChain(chain)
			if err != nil {
				return nil, fmt.Errorf("the listener %s: %w", l.GetName(), err)
			}
			t.FilterChains = append(t.FilterChains, c)
		}
		if chain := l.GetDefaultFilterChain(); chain != nil {
			var err error
			if t.DefaultFilterChain, err = e.trialChain(chain); err != nil {
				return nil, fmt.Errorf("the listener %s: %w", l.GetName(), err)
			}
		}
		out = append(out, t)
	}
	return out, nil
}

// Place is where a request is sent.
type Place struct {
	// Listener is the name of the listener that accepts the connection; empty if none does. TLS is true
	// if the client speaks TLS, and Opaque if TLS is not terminated. HTTP is true if requests are read.
	Listener          string
	TLS, Opaque, HTTP bool
	// Header and Prefix, Param or Cookie say where a token with the claims of the request belongs. All
	// are empty if no such token is accepted.
	Header, Prefix, Param, Cookie string
}

// Place returns where a request is sent.
func (e *Envoy) Place(r Request) (out Place) {
	l := e.listener(r.Server, r.Port)
	if l == nil {
		return out
	}
	out.Listener = l.GetName()
	picked, tls := pick(l, r)
	if out.TLS = tls; picked == nil {
		return out
	}
	c, err := e.chain(picked)
	if err != nil {
		return out
	}
	out.HTTP, out.Opaque = c.hcm != nil, tls && picked.GetTransportSocket() == nil
	for _, s := range c.http {
		if t, ok := s.(validates); ok && r.Claims != nil {
			out.token(t.accepting(r.Claims))
		}
	}
	return out
}

// token sets the first place where a provider, which may be nil, looks for tokens.
func (out *Place) token(p *provider) {
	switch {
	case p == nil:
	case len(p.GetFromHeaders()) > 0:
		out.Header, out.Prefix = p.GetFromHeaders()[0].GetName(), p.GetFromHeaders()[0].GetValuePrefix()
	case len(p.GetFromParams()) > 0:
		out.Param = p.GetFromParams()[0]
	case len(p.GetFromCookies()) > 0:
		out.Cookie = p.GetFromCookies()[0]
	}
}

func loopback() *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: "127.0.0.1", PortSpecifier: &corev3.SocketAddress_PortValue{},
	}}}
}

func pack(m proto.Message) *anypb.Any {
	a, err := anypb.New(m)
	if err != nil {
		return nil // only of invalid UTF-8, which no constant has
	}
	return a
}

// trialChain returns a chain with the certificates of the trial and the filters that decide.
func (e *Envoy) trialChain(from *listenerv3.FilterChain) (*listenerv3.FilterChain, error) {
	out := &listenerv3.FilterChain{Name: from.GetName(), FilterChainMatch: from.GetFilterChainMatch()}
	if context := contextOf(from); context != nil {
		trialTLS(context)
		out.TransportSocket = &corev3.TransportSocket{Name: "envoy.transport_sockets.tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: pack(context)}}
	}
	answered := false
	for _, f := range from.GetFilters() {
		config := f.GetTypedConfig()
		if f.GetConfigDiscovery() != nil {
			config = e.extension(f.GetName())
		}
		hcm := &hcmv3.HttpConnectionManager{}
		switch {
		case config.MessageIs(hcm):
			if err := config.UnmarshalTo(hcm); err != nil {
				return nil, err
			}
			e.trialHTTP(hcm)
			config, answered = pack(hcm), true
		case !strings.HasSuffix(config.GetTypeUrl(), ".rbac.v3.RBAC") && !strings.HasSuffix(config.GetTypeUrl(), ".set_filter_state.v3.Config"):
			continue
		}
		out.Filters = append(out.Filters, &listenerv3.Filter{Name: f.GetName(), ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: config}})
	}
	if !answered { // rules are applied to the first bytes, so the answer must not come before
		out.Filters = append(out.Filters, &listenerv3.Filter{Name: "echo", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: pack(&echov3.Echo{})}})
	}
	return out, nil
}

// trialTLS replaces the certificates. It keeps which identities are accepted.
func trialTLS(context *tlsv3.DownstreamTlsContext) {
	file := func(name string) *corev3.DataSource {
		return &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: name}}
	}
	common := context.GetCommonTlsContext()
	asked := common.GetValidationContextType() != nil
	rules := common.GetValidationContext()
	if combined := common.GetCombinedValidationContext(); combined != nil {
		rules = combined.GetDefaultValidationContext()
	}
	context.CommonTlsContext = &tlsv3.CommonTlsContext{
		TlsParams: common.GetTlsParams(), AlpnProtocols: common.GetAlpnProtocols(),
		TlsCertificates: []*tlsv3.TlsCertificate{{CertificateChain: file(TrialChain), PrivateKey: file(TrialKey)}},
	}
	if asked || context.GetRequireClientCertificate().GetValue() {
		context.CommonTlsContext.ValidationContextType = &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{
			TrustedCa: file(TrialRoots), MatchTypedSubjectAltNames: rules.GetMatchTypedSubjectAltNames(),
		}}
	}
	context.OcspStaplePolicy = 0
	context.SessionTicketKeysType = nil
}

// trialHTTP leaves the filters that decide, and answers each request.
func (e *Envoy) trialHTTP(hcm *hcmv3.HttpConnectionManager) {
	hcm.AccessLog, hcm.AccessLogOptions, hcm.Tracing, hcm.LocalReplyConfig = nil, nil, nil, nil
	hcm.RouteSpecifier = &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{VirtualHosts: []*routev3.VirtualHost{{
		Name: "all", Domains: []string{"*"}, Routes: []*routev3.Route{{
			Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
			Action: &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: 200}},
		}},
	}}}}
	var kept []*hcmv3.HttpFilter
	for _, f := range hcm.GetHttpFilters() {
		config := f.GetTypedConfig()
		if f.GetConfigDiscovery() != nil {
			config = e.extension(f.GetName())
		}
		if config.MessageIs(&jwtv3.JwtAuthentication{}) {
			config = trialTokens(config)
		}
		if decides(config) {
			kept = append(kept, &hcmv3.HttpFilter{Name: f.GetName(), ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: config}})
		}
	}
	hcm.HttpFilters = kept
}

// trialTokens replaces the keys of the issuers.
func trialTokens(config *anypb.Any) *anypb.Any {
	filter := &jwtv3.JwtAuthentication{}
	if config.UnmarshalTo(filter) != nil {
		return config
	}
	for _, p := range filter.GetProviders() {
		p.JwksSourceSpecifier = &jwtv3.JwtProvider_LocalJwks{LocalJwks: &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: TrialKeys}}}
	}
	return pack(filter)
}

// decides reports whether a trial has an HTTP filter. Those that are not evaluated are not in it
// either, and no authorizer is asked.
func decides(config *anypb.Any) bool {
	wrapped := &matchingv3.ExtensionWithMatcher{}
	if config.MessageIs(wrapped) {
		return config.UnmarshalTo(wrapped) == nil && decides(wrapped.GetExtensionConfig().GetTypedConfig())
	}
	return slices.ContainsFunc([]string{
		".rbac.v3.RBAC", ".JwtAuthentication", ".HeaderMutation", ".set_filter_state.v3.Config", ".header_to_metadata.v3.Config", ".Router",
	}, func(suffix string) bool { return strings.HasSuffix(config.GetTypeUrl(), suffix) })
}
