// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestEnvoyOutlivesReceivers sends records to receivers that accept connections and never answer,
// that come back, are gone, and come back again. Requests always succeed, Envoy keeps no more than
// its limits, and what happens after a receiver has come back is recorded.
func TestEnvoyOutlivesReceivers(t *testing.T) {
	t.Parallel()
	ports := freePorts(t, "127.0.0.1", 2)
	hung := make([]net.Listener, 2) // nothing accepts
	for i, port := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:"+port)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		hung[i] = l
	}
	client, inbound, _, admin := recordingEnvoy(t, "127.81.3.4", ports[0], ports[1], "100")
	long := strings.Repeat("x", 8<<10)
	request := func(path, header string) {
		if status, body := get(t, client, "http://catalog:8080"+path, header); status != 200 && status != 404 {
			t.Fatalf("%s: %d %s", path, status, body)
		}
		if status, body := get(t, http.DefaultClient, inbound, ""); status != 200 {
			t.Fatalf("inbound: %d %s", status, body)
		}
	}
	for range 2_000 { // 400 reports of spans, 16 MiB of logs
		request("/hung", "x-a: "+long)
	}
	if n := counter(t, admin, "access_logs.grpc_access_log.logs_dropped"); n < 1_000 {
		t.Errorf("Envoy dropped %d entries of the log, want most of 2000", n)
	}
	for _, port := range []string{"4317", "9411"} {
		name := "cluster.outbound|" + port + "||collector.observe.svc.cluster.local"
		if n := counter(t, admin, name+".upstream_rq_active"); n > 250 {
			t.Errorf("Envoy keeps %d requests to port %s", n, port)
		}
	}
	if n := counter(t, admin, "cluster.outbound|4317||collector.observe.svc.cluster.local.upstream_rq_active"); n < 200 {
		t.Errorf("Envoy keeps only %d requests of OTLP: the limit was not reached", n)
	}
	if n := counter(t, admin, "server.memory_allocated"); n > 100<<20 {
		t.Errorf("Envoy allocated %d bytes", n)
	}
	for _, l := range hung {
		_ = l.Close() // its connections are reset
	}
	for _, path := range []string{"/back", "/again"} {
		request("/gone", "")
		r, stop := newRecorded(t, ports[0], ports[1])
		// Connections are made again after a pause that grows, and each kind of record comes on its own.
		for deadline := time.Now().Add(4 * time.Minute); !r.hasAll("als shop: "+path, "otlp log /missing"+path, "zipkin span", "otlp span"); time.Sleep(50 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("after the receivers came back: %s", strings.Join(r.all(), "\n"))
			}
			request(path, "")
			request("/missing"+path, "")
		}
		stop()
	}
}

// hasAll reports whether for each text there is a record that begins with it.
func (r *recorded) hasAll(texts ...string) bool {
	lines := "\n" + strings.Join(r.all(), "\n")
	for _, text := range texts {
		if !strings.Contains(lines, "\n"+text) {
			return false
		}
	}
	return true
}

// counter returns the value of a counter or gauge of an Envoy.
func counter(t *testing.T, admin, name string) int {
	t.Helper()
	_, body := get(t, http.DefaultClient, "http://"+admin+"/stats?filter="+url.QueryEscape(regexp.QuoteMeta(name)), "")
	for line := range strings.Lines(body) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+": "); ok {
			n, err := strconv.Atoi(value)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("Envoy has no %s:\n%s", name, body)
	return 0
}
