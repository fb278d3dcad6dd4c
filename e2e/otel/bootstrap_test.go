// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package otel

import (
	"fmt"
	"strings"
	"testing"

	"go.opentelemetry.io/collector/pdata/ptrace"
)

// TestBootstrapTracer has a tracer of ProxyConfig for all workloads, and a provider of a Telemetry
// object for one. Each request is reported once by each side, to the receiver of its tracer.
func TestBootstrapTracer(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ network, tracer, provider string }{
		"OTLP":   {"127.77.93", "openCensusAgent: {address: 127.0.0.1:GRPC}", "opentelemetry: {service: collector.observe.svc.cluster.local, port: 4317}"},
		"Zipkin": {"127.77.94", "zipkin: {address: 127.0.0.1:ZIPKIN}", "zipkin: {service: collector.observe.svc.cluster.local, port: 9411}"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			own, other := newCollector(t), newCollector(t)
			own.run(t)
			other.run(t)
			m := meshOf(t, mesh{tc.network, []string{"plain", "api"}}, other,
				"enableTracing: true\ndefaultConfig: {tracing: {sampling: 100, "+strings.NewReplacer("GRPC", own.grpcPort, "ZIPKIN", own.zipkinPort).Replace(tc.tracer)+"}}\n"+
					"extensionProviders: [{name: api, "+tc.provider+"}]",
				telemetryOf("api", "tracing: [{providers: [{name: api}]}]"))
			for i := range eachRequests {
				for _, from := range m.clients {
					m.get(t, from, fmt.Sprintf("/?%s-%d", from, i))
				}
			}
			sent := await(t, eachRequests, other.spans, of("api", ptrace.SpanKindClient))
			await(t, eachRequests, own.spans, of("plain", ptrace.SpanKindClient))
			received := await(t, 2*eachRequests, own.spans, of("catalog", ptrace.SpanKindServer))
			if here, there := len(own.spans()), len(other.spans()); here != 3*eachRequests || there != eachRequests {
				t.Errorf("the receiver of ProxyConfig has %d spans, that of the API %d, want %d and %d:\n%+v\n%+v", here, there, 3*eachRequests, eachRequests, own.spans(), other.spans())
			}
			for _, s := range sent {
				if len(only(append([]span(nil), received...), func(r span) bool { return r.trace == s.trace && r.parent == s.id })) != 1 {
					t.Errorf("the catalog does not continue %+v", s)
				}
			}
		})
	}
}
