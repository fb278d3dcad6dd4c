// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"slices"
	"strings"
	"testing"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/outrigger-mesh/outrigger/controlplane/xds"
	"github.com/outrigger-mesh/outrigger/e2e/envoytest"
)

// TestHTTP3 checks that HTTP/3 is served beside HTTPS, but not by servers that verify clients, pass
// TLS through, or serve other protocols; that their responses do not offer it; and that Envoy
// accepts the listeners.
func TestHTTP3(t *testing.T) {
	t.Parallel()
	c := loadCase(t, "testdata/gateway-tls")
	g, mesh := New(Config{HTTP3: true}), c.build()
	var tcp, udp []string
	for _, r := range g.Generate(mesh, c.proxy, xds.TypeListener).Resources {
		l, ok := unpack(t, r).(*listenerv3.Listener)
		if !ok {
			t.Fatalf("%s is no listener", r.Name)
		}
		if l.GetUdpListenerConfig().GetQuicOptions() == nil {
			tcp = append(tcp, l.GetName())
			continue
		}
		udp = append(udp, l.GetName())
		var names []string
		for _, chain := range l.GetFilterChains() {
			names = append(names, chain.GetFilterChainMatch().GetServerNames()...)
			if chain.GetTransportSocket().GetName() != "envoy.transport_sockets.quic" {
				t.Errorf("a chain has the socket %s", chain.GetTransportSocket().GetName())
			}
		}
		slices.Sort(names)
		if got, want := strings.Join(names, " "), "builtin.example.com simple.example.com simple2.example.com two.example.com"; got != want {
			t.Errorf("HTTP/3 is served for %q, want %q", got, want)
		}
	}
	if strings.Join(udp, " ") != "udp_0.0.0.0_443" || !slices.Contains(tcp, "0.0.0.0_443") {
		t.Errorf("the listeners are %q and %q", tcp, udp)
	}
	offered := map[string]bool{}
	for _, r := range g.Generate(mesh, c.proxy, xds.TypeRoute).Resources {
		routes, ok := unpack(t, r).(*routev3.RouteConfiguration)
		if !ok {
			t.Fatalf("%s has no routes", r.Name)
		}
		for _, h := range routes.GetVirtualHosts() {
			for _, header := range h.GetResponseHeadersToAdd() {
				if header.GetHeader().GetKey() == "alt-svc" && header.GetHeader().GetValue() == `h3=":443"; ma=86400` {
					offered[h.GetName()] = true
				}
			}
		}
	}
	if !offered["simple.example.com:443"] || !offered["two.example.com:443"] || offered["mutual.example.com:443"] || offered["optional.example.com:443"] {
		t.Errorf("HTTP/3 is offered by %v", offered)
	}
	validateConfig(t, envoytest.Binary(t), staticBootstrapOf(t, g, mesh, c.proxy))
}
