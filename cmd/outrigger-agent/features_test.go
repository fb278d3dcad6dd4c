// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/xdsproxy/nds"
)

// TestProxyConsumesNamesAndRoots checks that types that the agent consumes reach its components,
// names the DNS proxy and roots the secrets, and that Envoy receives none of them.
func TestProxyConsumesNamesAndRoots(t *testing.T) {
	t.Parallel()
	const address = "127.77.44.10"
	cp, other := newControlPlane(t), newControlPlane(t)
	table := &nds.Table{Hosts: map[string]nds.Host{"catalog.default.svc.cluster.local": {IPs: []string{"10.1.2.3"}, Registry: nds.Kubernetes, Shortname: "catalog", Namespace: "default"}}}
	roots, err := anypb.New(&meshv1alpha1.ProxyConfig{CaCertificatesPem: []string{string(other.rootPEM())}})
	if err != nil {
		t.Fatal(err)
	}
	cp.resources = map[string][]*discoveryv3.Resource{
		nds.TypeURL:     {{Name: "names", Resource: &anypb.Any{TypeUrl: nds.TypeURL, Value: table.Marshal()}}},
		typeProxyConfig: {{Name: "roots", Resource: roots}},
	}
	dir := t.TempDir()
	a := startAgent(t, address, `,"terminationDrainDuration":"0s"`, cp,
		"ISTIO_META_DNS_CAPTURE=true", "PROXY_CONFIG_XDS_AGENT=true", "OUTPUT_CERTS="+dir, "KUBERNETES_SERVICE_HOST=10.0.0.1")
	a.waitReady()
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, address+":15053")
	}}
	if ips, err := resolver.LookupHost(t.Context(), "catalog.default.svc.cluster.local."); err != nil || !slices.Equal(ips, []string{"10.1.2.3"}) {
		t.Errorf("catalog resolves to %q, %v", ips, err)
	}
	if code, body := a.get(15020, "/debug/ndsz"); code != http.StatusOK || !strings.Contains(body, "10.1.2.3") {
		t.Errorf("/debug/ndsz: got %d %s", code, body)
	}
	eventually(t, "both roots are written", func() bool {
		doc, err := os.ReadFile(dir + "/root-cert.pem")
		if err != nil {
			return false
		}
		chain, err := certs.ParseChain(doc)
		return err == nil && len(chain) == 2
	})
}

// TestProxyReportsHealth checks that without a kubelet, the agent reports the health of the
// application to the control plane.
func TestProxyReportsHealth(t *testing.T) {
	t.Parallel()
	cp := newControlPlane(t)
	var sick atomic.Bool
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if sick.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer app.Close()
	_, port, err := net.SplitHostPort(app.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	a := startAgent(t, "127.77.44.11", `,"terminationDrainDuration":"0s","readinessProbe":{"periodSeconds":1,"failureThreshold":1,"httpGet":{"host":"127.0.0.1","port":`+port+`}}`, cp)
	a.waitReady()
	reports := func() []string {
		cp.mu.Lock()
		defer cp.mu.Unlock()
		return slices.Clone(cp.reports)
	}
	eventually(t, "the application is healthy", func() bool { r := reports(); return len(r) > 0 && r[len(r)-1] == "" })
	sick.Store(true)
	eventually(t, "the application is not", func() bool { r := reports(); return strings.Contains(r[len(r)-1], "503") })
	sick.Store(false)
	eventually(t, "the application is healthy again", func() bool { r := reports(); return r[len(r)-1] == "" })
}
