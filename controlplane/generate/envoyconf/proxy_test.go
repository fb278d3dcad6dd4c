// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoyconf

import (
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

func settingsFrom(t *testing.T, headers string, s model.ProxySettings) *model.ProxySettings {
	t.Helper()
	if headers != "" {
		s.Headers = &meshv1alpha1.ProxyConfig_ProxyHeaders{}
		if err := protojson.Unmarshal([]byte(headers), s.Headers); err != nil {
			t.Fatal(err)
		}
	}
	return s.Keyed()
}

// managed returns a connection manager with the settings applied.
func managed(t *testing.T, hcm *hcmv3.HttpConnectionManager, direction corev3.TrafficDirection, gateway bool, s *model.ProxySettings) *hcmv3.HttpConnectionManager {
	t.Helper()
	l := &listenerv3.Listener{
		TrafficDirection: direction, Address: SocketAddress("127.0.0.1", 15006),
		FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{HTTPFilter(hcm)}}},
	}
	if err := ApplyListener(l, s, gateway); err != nil {
		t.Fatal(err)
	}
	out := &hcmv3.HttpConnectionManager{}
	if err := l.GetFilterChains()[0].GetFilters()[0].GetTypedConfig().UnmarshalTo(out); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestApplyHTTP(t *testing.T) {
	t.Parallel()
	mesh := &meshv1alpha1.MeshConfig{}
	const in, out = corev3.TrafficDirection_INBOUND, corev3.TrafficDirection_OUTBOUND
	inbound := func(s *model.ProxySettings) *hcmv3.HttpConnectionManager {
		return managed(t, InboundHTTP(mesh, "x", Filters{}), in, false, s)
	}
	outbound := func(s *model.ProxySettings) *hcmv3.HttpConnectionManager {
		return managed(t, OutboundHTTP(mesh, "x", Filters{}), out, false, s)
	}
	edge := func(s *model.ProxySettings) *hcmv3.HttpConnectionManager {
		return managed(t, GatewayHTTP(mesh, "x", nil, Filters{}), out, true, s)
	}
	if got := inbound(nil); !proto.Equal(got, InboundHTTP(mesh, "x", Filters{})) {
		t.Errorf("nothing set: %v", got)
	}
	s := settingsFrom(t, "", model.ProxySettings{HTTP10: true, IdleTimeout: 7 * time.Second})
	for name, hcm := range map[string]*hcmv3.HttpConnectionManager{"inbound": inbound(s), "outbound": outbound(s), "edge": edge(s)} {
		if !hcm.GetHttpProtocolOptions().GetAcceptHttp_10() || hcm.GetCommonHttpProtocolOptions().GetIdleTimeout().AsDuration() != 7*time.Second {
			t.Errorf("%s: %v", name, hcm)
		}
	}
	if !outbound(s).GetHttpProtocolOptions().GetAllowAbsoluteUrl().GetValue() {
		t.Error("the other options of HTTP/1 are lost")
	}
	s = settingsFrom(t, `{"server":{"disabled":true},"requestId":{"disabled":true},"envoyDebugHeaders":{"disabled":true},"xForwardedPort":{"enabled":true}}`, model.ProxySettings{})
	for name, hcm := range map[string]*hcmv3.HttpConnectionManager{"inbound": inbound(s), "outbound": outbound(s), "edge": edge(s)} {
		router := &routerv3.Router{}
		filters := hcm.GetHttpFilters()
		if err := filters[len(filters)-1].GetTypedConfig().UnmarshalTo(router); err != nil {
			t.Fatal(err)
		}
		if hcm.GetServerName() != "" || hcm.GetServerHeaderTransformation() != hcmv3.HttpConnectionManager_PASS_THROUGH || hcm.GetGenerateRequestId().GetValue() ||
			hcm.GetGenerateRequestId() == nil || !router.GetSuppressEnvoyHeaders() || !hcm.GetAppendXForwardedPort() {
			t.Errorf("%s: %v", name, hcm)
		}
	}
	s = settingsFrom(t, `{"server":{"value":"mine"},"forwardedClientCert":"SANITIZE"}`, model.ProxySettings{})
	if got := inbound(s); got.GetServerName() != "mine" || got.GetForwardClientCertDetails() != hcmv3.HttpConnectionManager_SANITIZE || got.GetSetCurrentClientCertDetails() != nil {
		t.Errorf("inbound: %v", got)
	}
	if got := edge(s); got.GetForwardClientCertDetails() != hcmv3.HttpConnectionManager_SANITIZE_SET || !got.GetSetCurrentClientCertDetails().GetCert() {
		t.Errorf("a gateway takes what its topology says: %v", got)
	}
	s = settingsFrom(t, `{"setCurrentClientCertDetails":{"subject":false,"cert":true}}`, model.ProxySettings{})
	want := &hcmv3.HttpConnectionManager_SetCurrentClientCertDetails{Subject: wrapperspb.Bool(false), Cert: true, Dns: true, Uri: true}
	if got := inbound(s).GetSetCurrentClientCertDetails(); !proto.Equal(got, want) {
		t.Errorf("inbound: %v", got)
	}
	if got := outbound(s).GetSetCurrentClientCertDetails(); got != nil {
		t.Errorf("outbound: %v", got)
	}
}

func TestApplyListener(t *testing.T) {
	t.Parallel()
	stream := func(idle *durationpb.Duration) *listenerv3.Filter {
		return TCPProxy(Stream{StatPrefix: "x", Targets: []Target{{Cluster: "x", Weight: 1}}, Idle: idle})
	}
	listener := func(direction corev3.TrafficDirection, port uint32) *listenerv3.Listener {
		return &listenerv3.Listener{
			TrafficDirection: direction, Address: SocketAddress("0.0.0.0", port),
			FilterChains:       []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{stream(nil)}}},
			DefaultFilterChain: &listenerv3.FilterChain{Filters: []*listenerv3.Filter{stream(durationpb.New(time.Minute))}},
		}
	}
	idle := func(f *listenerv3.Filter) time.Duration {
		proxy := &tcpproxyv3.TcpProxy{}
		if err := f.GetTypedConfig().UnmarshalTo(proxy); err != nil {
			t.Fatal(err)
		}
		return proxy.GetIdleTimeout().AsDuration()
	}
	s := settingsFrom(t, "", model.ProxySettings{IdleTimeout: 5 * time.Second, Unprivileged: true, OutboundBalance: true})
	shared := stream(nil)
	out := listener(corev3.TrafficDirection_OUTBOUND, 9000)
	out.FilterChains[0].Filters[0] = shared
	if err := ApplyListener(out, s, false); err != nil {
		t.Fatal(err)
	}
	if idle(out.FilterChains[0].Filters[0]) != 5*time.Second || idle(out.DefaultFilterChain.Filters[0]) != time.Minute || out.GetConnectionBalanceConfig().GetExactBalance() == nil {
		t.Errorf("got %v", out)
	}
	if idle(shared) != 0 {
		t.Error("a filter that others may have was changed")
	}
	in := listener(corev3.TrafficDirection_INBOUND, 9000)
	redirects := listener(corev3.TrafficDirection_OUTBOUND, 15001)
	redirects.UseOriginalDst = wrapperspb.Bool(true)
	for _, l := range []*listenerv3.Listener{in, redirects} {
		if err := ApplyListener(l, s, false); err != nil || l.GetConnectionBalanceConfig() != nil {
			t.Errorf("got %v, %v", l, err)
		}
	}
	for _, l := range []*listenerv3.Listener{listener(corev3.TrafficDirection_OUTBOUND, 80), listener(corev3.TrafficDirection_INBOUND, 1023)} {
		if err := ApplyListener(l, s, true); err == nil || !strings.Contains(err.Error(), "choose a port from 1024") {
			t.Errorf("got %v", err)
		}
		l.BindToPort = wrapperspb.Bool(false)
		if err := ApplyListener(l, s, false); err != nil {
			t.Errorf("nothing listens there: %v", err)
		}
	}
	if err := ApplyListener(in, settingsFrom(t, "", model.ProxySettings{InboundBalance: true}), false); err != nil || in.GetConnectionBalanceConfig().GetExactBalance() == nil {
		t.Errorf("got %v, %v", in, err)
	}
}

func TestApplyHosts(t *testing.T) {
	t.Parallel()
	hosts := func() []*routev3.VirtualHost {
		return []*routev3.VirtualHost{{IncludeRequestAttemptCount: true, Routes: []*routev3.Route{
			{Action: &routev3.Route_Route{Route: &routev3.RouteAction{HostRewriteSpecifier: &routev3.RouteAction_HostRewriteLiteral{HostRewriteLiteral: "x"}}}},
			{Action: &routev3.Route_Route{Route: &routev3.RouteAction{}}},
			{Action: &routev3.Route_Redirect{Redirect: &routev3.RedirectAction{}}},
		}}}
	}
	for _, nothing := range []string{"", `{"server":{"disabled":true}}`, `{"attemptCount":{}}`} {
		got := hosts()
		if ApplyHosts(got, settingsFrom(t, nothing, model.ProxySettings{})); !proto.Equal(got[0], hosts()[0]) {
			t.Errorf("%s: %v", nothing, got)
		}
	}
	got := hosts()
	ApplyHosts(got, settingsFrom(t, `{"attemptCount":{"disabled":true},"xForwardedHost":{"enabled":true}}`, model.ProxySettings{}))
	if r := got[0].GetRoutes(); got[0].GetIncludeRequestAttemptCount() || !r[0].GetRoute().GetAppendXForwardedHost() || r[1].GetRoute().GetAppendXForwardedHost() {
		t.Errorf("got %v", got)
	}
}
