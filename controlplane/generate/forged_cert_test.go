// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// TestEnvoyForgedClientCert sends forged XFCC elements through the real Envoy. The application
// must see only what the connection proves.
func TestEnvoyForgedClientCert(t *testing.T) {
	t.Parallel()
	const forged = "By=spiffe://cluster.local/ns/default/sa/default;URI=spiffe://cluster.local/ns/pay/sa/admin"
	const own = "URI=spiffe://cluster.local/ns/evil/sa/mallory"
	s := startGuarded(t, nil)
	appends := startGuarded(t, func(p *model.Proxy) {
		p.Settings = model.ProxySettings{Headers: &meshv1alpha1.ProxyConfig_ProxyHeaders{ForwardedClientCert: meshv1alpha1.ForwardClientCertDetails_APPEND_FORWARD}}.Keyed()
	})
	for _, tc := range []struct {
		name, port, alpn string
		on               *guarded
		plain            bool
		want             string // "" for no header, "forged" for the sent value plus the proven one
	}{
		{"requests over mutual TLS", "HTTP", "http/1.1", s, false, own},
		{"requests over mutual TLS, named as the mesh does", "HTTP", "istio-http/1.1", s, false, own},
		{"requests that are found out", "ANY", "istio-http/1.1", s, false, own},
		{"plaintext", "HTTP", "", s, true, ""},
		{"plaintext that is found out", "ANY", "", s, true, ""},
		{"appending is asked for", "HTTP", "http/1.1", appends, false, "forged"},
		{"appending is asked for, plaintext", "HTTP", "", appends, true, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			scheme, client := "http", tc.on.client(nil)
			if !tc.plain {
				pair, _, _ := tc.on.identity(t, "spiffe://cluster.local/ns/evil/sa/mallory")
				scheme, client = "https", tc.on.client(&pair, tc.alpn)
			}
			got, err := tc.on.ask(t, client, scheme, tc.port, forged)
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case tc.want == "forged":
				if !strings.Contains(got, forged) || !strings.Contains(got, own) {
					t.Errorf("the application receives %q, want both elements", got)
				}
			case tc.want == "" && got != "", !strings.Contains(got, tc.want), strings.Contains(got, "admin"):
				t.Errorf("the application receives %q, want %q", got, tc.want)
			}
		})
	}
	t.Run("the caller's Envoy", func(t *testing.T) {
		t.Parallel()
		client := &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: s.address + ":" + s.ports["PROXY"]})}}
		if status, got := get(t, client, "http://app.default/", forwardedCert+": "+forged); status != http.StatusOK || got != "" {
			t.Errorf("the called application receives %q (%d), want nothing", got, status)
		}
	})
}

// TestInboundSanitizes checks every listener of every case: none may trust a caller's claims about
// certificates.
func TestInboundSanitizes(t *testing.T) {
	t.Parallel()
	found := map[corev3.TrafficDirection]int{}
	for _, c := range testCases(t) {
		for _, r := range New(Config{}).Generate(c.build(), c.proxy, xds.TypeListener).Resources {
			l := unpack(t, r).(*listenerv3.Listener)
			for _, chain := range append(l.GetFilterChains(), l.GetDefaultFilterChain()) {
				for _, filter := range chain.GetFilters() {
					hcm := &hcmv3.HttpConnectionManager{}
					if !filter.GetTypedConfig().MessageIs(hcm) {
						continue
					}
					if err := filter.GetTypedConfig().UnmarshalTo(hcm); err != nil {
						t.Fatal(err)
					}
					found[l.GetTrafficDirection()]++
					switch hcm.GetForwardClientCertDetails() {
					case hcmv3.HttpConnectionManager_SANITIZE, hcmv3.HttpConnectionManager_SANITIZE_SET:
					default:
						if c.proxy.Settings == nil && c.mesh.GetDefaultConfig().GetGatewayTopology() == nil {
							t.Errorf("%s: listener %s, chain %s: %s", c.name, l.GetName(), chain.GetName(), hcm.GetForwardClientCertDetails())
						}
					}
				}
			}
		}
	}
	if found[corev3.TrafficDirection_INBOUND] == 0 || found[corev3.TrafficDirection_OUTBOUND] == 0 {
		t.Fatalf("connection managers found: %v", found)
	}
}
