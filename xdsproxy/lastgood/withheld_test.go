// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package lastgood

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"

	"github.com/outrigger-mesh/outrigger/e2e/envoytest"
)

// tlsListener returns a listener whose certificate is a secret of the control plane.
func tlsListener(t *testing.T, name, hostPort, routes, secret string) *listenerv3.Listener {
	t.Helper()
	l := httpListener(t, name, hostPort, routes)
	l.FilterChains[0].TransportSocket = &corev3.TransportSocket{Name: "tls", ConfigType: &corev3.TransportSocket_TypedConfig{
		TypedConfig: toAny(t, &tlsv3.DownstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{
			TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{{Name: secret, SdsConfig: ads()}},
		}}),
	}}
	return l
}

// extensionListener returns a listener with a filter in a separate resource.
func extensionListener(t *testing.T, name, hostPort, routes, extension string) *listenerv3.Listener {
	t.Helper()
	l := httpListener(t, name, hostPort, routes)
	filter := l.GetFilterChains()[0].GetFilters()[0]
	hcm := &hcmv3.HttpConnectionManager{}
	if err := filter.GetTypedConfig().UnmarshalTo(hcm); err != nil {
		t.Fatal(err)
	}
	hcm.HttpFilters = append([]*hcmv3.HttpFilter{{Name: extension, ConfigType: &hcmv3.HttpFilter_ConfigDiscovery{
		ConfigDiscovery: &corev3.ExtensionConfigSource{ConfigSource: ads(), TypeUrls: []string{typePrefix + "envoy.extensions.filters.http.rbac.v3.RBAC"}},
	}}}, hcm.HttpFilters...)
	filter.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: toAny(t, hcm)}
	return l
}

// keyPair returns a secret with a private key, and a client that verifies it by name.
func keyPair(t *testing.T, name string) (*tlsv3.Secret, *http.Client) {
	t.Helper()
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	chain, key := pemOf(t, server.TLS.Certificates[0])
	inline := func(b []byte) *corev3.DataSource {
		return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: b}}
	}
	transport := server.Client().Transport.(*http.Transport).Clone()
	transport.DisableKeepAlives = true
	transport.TLSClientConfig.ServerName = "example.com"
	return &tlsv3.Secret{Name: name, Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
		CertificateChain: inline(chain), PrivateKey: inline(key),
	}}}, &http.Client{Transport: transport, Timeout: 5 * time.Second}
}

// TestEnvoyWithSecrets starts a real Envoy whose listener needs a secret of the control plane. With
// consent, the listener works over TLS as before; without consent, it does not block the others.
func TestEnvoyWithSecrets(t *testing.T) {
	t.Parallel()
	envoytest.Binary(t)
	for _, tc := range []struct{ consent, delta, unified bool }{
		{true, true, false},
		{true, true, true},
		{true, false, true},
		{false, true, false},
		{false, true, true},
		{false, false, false},
		{false, false, true},
	} {
		t.Run(fmt.Sprintf("consent=%t, delta=%t, unified=%t", tc.consent, tc.delta, tc.unified), func(t *testing.T) {
			t.Parallel()
			backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
			t.Cleanup(backend.Close)
			credential, client := keyPair(t, "credential")
			at, secure := freeAddress(t), freeAddress(t)
			r := &relay{store: open(t, config(t, func(c *Config) { c.Secrets = tc.consent })), resources: map[string][]proto.Message{
				clusterType:  {edsCluster("web")},
				endpointType: {assignment(t, "web", backend.Listener.Addr().String())},
				listenerType: {httpListener(t, "in", at, "routes"), tlsListener(t, "secure", secure, "routes", "credential")},
				routeType:    {&routev3.RouteConfiguration{Name: "routes", VirtualHosts: []*routev3.VirtualHost{host("any", "*", "web")}}},
				secretType:   {credential},
			}}
			overTLS := func() (string, error) {
				resp, err := client.Get("https://" + secure)
				if err != nil {
					return "", err
				}
				defer func() { _ = resp.Body.Close() }() // read-only: closing cannot lose data
				b, err := io.ReadAll(resp.Body)
				return string(b), err
			}
			halt := run(t, r.store)
			stop, _ := startEnvoy(t, r.listen(t), tc.delta, tc.unified)
			if body, err := overTLS(); err != nil || body != "hello" {
				t.Fatalf("with the control plane: %q, %v", body, err)
			}
			eventually(t, "a snapshot", func() bool { return r.store.Usable() == nil })
			stop()
			halt()

			cold := &relay{store: open(t, r.store.cfg), serve: true}
			_, took := startEnvoy(t, cold.listen(t), tc.delta, tc.unified)
			t.Logf("Envoy was ready after %s", took)
			if status, body := get("http://"+at, "any"); status != 200 || body != "hello" {
				t.Errorf("without TLS: %d %q", status, body)
			}
			if body, err := overTLS(); (err == nil && body == "hello") != tc.consent {
				t.Errorf("over TLS: %q, %v", body, err)
			}
		})
	}
}

func pemOf(t *testing.T, c tls.Certificate) (chain, key []byte) {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// TestEnvoyWithoutExtension starts a real Envoy with a filter that is not stored. Requests through
// this filter are denied; others are not.
func TestEnvoyWithoutExtension(t *testing.T) {
	t.Parallel()
	envoytest.Binary(t)
	for _, tc := range []struct{ delta, unified bool }{{true, false}, {true, true}, {false, false}, {false, true}} {
		t.Run(fmt.Sprintf("delta=%t, unified=%t", tc.delta, tc.unified), func(t *testing.T) {
			t.Parallel()
			backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
			t.Cleanup(backend.Close)
			at, filtered := freeAddress(t), freeAddress(t)
			store := keep(t, config(t), func(s *stream) {
				s.give(clusterType, edsCluster("web"))
				s.give(endpointType, assignment(t, "web", backend.Listener.Addr().String()))
				s.give(listenerType, httpListener(t, "in", at, "routes"), extensionListener(t, "filtered", filtered, "routes", "gone"))
				s.give(routeType, &routev3.RouteConfiguration{Name: "routes", VirtualHosts: []*routev3.VirtualHost{host("any", "*", "web")}})
			})
			r := &relay{store: store, serve: true}
			startEnvoy(t, r.listen(t), tc.delta, tc.unified)
			if status, body := get("http://"+at, "any"); status != 200 || body != "hello" {
				t.Errorf("without the filter: %d %q", status, body)
			}
			if status, body := get("http://"+filtered, "any"); status == 200 {
				t.Errorf("through the missing filter: %d %q", status, body)
			}
		})
	}
}
