// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package e2e

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// TestShopCountsRequests sends requests through the shop and compares the metrics of the agents of
// both sides, label by label, with the default configuration.
func TestShopCountsRequests(t *testing.T) {
	s := startShop(t)
	client := throughProxy(t, "127.1.0.2")
	const n = 5
	for range n {
		code, body, _, err := get(t.Context(), client, "http://catalog:8080/", http.Header{"X-Version": {"v2"}, "X-Outrigger-Peer-Workload": {"forged"}})
		if err != nil || code != http.StatusOK {
			t.Fatalf("status %d: %v\n%s\n%s", code, err, body, s.out.String())
		}
	}
	const frontend, catalog = "spiffe://cluster.local/ns/default/sa/frontend", "spiffe://cluster.local/ns/default/sa/catalog"
	common := map[string]string{
		"source_workload": "frontend", "source_workload_namespace": "default", "source_principal": frontend, "source_app": "frontend", "source_version": "unknown",
		"source_cluster": "unknown", "source_canonical_service": "frontend", "source_canonical_revision": "latest",
		"destination_workload": "catalog-v2", "destination_workload_namespace": "default", "destination_principal": catalog, "destination_app": "catalog", "destination_version": "v2",
		"destination_cluster": "unknown", "destination_canonical_service": "catalog", "destination_canonical_revision": "v2",
		"destination_service": "catalog.default.svc.cluster.local", "destination_service_name": "catalog.default.svc.cluster.local", "destination_service_namespace": "default",
		"request_protocol": "http", "response_code": "200", "response_flags": "-",
	}
	for address, own := range map[string]map[string]string{
		"127.1.0.2": {"reporter": "source", "connection_security_policy": "unknown"},
		"127.1.0.4": {"reporter": "destination", "connection_security_policy": "mutual_tls"},
	} {
		want := maps.Clone(common)
		maps.Copy(want, own)
		for _, name := range []string{"istio_requests_total", "istio_request_duration_milliseconds", "istio_request_bytes", "istio_response_bytes"} {
			s.waitForSeries(address+":15020", name, want, n)
			s.waitForSeries(address+":15090", name, want, n)
		}
	}
}

// waitForSeries waits until an address of a workload exposes a metric with exactly these labels and a
// count of at least n requests.
func (s *shop) waitForSeries(address, name string, labels map[string]string, n float64) {
	s.t.Helper()
	var last string
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		code, body, _, err := get(s.t.Context(), http.DefaultClient, "http://"+address+"/stats/prometheus", nil)
		if err != nil || code != http.StatusOK {
			last = body
			continue
		}
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(strings.NewReader(body))
		if err != nil {
			s.t.Fatalf("%s: %v\n%s", address, err, body)
		}
		last = ""
		for _, m := range families[name].GetMetric() {
			got := labelsOf(m)
			if maps.Equal(got, labels) && m.GetCounter().GetValue()+float64(m.GetHistogram().GetSampleCount()) >= n { // the shop also sends its own
				return
			}
			for _, label := range slices.Sorted(maps.Keys(got)) {
				if got[label] != labels[label] {
					last += label + "=" + got[label] + " "
				}
			}
			last += m.String() + "\n"
		}
	}
	s.t.Fatalf("%s has no %s with the labels %v and %v requests or more: %s", address, name, labels, n, last)
}

// labelsOf returns the labels of a series that have a value.
func labelsOf(m *dto.Metric) map[string]string {
	out := map[string]string{}
	for _, l := range m.GetLabel() {
		if l.GetValue() != "" {
			out[l.GetName()] = l.GetValue()
		}
	}
	return out
}
