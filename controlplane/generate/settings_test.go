// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
	"github.com/outrigger-mesh/outrigger/e2e/envoytest"
)

// everySetting returns settings in which every field is set.
func everySetting() model.ProxySettings {
	return model.ProxySettings{
		Configured: true, HTTP10: true, IdleTimeout: 90 * time.Second, InboundBalance: true, OutboundBalance: true, Records: []string{":method", "x-team"}, DelimitedStats: true,
		Topology: &meshv1alpha1.Topology{NumTrustedProxies: 2, ProxyProtocol: &meshv1alpha1.Topology_ProxyProtocolConfiguration{}},
		Headers: &meshv1alpha1.ProxyConfig_ProxyHeaders{
			Server:              &meshv1alpha1.ProxyConfig_ProxyHeaders_Server{Disabled: wrapperspb.Bool(true)},
			RequestId:           &meshv1alpha1.ProxyConfig_ProxyHeaders_RequestId{Disabled: wrapperspb.Bool(true)},
			EnvoyDebugHeaders:   &meshv1alpha1.ProxyConfig_ProxyHeaders_EnvoyDebugHeaders{Disabled: wrapperspb.Bool(true)},
			AttemptCount:        &meshv1alpha1.ProxyConfig_ProxyHeaders_AttemptCount{Disabled: wrapperspb.Bool(true)},
			XForwardedHost:      &meshv1alpha1.ProxyConfig_ProxyHeaders_XForwardedHost{Enabled: wrapperspb.Bool(true)},
			XForwardedPort:      &meshv1alpha1.ProxyConfig_ProxyHeaders_XForwardedPort{Enabled: wrapperspb.Bool(true)},
			ForwardedClientCert: meshv1alpha1.ForwardClientCertDetails_SANITIZE_SET,
			SetCurrentClientCertDetails: &meshv1alpha1.ProxyConfig_ProxyHeaders_SetCurrentClientCertDetails{
				Cert: wrapperspb.Bool(true), Chain: wrapperspb.Bool(true),
			},
		},
	}
}

// caseOf returns one case of testdata.
func caseOf(t *testing.T, name string) testCase {
	t.Helper()
	return loadCase(t, "testdata/"+name)
}

// TestEnvoyAcceptsSettings checks that Envoy accepts listeners and routes with every setting, for
// all kinds of traffic.
func TestEnvoyAcceptsSettings(t *testing.T) {
	t.Parallel()
	binary := envoytest.Binary(t)
	for _, c := range testCases(t) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.proxy.Settings = everySetting().Keyed()
			validateWithEnvoy(t, binary, c.build(), c.proxy)
		})
	}
}

// TestRecordableConnections checks that agents can record the connections that are forwarded to a
// workload, and those of gateways.
func TestRecordableConnections(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"intercept-redirect", "gateway-streams", "gateway-passthrough"} {
		c := caseOf(t, name)
		c.proxy.Settings = (&model.ProxySettings{Configured: true, Records: []string{":method"}}).Keyed()
		forwarded := 0
		for _, l := range listenersOf(t, New(Config{}), c.build(), c.proxy) {
			for _, chain := range append(l.GetFilterChains(), l.GetDefaultFilterChain()) {
				for _, f := range chain.GetFilters() {
					to := &tcpproxyv3.TcpProxy{}
					if f.GetTypedConfig().UnmarshalTo(to) != nil || to.GetCluster() == envoyconf.BlackHoleCluster || c.proxy.Role != node.Router && l.GetTrafficDirection() != corev3.TrafficDirection_INBOUND {
						continue
					}
					forwarded++
					if !slices.ContainsFunc(to.GetAccessLog(), func(log *accesslogv3.AccessLog) bool {
						return log.GetFilter().GetRuntimeFilter().GetRuntimeKey() == node.RecordLog
					}) {
						t.Errorf("%s: the listener %s cannot record connections", name, l.GetName())
					}
				}
			}
		}
		if forwarded == 0 {
			t.Errorf("%s: no connections are forwarded", name)
		}
	}
}

// TestSettingsShare checks that proxies with equal settings share their resources, that others do
// not receive them, and that all share what does not depend on settings.
func TestSettingsShare(t *testing.T) {
	t.Parallel()
	c := caseOf(t, "intercept-redirect")
	mesh, g := c.build(), New(Config{})
	with := func(s model.ProxySettings) *model.Proxy {
		p := *c.proxy
		p.Settings = s.Keyed()
		return &p
	}
	fast := everySetting()
	fast.IdleTimeout = time.Second
	first, second, other, plain := with(everySetting()), with(everySetting()), with(fast), with(model.ProxySettings{Configured: true})
	for _, typeURL := range []string{xds.TypeListener, xds.TypeRoute, xds.TypeCluster, xds.TypeEndpoint} {
		a := g.Generate(mesh, first, typeURL)
		if g.Generate(mesh, second, typeURL) != a {
			t.Errorf("%s: equal settings do not share", typeURL)
		}
		if shared := g.Generate(mesh, other, typeURL) == a; shared == (typeURL == xds.TypeListener) {
			t.Errorf("%s: other settings: shared is %v", typeURL, shared)
		}
		if shared := g.Generate(mesh, plain, typeURL) == a; shared == (typeURL != xds.TypeEndpoint) {
			t.Errorf("%s: no settings: shared is %v", typeURL, shared)
		}
		if g.Generate(mesh, plain, typeURL) != g.Generate(mesh, c.proxy, typeURL) {
			t.Errorf("%s: a ProxyConfig that says nothing makes a difference", typeURL)
		}
	}
}

// listenersOf returns the listeners of a proxy.
func listenersOf(t *testing.T, g *Generator, mesh *snapshot.Mesh, proxy *model.Proxy) (out []*listenerv3.Listener) {
	t.Helper()
	for _, r := range g.Generate(mesh, proxy, xds.TypeListener).Resources {
		packed, l := &anypb.Any{}, &listenerv3.Listener{}
		if err := errors.Join(proto.Unmarshal(r.Any, packed), packed.UnmarshalTo(l)); err != nil {
			t.Fatal(err)
		}
		out = append(out, l)
	}
	return out
}

// managers returns the connection managers of a proxy's listeners.
func managers(t *testing.T, g *Generator, mesh *snapshot.Mesh, proxy *model.Proxy) (out []*hcmv3.HttpConnectionManager) {
	t.Helper()
	for _, l := range listenersOf(t, g, mesh, proxy) {
		for _, chain := range append(l.GetFilterChains(), l.GetDefaultFilterChain()) {
			for _, f := range chain.GetFilters() {
				if hcm := (&hcmv3.HttpConnectionManager{}); f.GetTypedConfig().UnmarshalTo(hcm) == nil {
					out = append(out, hcm)
				}
			}
		}
	}
	if len(out) == 0 {
		t.Fatal("nothing serves requests")
	}
	return out
}

// TestSettingsOfMesh checks that the ProxyConfig of the mesh config applies to proxies without
// their own, and follows its changes.
func TestSettingsOfMesh(t *testing.T) {
	t.Parallel()
	c := caseOf(t, "intercept-redirect")
	g := New(Config{})
	own := *c.proxy
	own.Settings = model.ProxySettings{Configured: true}.Keyed()
	for _, value := range []string{"one", "two"} {
		c.mesh.DefaultConfig.ProxyHeaders = &meshv1alpha1.ProxyConfig_ProxyHeaders{Server: &meshv1alpha1.ProxyConfig_ProxyHeaders_Server{Value: value}}
		mesh := c.build()
		for _, hcm := range managers(t, g, mesh, c.proxy) {
			if hcm.GetServerName() != value {
				t.Errorf("%s: the name of the server is %q", value, hcm.GetServerName())
			}
		}
		for _, hcm := range managers(t, g, mesh, &own) {
			if strings.Contains("one two", hcm.GetServerName()) && hcm.GetServerName() != "" {
				t.Errorf("%s: a proxy with a ProxyConfig of its own has that of the mesh", value)
			}
		}
		c.mesh = proto.CloneOf(c.mesh)
	}
}

// TestSettingsOfGateway checks that a gateway uses its own topology. In an unprivileged pod it
// must omit listeners that it cannot bind and report a problem.
func TestSettingsOfGateway(t *testing.T) {
	t.Parallel()
	c := caseOf(t, "gateway-http")
	mesh, g := c.build(), New(Config{})
	p := *c.proxy
	p.Settings = everySetting().Keyed()
	for _, hcm := range managers(t, g, mesh, &p) {
		if hcm.GetXffNumTrustedHops() != 2 || hcm.GetServerName() != "" || !hcm.GetHttpProtocolOptions().GetAcceptHttp_10() {
			t.Errorf("got %v", hcm)
		}
	}
	c = caseOf(t, "gateway-conflicts") // at 80 and 443
	mesh, p = c.build(), *c.proxy
	unprivileged := p
	unprivileged.Settings = model.ProxySettings{Unprivileged: true}.Keyed()
	with, without := g.Generate(mesh, &p, xds.TypeListener), g.Generate(mesh, &unprivileged, xds.TypeListener)
	told := 0
	for _, problem := range without.Problems {
		if strings.Contains(problem.Reason, "unprivileged pod") {
			told++
		}
	}
	if told == 0 || len(without.Resources)+told != len(with.Resources) {
		t.Errorf("%d of %d listeners, told of %d: %v", len(without.Resources), len(with.Resources), told, without.Problems)
	}
}

// TestSettingsForAll checks the settings of the control plane that apply to all proxies.
func TestSettingsForAll(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"intercept-redirect", "gateway-http", "shop"} {
		c := caseOf(t, name)
		for _, on := range []bool{true, false} {
			for _, hcm := range managers(t, New(Config{HTTP10: on}), c.build(), c.proxy) {
				if hcm.GetHttpProtocolOptions().GetAcceptHttp_10() != on {
					t.Errorf("%s, %v: %v", name, on, hcm)
				}
			}
			for _, r := range New(Config{HTTP10: on}).Generate(c.build(), c.proxy, xds.TypeListener).Resources {
				l := &listenerv3.Listener{}
				if err := r.UnmarshalTo(l); err != nil {
					t.Fatal(err)
				}
				for _, chain := range l.GetFilterChains() {
					names := chain.GetFilterChainMatch().GetApplicationProtocols()
					if slices.Contains(names, "h2c") && slices.Contains(names, "http/1.0") != on {
						t.Errorf("%s, %v: the chain %s of %s detects %q", name, on, chain.GetName(), r.Name, names)
					}
				}
			}
			named := 0
			for _, hcm := range managers(t, New(Config{DeniedBy: on}), c.build(), c.proxy) {
				for _, mapper := range hcm.GetLocalReplyConfig().GetMappers() {
					named += len(mapper.GetHeadersToAdd())
				}
			}
			if on != (named > 0) {
				t.Errorf("%s, %v: %d headers name the rule that denies a request", name, on, named)
			}
		}
	}
}
