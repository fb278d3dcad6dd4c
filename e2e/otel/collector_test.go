// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package otel

import (
	"context"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/open-telemetry/opentelemetry-collector-contrib/receiver/zipkinreceiver"
	"go.opentelemetry.io/collector/client"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/receiver/receivertest"

	"github.com/outrigger-mesh/outrigger/e2e/ownnet"
)

// collector keeps what receivers of a real collector receive.
type collector struct {
	grpcPort, httpPort, zipkinPort string
	traces                         consumertest.TracesSink
	logs                           consumertest.LogsSink
}

// span is a span as the collector passes it on, with what belongs to it.
type span struct {
	service, name, trace, id, parent string
	kind                             ptrace.SpanKind
	attributes, resource             map[string]any
	tenant                           []string // the header x-tenant of the request that brought it
}

// url returns what the span says was requested.
func (s span) url() string {
	text, _ := s.attributes["http.url"].(string)
	return text
}

// record is a record of a log with its resource.
type record struct {
	body                 string
	attributes, resource map[string]any
}

// newCollector reserves the ports of a collector.
func newCollector(t *testing.T) *collector {
	t.Helper()
	c := &collector{}
	for _, port := range []*string{&c.grpcPort, &c.httpPort, &c.zipkinPort} {
		var err error
		if *port, err = ownnet.FreePort("127.0.0.1"); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// run starts the receivers for OTLP and Zipkin. They run until the test ends or stop is called.
func (c *collector) run(t *testing.T) (stop func()) {
	t.Helper()
	var running []component.Component
	start := func(r component.Component, err error) {
		t.Helper()
		if err == nil {
			err = r.Start(context.Background(), componenttest.NewNopHost()) // the context is for the start only
		}
		if err != nil {
			t.Fatal(err)
		}
		running = append(running, r)
	}
	configured := func(f receiver.Factory, settings map[string]any) component.Config {
		t.Helper()
		config := f.CreateDefaultConfig()
		if err := confmap.NewFromStringMap(settings).Unmarshal(config); err != nil {
			t.Fatal(err)
		}
		return config
	}
	endpoint := func(port string) map[string]any {
		return map[string]any{"endpoint": net.JoinHostPort("127.0.0.1", port), "include_metadata": true}
	}
	for _, port := range []string{c.grpcPort, c.httpPort, c.zipkinPort} { // an earlier run used them
		l, err := ownnet.Listen("127.0.0.1:" + port)
		if err != nil {
			t.Fatal(err)
		}
		_ = l.Close() // the receiver listens
	}
	otlp, zipkin := otlpreceiver.NewFactory(), zipkinreceiver.NewFactory()
	config := configured(otlp, map[string]any{"protocols": map[string]any{"grpc": endpoint(c.grpcPort), "http": endpoint(c.httpPort)}})
	traces, err := otlp.CreateTraces(t.Context(), receivertest.NewNopSettings(otlp.Type()), config, &c.traces)
	if err != nil {
		t.Fatal(err)
	}
	logs, err := otlp.CreateLogs(t.Context(), receivertest.NewNopSettings(otlp.Type()), config, &c.logs)
	start(logs, err)
	start(traces, nil) // the same receiver: one configuration
	start(zipkin.CreateTraces(t.Context(), receivertest.NewNopSettings(zipkin.Type()), configured(zipkin, endpoint(c.zipkinPort)), &c.traces))
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		for _, r := range slices.Backward(running) {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
			if err := r.Shutdown(ctx); err != nil {
				t.Error(err)
			}
			cancel()
		}
	}
	t.Cleanup(stop)
	return stop
}

// spans returns the spans that were received, in their order.
func (c *collector) spans() (out []span) {
	contexts := c.traces.Contexts()
	for i, traces := range c.traces.AllTraces() {
		if i >= len(contexts) {
			break // it arrived just now
		}
		for _, of := range traces.ResourceSpans().All() {
			resource := of.Resource().Attributes().AsRaw()
			service, _ := resource["service.name"].(string)
			for _, scope := range of.ScopeSpans().All() {
				for _, s := range scope.Spans().All() {
					out = append(out, span{
						service: service, name: s.Name(), kind: s.Kind(), resource: resource, attributes: s.Attributes().AsRaw(),
						trace: s.TraceID().String(), id: s.SpanID().String(), parent: s.ParentSpanID().String(),
						tenant: client.FromContext(contexts[i]).Metadata.Get("x-tenant"),
					})
				}
			}
		}
	}
	return out
}

// records returns the records of logs that were received.
func (c *collector) records() (out []record) {
	for _, logs := range c.logs.AllLogs() {
		for _, of := range logs.ResourceLogs().All() {
			for _, scope := range of.ScopeLogs().All() {
				for _, r := range scope.LogRecords().All() {
					out = append(out, record{r.Body().AsString(), r.Attributes().AsRaw(), of.Resource().Attributes().AsRaw()})
				}
			}
		}
	}
	return out
}

// only returns the items of a list for which ok is true.
func only[T any](list []T, ok func(T) bool) []T {
	return slices.DeleteFunc(list, func(item T) bool { return !ok(item) })
}

// await waits until a list has at least n items for which ok is true, and returns these.
func await[T any](t *testing.T, n int, list func() []T, ok func(T) bool) []T {
	t.Helper()
	for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		all := list()
		if got := only(slices.Clone(all), ok); len(got) >= n {
			return got
		}
		if time.Now().After(deadline) {
			t.Fatalf("not %d such items within 3 minutes: %+v", n, all)
		}
	}
}
