// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package otel

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/ptrace"
)

const spansSettings = `
defaultConfig: {proxyMetadata: {OTEL_RESOURCE_ATTRIBUTES: deployment.environment=test}}
extensionProviders:
- {name: grpc, opentelemetry: {service: collector.observe.svc.cluster.local, port: 4317, resourceDetectors: {environment: {}}, grpc: {initialMetadata: [{name: x-tenant, value: g}]}}}
- {name: http, opentelemetry: {service: collector.observe.svc.cluster.local, port: 4318, http: {path: /v1/traces, headers: [{name: x-tenant, value: h}]}}}
- {name: sampler, opentelemetry: {service: collector.observe.svc.cluster.local, port: 4318, http: {path: /v1/traces}, dynatraceSampler: {tenant: shop, clusterId: 7, httpService: {service: sampling.observe.svc.cluster.local, port: 80, http: {path: /sampling}}}}}
`

const samplingEntry = `---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: sampling, namespace: observe}
spec:
  hosts: [sampling.observe.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1, ports: {http: PORT}}]
`

const eachRequests = 10 // from each client; Envoy reports spans in groups of five

// TestSpans has the Envoys of a mesh send spans, as Telemetry objects and providers say.
func TestSpans(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/sampling" {
			asked.Add(1)
		}
		_, _ = io.WriteString(w, `{"rootSpansPerMinute": 1000}`) // the client may have gone
	}))
	defer api.Close()
	c := newCollector(t)
	c.run(t)
	m := meshOf(t, mesh{"127.77.91", []string{"grpc", "http", "never", "silent", "sampler"}}, c, spansSettings,
		strings.Replace(samplingEntry, "PORT", api.URL[strings.LastIndexByte(api.URL, ':')+1:], 1)+
			telemetryOf("grpc", `tracing: [{providers: [{name: grpc}], randomSamplingPercentage: 100, customTags: {who: {header: {name: x-a, defaultValue: nobody}}, fixed: {literal: {value: here}}}}]`)+
			telemetryOf("http", `tracing: [{providers: [{name: http}], randomSamplingPercentage: 100}]`)+
			telemetryOf("never", `tracing: [{providers: [{name: grpc}], randomSamplingPercentage: 0}]`)+
			telemetryOf("silent", `tracing: [{providers: [{name: grpc}], randomSamplingPercentage: 100, disableSpanReporting: true}]`)+
			telemetryOf("sampler", `tracing: [{providers: [{name: sampler}], randomSamplingPercentage: 0}]`)+
			telemetryOf("catalog", `tracing: [{providers: [{name: grpc}], randomSamplingPercentage: 100}]`))
	for i := range eachRequests {
		for _, from := range m.clients {
			if code := m.get(t, from, fmt.Sprintf("/?%s-%d", from, i), "x-a: me"); code != http.StatusOK {
				t.Errorf("request %d from %s: %d, want 200", i, from, code)
			}
		}
	}
	t.Run("gRPC", func(t *testing.T) { traced(t, c, "grpc", "g") })
	t.Run("HTTP", func(t *testing.T) { traced(t, c, "http", "h") })
	t.Run("tags and detected attributes", func(t *testing.T) {
		for _, s := range await(t, eachRequests, c.spans, of("grpc", ptrace.SpanKindClient)) {
			for name, want := range map[string]any{
				"who": "me", "fixed": "here", "http.method": "GET", "http.status_code": "200", "istio.canonical_service": "grpc", "istio.namespace": "default",
			} {
				if s.attributes[name] != want {
					t.Errorf("the tag %s is %v, want %v", name, s.attributes[name], want)
				}
			}
			if got := s.resource["deployment.environment"]; got != "test" {
				t.Errorf("the resource has deployment.environment=%v: %v", got, s.resource)
			}
		}
		for _, s := range await(t, 1, c.spans, of("http", ptrace.SpanKindClient)) {
			if s.attributes["who"] != nil || s.resource["deployment.environment"] != nil {
				t.Errorf("a provider without detectors, an object without tags: %+v", s)
			}
		}
	})
	t.Run("nothing", func(t *testing.T) { c.nothing(t, m) })
	t.Run("sampler", func(t *testing.T) {
		traced(t, c, "sampler", "")
		for _, s := range await(t, eachRequests, c.spans, of("sampler", ptrace.SpanKindClient)) {
			if s.attributes["supportability.atm_sampling_ratio"] == nil {
				t.Errorf("another sampler decided: %v", s.attributes)
			}
		}
		for deadline := time.Now().Add(3 * time.Minute); asked.Load() == 0; time.Sleep(50 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("the sampler asked no service")
			}
		}
	})
}

// of selects the spans of one kind of a workload.
func of(workload string, kind ptrace.SpanKind) func(span) bool {
	return func(s span) bool { return s.service == workload+".default" && s.kind == kind }
}

// traced checks that each request of a client has one span of each side, in one trace.
func traced(t *testing.T, c *collector, from, tenant string) {
	t.Helper()
	sent := await(t, eachRequests, c.spans, of(from, ptrace.SpanKindClient))
	received := await(t, eachRequests, c.spans, func(s span) bool {
		return of("catalog", ptrace.SpanKindServer)(s) && strings.Contains(s.url(), "/?"+from+"-")
	})
	if len(sent) != eachRequests || len(received) != eachRequests {
		t.Errorf("%d spans of %s and %d of the catalog, want %d each", len(sent), from, len(received), eachRequests)
	}
	traces := map[string]bool{}
	for _, s := range sent {
		traces[s.trace] = true
		if s.name != "catalog.default.svc.cluster.local:8080/*" || s.parent != "" || tenant != "" && !slices.Equal(s.tenant, []string{tenant}) {
			t.Errorf("a span of %s: %+v", from, s)
		}
		i := slices.IndexFunc(received, func(r span) bool { return r.url() == s.url() })
		if i < 0 {
			t.Errorf("the catalog has no span of %s", s.url())
		} else if r := received[i]; r.trace != s.trace || r.parent != s.id {
			t.Errorf("%s: the catalog continues %s/%s, want %s/%s", s.url(), r.trace, r.parent, s.trace, s.id)
		}
	}
	if len(traces) != eachRequests {
		t.Errorf("%d traces of %d requests", len(traces), eachRequests)
	}
}

// nothing checks that there are no spans of requests that are not sampled, and of a workload that
// reports none. The last request is of a trace that an application decided to sample.
func (c *collector) nothing(t *testing.T, m mesh) {
	const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	m.get(t, "never", "/?decided", "traceparent: 00-"+trace+"-00f067aa0ba902b7-01")
	for _, kind := range []ptrace.SpanKind{ptrace.SpanKindClient, ptrace.SpanKindServer} {
		await(t, 1, c.spans, func(s span) bool { return s.trace == trace && s.kind == kind && strings.Contains(s.url(), "/?decided") })
	}
	await(t, eachRequests, c.spans, func(s span) bool { // the catalog begins these traces
		return of("catalog", ptrace.SpanKindServer)(s) && strings.Contains(s.url(), "/?silent-") && s.parent == ""
	})
	for _, s := range c.spans() {
		if strings.Contains(s.url(), "/?never-") || s.service == "silent.default" {
			t.Errorf("a span that must not be: %+v", s)
		}
	}
}
