// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"cmp"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

const (
	parentTrace = "4bf92f3577b34da6a3ce929d0e0e4736"
	parentSpan  = "00f067aa0ba902b7"
	sampledW3C  = "traceparent: 00-" + parentTrace + "-" + parentSpan + "-01"
	droppedW3C  = "traceparent: 00-" + parentTrace + "-" + parentSpan + "-00"
	sampledB3   = "b3: " + parentTrace + "-" + parentSpan + "-1"
	droppedB3   = "b3: " + parentTrace + "-" + parentSpan + "-0"
)

// TestEnvoyFollowsParents sends requests with and without a parent through Envoys with different
// tracers. The parent decides, whatever the percentage of sampling. An Envoy that must not report
// spans forwards the headers as they are.
func TestEnvoyFollowsParents(t *testing.T) {
	t.Parallel()
	const silent = "100, disableSpanReporting: true"
	for i, tc := range []struct {
		tracer, percent, header string
		traced                  bool
	}{
		{"otlp", "0", sampledW3C, true},
		{"otlp", "0", droppedW3C, false},
		{"otlp", "0", "", false},
		{"otlp", "0.01", sampledW3C, true},
		{"otlp", "100", droppedW3C, false},
		{"otlp", "100", "", true},
		{"zipkin", "0", sampledB3, true},
		{"zipkin", "100", droppedB3, false},
		{"w3c", "0", sampledW3C, true},
		{"w3c", "0", sampledB3, true},
		{"w3c", "100", droppedW3C, false},
		{"otlp", silent, sampledW3C, false},
		{"zipkin", silent, sampledB3, false},
		{"otlp", silent, "", false},
	} {
		t.Run(tc.tracer+" "+tc.percent+" "+cmp.Or(tc.header, "no parent"), func(t *testing.T) {
			t.Parallel()
			r, _ := newRecorded(t, "0", "0")
			var mu sync.Mutex
			forwarded := map[string]http.Header{}
			app := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				forwarded[req.URL.Path] = req.Header
			}))
			defer app.Close()
			client, inbound, _ := recordingOf(t, fmt.Sprintf("127.81.5.%d", i+2), recordingMesh+fmt.Sprintf(`---
kind: Telemetry
metadata: {name: default, namespace: default}
spec:
  tracing:
  - {match: {mode: CLIENT}, providers: [{name: %[1]s}], randomSamplingPercentage: %[2]s}
  - {match: {mode: SERVER}, providers: [{name: %[1]s}], randomSamplingPercentage: 100}
`, tc.tracer, tc.percent), recordingSettings, strings.NewReplacer("PORT_APP", portOf(t, app.Listener.Addr()), "PORT_GRPC", r.grpcPort, "PORT_HTTP", r.httpPort))
			for n := range 10 { // Envoy reports spans in groups of five
				path := fmt.Sprintf("/out-%d", n)
				if status, body := get(t, client, "http://catalog:8080"+path, tc.header); status != http.StatusOK {
					t.Fatalf("%s: %d %s", path, status, body)
				}
				if status, body := get(t, http.DefaultClient, inbound, ""); status != http.StatusOK {
					t.Fatalf("inbound: %d %s", status, body)
				}
				mu.Lock()
				got := forwarded[path]
				mu.Unlock()
				name, value, _ := strings.Cut(tc.header, ": ")
				switch text := fmt.Sprint(got); {
				case strings.Contains(tc.percent, "disable"):
					for _, header := range []string{"traceparent", "b3", "x-b3-traceid"} {
						if got.Get(header) != "" && header != name {
							t.Errorf("an Envoy without spans adds %s: %s", header, got.Get(header))
						}
					}
					if got.Get(name) != value {
						t.Errorf("the header %s is %q, want %q", name, got.Get(name), value)
					}
				case tc.header != "" && !strings.Contains(text, parentTrace) || name == "traceparent" && got.Get(name) == value:
					t.Errorf("the request does not continue the trace: %v", got)
				}
			}
			r.await(t, "span", "/in")
			if tc.traced {
				parent := ""
				if tc.header != "" {
					parent = parentText(parentTrace, parentSpan)
				}
				for n := range 10 {
					r.await(t, "span", fmt.Sprintf("/out-%d", n), parent)
				}
				return
			}
			for _, line := range r.all() {
				if strings.Contains(line, "/out-") {
					t.Errorf("a span that must not be: %s", line)
				}
			}
		})
	}
}
