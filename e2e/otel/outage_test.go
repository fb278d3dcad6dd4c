// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package otel

import (
	"bytes"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/e2e/ownnet"
)

const outageSettings = `
extensionProviders:
- {name: grpc, opentelemetry: {service: collector.observe.svc.cluster.local, port: 4317}}
- {name: http, opentelemetry: {service: collector.observe.svc.cluster.local, port: 4318, http: {path: /v1/traces}}}
- {name: log, envoyOtelAls: {service: collector.observe.svc.cluster.local, port: 4317, logFormat: {text: "log %REQ(:path)%"}}}
`

// TestCollectorOutage has a collector that reads and never answers, ends, comes back, ends and comes
// back again. Requests always succeed. What it did not answer is lost, and what happens later arrives.
func TestCollectorOutage(t *testing.T) {
	t.Parallel()
	c := newCollector(t)
	h := hang(t, c.grpcPort, c.httpPort)
	m := meshOf(t, mesh{"127.77.92", []string{"grpc", "http"}}, c, outageSettings,
		telemetryOf("grpc", "tracing: [{providers: [{name: grpc}], randomSamplingPercentage: 100}]\naccessLogging: [{providers: [{name: log}]}]")+
			telemetryOf("http", "tracing: [{providers: [{name: http}], randomSamplingPercentage: 100}]"))
	request := func(n int, path string) {
		t.Helper()
		for range n {
			for _, from := range m.clients {
				if code := m.get(t, from, "/?"+path+"-"+from); code != 200 {
					t.Fatalf("%s from %s: %d", path, from, code)
				}
			}
		}
	}
	request(1, "first")
	h.await(t, "http://catalog:8080/?first-grpc", "http://catalog:8080/?first-http", "log /?first-grpc")
	request(300, "hung")
	h.stop()
	for _, path := range []string{"back", "again"} {
		request(30, "gone")
		stop := c.run(t)
		url := func(from string) func(span) bool {
			return func(s span) bool { return strings.HasSuffix(s.url(), "/?"+path+"-"+from) }
		}
		// Envoy connects again after a pause that grows.
		for deadline := time.Now().Add(5 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
			request(1, path)
			missing := ""
			for _, from := range m.clients {
				if len(only(c.spans(), url(from))) == 0 {
					missing += " spans over " + from
				}
			}
			if len(only(c.records(), func(r record) bool { return r.body == "log /?"+path+"-grpc" })) == 0 {
				missing += " records"
			}
			if missing == "" {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: the collector is there again, and has not received:%s", path, missing)
			}
		}
		stop()
	}
	for _, s := range c.spans() {
		if strings.Contains(s.url(), "/?first-") {
			t.Errorf("a span was sent twice: %+v", s)
		}
	}
	for _, r := range c.records() {
		if strings.Contains(r.body, "/?first-") {
			t.Errorf("a record was sent twice: %+v", r)
		}
	}
}

// hung accepts connections, reads, and never answers.
type hung struct {
	listeners []net.Listener
	readers   sync.WaitGroup
	mu        sync.Mutex // guards conns and read
	conns     []net.Conn
	read      bytes.Buffer
}

// hang listens at ports until the test ends, or stop is called.
func hang(t *testing.T, ports ...string) *hung {
	t.Helper()
	h := &hung{}
	for _, port := range ports {
		l, err := ownnet.Listen("127.0.0.1:" + port)
		if err != nil {
			t.Fatal(err)
		}
		h.listeners = append(h.listeners, l)
		h.readers.Go(func() { h.accept(l) })
	}
	t.Cleanup(h.stop)
	return h
}

func (h *hung) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return // it was closed
		}
		h.mu.Lock()
		h.conns = append(h.conns, c)
		h.mu.Unlock()
		h.readers.Go(func() {
			for b := make([]byte, 64<<10); ; {
				n, err := c.Read(b)
				h.mu.Lock()
				h.read.Write(b[:n])
				h.mu.Unlock()
				if err != nil {
					return // it was closed
				}
			}
		})
	}
}

// await waits until all texts have been read.
func (h *hung) await(t *testing.T, texts ...string) {
	t.Helper()
	for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		missing := only(append([]string(nil), texts...), func(text string) bool {
			h.mu.Lock()
			defer h.mu.Unlock()
			return !bytes.Contains(h.read.Bytes(), []byte(text))
		})
		if len(missing) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("Envoy did not send " + fmt.Sprint(missing))
		}
	}
}

// stop ends the listeners and all connections.
func (h *hung) stop() {
	for _, l := range h.listeners {
		_ = l.Close() // stop may be called twice
	}
	h.mu.Lock()
	for _, c := range h.conns {
		_ = c.Close() // the same
	}
	h.mu.Unlock()
	h.readers.Wait()
}
