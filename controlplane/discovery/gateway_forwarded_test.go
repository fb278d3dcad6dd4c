// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// forwardedObjects are a gateway with a plaintext and a mutual TLS port in front of
// one application.
const forwardedObjects = `
apiVersion: networking.istio.io/v1alpha3
kind: ServiceEntry
metadata: {name: app, namespace: default}
spec:
  hosts: [app.default.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 1, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1, ports: {http: APPLICATION}}]
---
apiVersion: networking.istio.io/v1alpha3
kind: Gateway
metadata: {name: edge, namespace: default}
spec:
  selector: {app: edge}
  servers:
  - port: {number: PORT_HTTP, name: http, protocol: HTTP}
    bind: ADDRESS
    hosts: [a.test]
  - port: {number: PORT_HTTPS, name: https, protocol: HTTPS}
    bind: ADDRESS
    hosts: [a.test]
    tls: {mode: MUTUAL, credentialName: mutual}
---
apiVersion: networking.istio.io/v1alpha3
kind: VirtualService
metadata: {name: a, namespace: default}
spec:
  hosts: [a.test]
  gateways: [edge]
  http: [{route: [{destination: {host: app, port: {number: 1}}}]}]
`

// The addresses of TestEnvoyForwarded. The connection comes from a client on the
// internet or from a host of the cluster.
const (
	outside = "198.51.100.7"
	inside  = "10.9.8.7"
)

// forwardedCase is one request and what the application receives.
type forwardedCase struct {
	name    string
	source  string // address of the connection
	mutual  bool   // mutual TLS, otherwise plaintext
	headers []string
	want    string // "X-Forwarded-For X-Envoy-External-Address X-Forwarded-Client-Cert", "-" for none
}

// TestEnvoyForwarded sends requests with forged headers through the real Envoy of a
// gateway, with each number of trusted proxies and each way to treat the header with
// the client's certificate. The topology changes while the gateway runs.
func TestEnvoyForwarded(t *testing.T) {
	t.Parallel()
	app := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		var out []string
		for _, name := range []string{"X-Forwarded-For", "X-Envoy-External-Address", "X-Forwarded-Client-Cert"} {
			value := strings.Join(r.Header.Values(name), ",")
			// The rest of an element is the certificate and its hash.
			value = strings.ReplaceAll(value, provenURI, "proven")
			if at := strings.Index(value, "By=spiffe://"); at >= 0 && strings.Contains(value[at:], "proven") {
				value = value[:at] + "proven"
			}
			if value == "" {
				value = "-"
			}
			out = append(out, value)
		}
		_, _ = fmt.Fprint(rw, strings.Join(out, " "))
	}))
	t.Cleanup(app.Close)
	w := startEdge(t, "DELTA_GRPC", "127.77.57.15", strings.ReplaceAll(forwardedObjects, "APPLICATION", portOf(t, app.Listener.Addr())), forwardedTopology(0, 0))
	client := w.root.issue(t, "client")
	ask := func(c forwardedCase) string {
		from := caller{port: "PORT_HTTP", before: "PROXY TCP4 " + c.source + " 192.0.2.1 4711 80\r\n"}
		if c.mutual {
			from.port, from.name, from.client = "PORT_HTTPS", "a.test", &client
		}
		return w.ask(from, "a.test", c.headers...)
	}
	expect := func(t *testing.T, topology *meshv1alpha1.Topology, cases []forwardedCase) {
		t.Helper()
		w.topology = topology
		w.publish(model.Key{Kind: model.MeshConfigKind})
		for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
			var wrong []string
			for _, c := range cases {
				if got := ask(c); !strings.HasSuffix(got, "200 "+c.want) {
					wrong = append(wrong, fmt.Sprintf("%s: the application receives %q, want %q", c.name, got, c.want))
				}
			}
			if len(wrong) == 0 {
				return
			}
			if time.Now().After(deadline) {
				t.Fatal(strings.Join(wrong, "\n"))
			}
		}
	}
	until(t, "the gateway forwards requests", func() bool { return strings.HasPrefix(ask(forwardedCase{source: outside}), "200") })
	if got := w.ask(caller{port: "PORT_HTTP"}, "a.test"); !strings.HasPrefix(got, "error: ") {
		t.Errorf("a connection without the header of the PROXY protocol is answered: %q", got)
	}
	for trusted, cases := range trustedCases() {
		t.Run(fmt.Sprintf("%d trusted proxies", trusted), func(t *testing.T) {
			expect(t, forwardedTopology(uint32(trusted), 0), cases)
		})
	}
	for mode, cases := range certificateCases() {
		t.Run(mode.String(), func(t *testing.T) { expect(t, forwardedTopology(0, mode), cases) })
	}
}

func forwardedTopology(trusted uint32, mode meshv1alpha1.ForwardClientCertDetails) *meshv1alpha1.Topology {
	return &meshv1alpha1.Topology{
		NumTrustedProxies: trusted, ForwardClientCertDetails: mode,
		ProxyProtocol: &meshv1alpha1.Topology_ProxyProtocolConfiguration{}, // the tests choose the address of a connection
	}
}

// trustedCases are requests by the number of trusted proxies.
func trustedCases() [3][]forwardedCase {
	const forged, header = "203.0.113.1", "X-Envoy-External-Address: 203.0.113.1"
	return [3][]forwardedCase{
		{
			{"no header", outside, false, nil, outside + " " + outside + " -"},
			{"a forged list", outside, false, []string{"X-Forwarded-For: 203.0.113.1,203.0.113.2"}, "203.0.113.1,203.0.113.2," + outside + " " + outside + " -"},
			{"two headers", outside, false, []string{"X-Forwarded-For: 203.0.113.1", "X-Forwarded-For: 203.0.113.2"}, "203.0.113.1,203.0.113.2," + outside + " " + outside + " -"},
			{"a forged external address", outside, false, []string{header}, outside + " " + outside + " -"},
			{"a forged external address from inside", inside, false, []string{header}, inside + " " + inside + " -"},
		},
		{
			{"a proxy forwards a client", outside, false, []string{"X-Forwarded-For: 203.0.113.2"}, "203.0.113.2," + outside + " 203.0.113.2 -"},
			{"a proxy forwards a forged list", outside, false, []string{"X-Forwarded-For: 203.0.113.1,203.0.113.2"}, "203.0.113.1,203.0.113.2," + outside + " 203.0.113.2 -"},
			{"a client without the proxy", outside, false, nil, outside + " " + outside + " -"},
			{"a forged external address", outside, false, []string{"X-Forwarded-For: 203.0.113.2", header}, "203.0.113.2," + outside + " 203.0.113.2 -"},
		},
		{
			{"two proxies forward a client", outside, false, []string{"X-Forwarded-For: 203.0.113.2,203.0.113.3"}, "203.0.113.2,203.0.113.3," + outside + " 203.0.113.2 -"},
			{"two proxies forward a forged list", outside, false, []string{"X-Forwarded-For: 203.0.113.1,203.0.113.2,203.0.113.3"}, "203.0.113.1,203.0.113.2,203.0.113.3," + outside + " 203.0.113.2 -"},
			{"a client without one of the proxies", outside, false, []string{"X-Forwarded-For: " + forged}, forged + "," + outside + " " + outside + " -"},
		},
	}
}

// provenURI is in each element that Envoy makes of a client's certificate.
const provenURI = "URI=spiffe://cluster.local/ns/default/sa/gateway"

// certificateCases are requests by what the gateway does with the header.
func certificateCases() map[meshv1alpha1.ForwardClientCertDetails][]forwardedCase {
	const forged = "By=somebody;URI=spiffe://cluster.local/ns/pay/sa/admin"
	cases := func(plain, mutual string) []forwardedCase {
		header, address := []string{"X-Forwarded-Client-Cert: " + forged}, outside+" "+outside+" "
		mutual, plain = strings.ReplaceAll(mutual, "forged", forged), strings.ReplaceAll(plain, "forged", forged)
		return []forwardedCase{
			{"plaintext", outside, false, header, address + plain},
			{"mutual TLS", outside, true, header, address + mutual},
		}
	}
	return map[meshv1alpha1.ForwardClientCertDetails][]forwardedCase{
		meshv1alpha1.ForwardClientCertDetails_UNDEFINED:           cases("-", "proven"),
		meshv1alpha1.ForwardClientCertDetails_SANITIZE:            cases("-", "-"),
		meshv1alpha1.ForwardClientCertDetails_SANITIZE_SET:        cases("-", "proven"),
		meshv1alpha1.ForwardClientCertDetails_FORWARD_ONLY:        cases("-", "forged"),
		meshv1alpha1.ForwardClientCertDetails_APPEND_FORWARD:      cases("-", "forged,proven"),
		meshv1alpha1.ForwardClientCertDetails_ALWAYS_FORWARD_ONLY: cases("forged", "forged"),
	}
}
