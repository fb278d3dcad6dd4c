// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// TestProbesDuringFlood checks that unauthenticated clients that open many connections to the ports
// of the agent and Envoy and do not read responses do not block probes. The kubelet's address is
// unknown here.
func TestProbesDuringFlood(t *testing.T) {
	t.Parallel()
	line := "filler_total{text=\"more than the buffers of the kernel hold\"} 1\n"
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" {
			_, _ = io.WriteString(w, "# TYPE filler_total counter\n"+strings.Repeat(line, 20_000))
		}
	}))
	t.Cleanup(app.Close)
	_, port, err := net.SplitHostPort(app.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	const address = "127.77.60.1"
	a := startAgent(t, address, `,"terminationDrainDuration":"0s"`, newControlPlane(t),
		`ISTIO_KUBE_APP_PROBERS={"/app-health/shop/livez": {"httpGet": {"port": `+port+`, "host": "127.0.0.1"}, "timeoutSeconds": 120}}`,
		`ISTIO_PROMETHEUS_ANNOTATIONS={"scrape": "true", "path": "/metrics", "port": "`+port+`"}`)
	a.waitReady()
	dial := func(source, target string) net.Conn {
		conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}}).Dial("tcp", target)
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	kubelet := &http.Client{Timeout: 2 * time.Minute, Transport: &http.Transport{
		DisableKeepAlives: true, DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP("127.77.62.1")}}).DialContext,
	}}
	const metrics, ready = "GET /stats/prometheus HTTP/1.1\r\nHost: x\r\n\r\n", "GET /healthz/ready HTTP/1.1\r\nHost: x\r\n\r\n"
	for port, send := range map[int]string{15020: strings.Repeat(metrics, 20), 15021: strings.Repeat(ready, 500), 15090: strings.Repeat(metrics, 20)} {
		for i := range 1100 {
			conn := dial(fmt.Sprintf("127.77.61.%d", 1+i%40), net.JoinHostPort(address, fmt.Sprint(port)))
			defer func() { _ = conn.Close() }()         // it may already be closed
			_ = conn.(*net.TCPConn).SetReadBuffer(2048) // so that little data is buffered
			go func() { _, _ = io.WriteString(conn, send) }()
		}
		for range 3 {
			for _, probe := range []string{"15020/healthz/ready", "15020/app-health/shop/livez", "15021/healthz/ready"} {
				status := ""
				// Envoy responds with 504 if the agent is slow on a busy machine.
				for until := time.Now().Add(2 * time.Minute); (status == "" || strings.HasPrefix(status, "504")) && time.Now().Before(until); {
					resp, err := kubelet.Get("http://" + address + ":" + probe)
					if err != nil {
						status = err.Error()
						break
					}
					_ = resp.Body.Close() // only the status matters
					status = resp.Status
				}
				if !strings.HasPrefix(status, "200") {
					t.Errorf("while clients flood port %d: %s: got %s, want 200", port, probe, status)
				}
			}
		}
	}
}
