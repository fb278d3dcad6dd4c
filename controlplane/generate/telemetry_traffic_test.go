// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	prometheusmodel "github.com/prometheus/common/model"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// countedObjects are those of a workload that counts requests. It refuses some, and some of the
// services that it calls have no endpoint, or are outside the mesh.
const countedObjects = `
---
kind: Telemetry
metadata: {name: mesh, namespace: istio-system}
spec:
  metrics:
  - providers: [{name: prometheus}]
    overrides: [{match: {metric: REQUEST_COUNT}, tagOverrides: {request_method: {value: request.method}, destination_port: {value: string(destination.port)}}}]
---
kind: AuthorizationPolicy
metadata: {name: refused, namespace: default}
spec:
  action: DENY
  rules: [{from: [{source: {namespaces: [refused]}}]}]
---
kind: ServiceEntry
metadata: {name: gone, namespace: default}
spec:
  hosts: [gone.default.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
---
kind: ServiceEntry
metadata: {name: outside, namespace: default}
spec:
  hosts: [outside.example.com]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1, ports: {http: PORT_APP}}]
`

// counted is a guarded workload that counts requests.
type counted struct {
	*guarded
	minor int // of the Envoy
}

func startCounted(t *testing.T) *counted {
	t.Helper()
	s := &counted{minor: envoyMinor(t)}
	if s.minor < 37 {
		t.Skipf("Envoy 1.%d cannot count requests", s.minor)
	}
	s.guarded = startGuarded(t, func(p *model.Proxy) { p.Envoy = fmt.Sprintf("1.%d.0", s.minor) })
	s.objects = strings.TrimSpace(s.objects) + strings.ReplaceAll(countedObjects, "PORT_APP", s.ports["APP"])
	s.put(t, snapshot.Input{})
	return s
}

// families returns Envoy's metrics.
func (s *counted) families(t *testing.T) map[string]*dto.MetricFamily {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+net.JoinHostPort(s.address, s.ports["ADMIN"])+"/stats/prometheus", nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := answer(http.DefaultClient, req)
	if err != nil {
		t.Fatal(err)
	}
	parser := expfmt.NewTextParser(prometheusmodel.UTF8Validation)
	out, err := parser.TextToMetricFamilies(strings.NewReader(body))
	if err != nil {
		t.Fatalf("%v:\n%s", err, body)
	}
	return out
}

// sum returns the sum of all series of a metric that have the given labels, "name=value name=value".
func (s *counted) sum(t *testing.T, name, labels string) (total float64, series int) {
	t.Helper()
	want := map[string]string{}
	for pair := range strings.FieldsSeq(labels) {
		k, v, _ := strings.Cut(pair, "=")
		want[k] = v
	}
	for _, m := range s.families(t)["envoy_istiocustom_"+name].GetMetric() {
		matched := 0
		for _, l := range m.GetLabel() {
			if v, ok := want[l.GetName()]; ok && v == l.GetValue() {
				matched++
			}
		}
		if matched == len(want) {
			series++
			total += m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return total, series
}

// waitCount waits until a metric with the labels has counted n.
func (s *counted) waitCount(t *testing.T, name, labels string, n float64) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s{%s} is %v", name, labels, n), func() bool {
		total, _ := s.sum(t, name, labels)
		return total == n
	})
}

// selfDescription returns the headers in which a client says that it is version 1 of the service "caller", as some
// workload.
func selfDescription(workload string) map[string]string {
	return map[string]string{"workload": workload, "app": "caller", "service": "caller", "account": "/sa/caller", "revision": "v1", "version": "v1", "cluster": "near"}
}

// request sends a request in which the client says that it is a workload.
func (s *counted) request(t *testing.T, client *http.Client, target, claim string) (status int, body string) {
	t.Helper()
	status, body, err := s.try(t, client, target, claim)
	if err != nil {
		t.Fatal(err)
	}
	return status, body
}

// try is request that may fail, for example while the listener is replaced.
func (s *counted) try(t *testing.T, client *http.Client, target, claim string) (status int, body string, err error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, target, nil)
	if err != nil {
		t.Fatal(err)
	}
	if claim != "" {
		for key, value := range selfDescription(claim) {
			req.Header.Set(envoyconf.PeerHeader+key, value)
		}
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = resp.Body.Close() }() // the body is read below
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

// TestEnvoyCountsRequests sends requests to and from a workload, and compares how they are counted.
func TestEnvoyCountsRequests(t *testing.T) {
	t.Parallel()
	s := startCounted(t)
	const caller = "spiffe://cluster.local/ns/shop/sa/caller"
	pair, _, _ := s.identity(t, caller)
	other, _, _ := s.identity(t, "spiffe://cluster.local/ns/refused/sa/caller")
	trusted, at := s.client(&pair, "http/1.1"), net.JoinHostPort(s.address, s.ports["HTTP"])
	eventually(t, "the policy is in force", func() bool {
		status, _, err := s.try(t, s.client(&other, "http/1.1"), "https://"+at+"/", "caller-v1")
		return err == nil && status == http.StatusForbidden
	})
	if _, body := s.request(t, trusted, "https://"+at+"/", "caller-v1"); strings.Contains(body, "peer:") {
		t.Errorf("the application sees the headers of proxies: %s", body)
	}
	if _, body := s.request(t, s.client(nil), "http://"+at+"/", "forged"); strings.Contains(body, "peer:") {
		t.Errorf("the application sees the headers of proxies: %s", body)
	}
	claim, cluster, tags := "caller-v1", "near", " request_method=GET destination_port="+s.ports["HTTP"]
	if s.minor < 39 {
		claim, cluster, tags = "", "", "" // the number of series is not limited
	}
	common := "reporter=destination request_protocol=http destination_principal=spiffe://cluster.local/ns/default/sa/default" + tags
	mutual := " source_principal=" + caller + " connection_security_policy=mutual_tls source_cluster=" + cluster + " source_workload=" + claim
	s.waitCount(t, "istio_requests_total", common+mutual+" response_code=200", 1)
	s.waitCount(t, "istio_request_duration_milliseconds", "reporter=destination"+mutual+" response_code=200", 1)
	denied := strings.ReplaceAll(mutual, "/ns/shop/", "/ns/refused/") + " response_code=403"
	if total, _ := s.sum(t, "istio_requests_total", common+denied); total < 1 {
		t.Error("denied requests are not counted")
	}
	s.waitCount(t, "istio_requests_total", "reporter=destination source_principal= source_workload= connection_security_policy=none response_code=200", 1)

	out := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: s.address + ":" + s.ports["PROXY"]})}}
	for _, c := range []struct {
		host   string
		status int
		labels string
	}{
		{"app.default", 200, "destination_service=app.default.svc.cluster.local destination_service_namespace=default destination_principal= response_flags=-"},
		{"far.default", 200, "destination_service=far.default.svc.cluster.local destination_principal=spiffe://cluster.local/ns/default/sa/far source_principal=spiffe://cluster.local/ns/default/sa/default destination_workload_namespace=default"},
		{"gone.default", 503, "destination_service=gone.default.svc.cluster.local response_flags=UH"},
		{"outside.example.com", 200, "destination_service=outside.example.com response_flags=-"},
		{"nobody.example.com", 502, "destination_service=unknown destination_service_name=ForwardProxyCluster"},
	} {
		status, body := s.request(t, out, "http://"+c.host+"/", "forged")
		if status != c.status || strings.Contains(body, "forged") || c.host == "outside.example.com" && strings.Contains(body, "peer:") {
			t.Errorf("%s: status %d, %q", c.host, status, body)
		}
		s.waitCount(t, "istio_requests_total", fmt.Sprintf("reporter=source connection_security_policy=unknown response_code=%d %s", c.status, c.labels), 1)
	}
}

// TestEnvoyCountsConnections sends data over connections whose requests are not read.
func TestEnvoyCountsConnections(t *testing.T) {
	t.Parallel()
	s := startCounted(t)
	const caller = "spiffe://cluster.local/ns/shop/sa/caller"
	pair, _, _ := s.identity(t, caller)
	const labels = "reporter=destination request_protocol=tcp connection_security_policy=mutual_tls source_principal=" + caller
	eventually(t, "a connection is counted", func() bool {
		got := s.greeted(pair)
		total, _ := s.sum(t, "istio_tcp_connections_closed_total", labels)
		return got == greeting && total > 0
	})
	opened, _ := s.sum(t, "istio_tcp_connections_opened_total", labels)
	eventually(t, "its bytes are counted", func() bool {
		bytes, _ := s.sum(t, "istio_tcp_sent_bytes_total", labels)
		return opened > 0 && bytes >= float64(len(greeting))
	})
}

// TestEnvoyBoundsSeries sends requests of a client that claims to be many workloads. Only claims that
// agree with its identity count, so that it takes few of the series, and the next client has its own.
func TestEnvoyBoundsSeries(t *testing.T) {
	t.Parallel()
	s := startCounted(t)
	pair, _, _ := s.identity(t, "spiffe://cluster.local/ns/shop/sa/caller")
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}}}} //nolint:gosec // the server is not what is examined
	t.Cleanup(client.CloseIdleConnections)
	at := "https://" + net.JoinHostPort(s.address, s.ports["HTTP"]) + "/"
	eventually(t, "requests are counted", func() bool {
		_, _, err := s.try(t, client, at, "caller")
		_, series := s.sum(t, "istio_requests_total", "")
		return err == nil && series > 0
	})
	said := func(key, value string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, at, nil)
		if err != nil {
			t.Fatal(err)
		}
		for k, v := range selfDescription("caller") {
			req.Header.Set(envoyconf.PeerHeader+k, v)
		}
		for k := range strings.FieldsSeq(key) {
			req.Header.Set(envoyconf.PeerHeader+k, value)
		}
		if _, err := answer(client, req); err != nil {
			t.Fatal(err)
		}
	}
	const each = 300
	for i := range each {
		for _, keys := range []string{"workload", "app", "version", "service", "revision", "cluster", "account", "revision version", "service app workload account"} {
			said(keys, fmt.Sprintf("caller-v%d", i))
		}
	}
	for i := range 20 { // the forms that agree, and some that do not
		said("revision version", fmt.Sprintf("v%d", i))
		said("workload", fmt.Sprintf("caller-v%d", i))
	}
	const most = 2*28 + 1 // descriptions with the own cluster and without one, and none
	_, series := s.sum(t, "istio_requests_total", "source_principal=spiffe://cluster.local/ns/shop/sa/caller")
	if s.minor < 39 && series > 1 || series > most {
		t.Errorf("one identity has %d series, want at most %d", series, most)
	}
	if _, agreed := s.sum(t, "istio_requests_total", "source_workload=caller source_version=v9"); s.minor >= 39 && agreed != 1 {
		t.Errorf("%d series of a description that agrees, want 1", agreed)
	}
	other, _, _ := s.identity(t, "spiffe://cluster.local/ns/shop/sa/other")
	s.request(t, s.client(&other, "http/1.1"), at, "")
	s.waitCount(t, "istio_requests_total", "reporter=destination source_principal=spiffe://cluster.local/ns/shop/sa/other", 1)
	if dropped := s.families(t)["envoy_server_stats_overflow_counter"].GetMetric(); len(dropped) > 0 && dropped[0].GetCounter().GetValue() > 0 {
		t.Errorf("Envoy dropped metrics: %v", dropped)
	}
}
