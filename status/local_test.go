// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package status

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
)

// guarded are the paths that only peers on this machine may use. The server of guardAll serves all
// of them.
var guarded = []string{
	"/quitquitquit", "/drain", "/debug/pprof/", "/debug/pprof/cmdline", "/debug/pprof/profile?seconds=60", "/debug/pprof/symbol", "/debug/pprof/trace?seconds=60",
	"/debug/pprof/heap", "/debug/own", "/metrics", "/stats/prometheus",
}

// guardAll runs a server for a peer with the given address and counts calls of Quit and Drain.
func guardAll(t *testing.T, peer string) (address string, quits, drains *atomic.Int32) {
	t.Helper()
	quits, drains = &atomic.Int32{}, &atomic.Int32{}
	_, address = serve(t, func(c *Config) {
		c.Listener = from{c.Listener, &net.TCPAddr{IP: net.ParseIP(peer), Port: 1}}
		c.MetricsLocalOnly = true
		c.Loopback = Loopback{Quit: func() { quits.Add(1) }, Drain: func(context.Context) { drains.Add(1) }, Profiling: true, Debug: map[string]http.Handler{
			"/debug/own": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "own") }),
		}}
	})
	return address, quits, drains
}

// TestLoopbackCannotBeClaimed checks that only the address of the connection, and no header,
// decides whether a peer is on this machine.
func TestLoopbackCannotBeClaimed(t *testing.T) {
	t.Parallel()
	claims := []string{
		"Host: localhost", "Host: 127.0.0.1:15020", "Host: [::1]", "Host: x\r\nX-Forwarded-For: 127.0.0.1", "Host: x\r\nX-Forwarded-For: 127.0.0.1, ::1",
		"Host: x\r\nForwarded: for=127.0.0.1", "Host: x\r\nX-Real-IP: 127.0.0.1", "Host: x\r\nTrue-Client-IP: ::1", "Host: x\r\nX-Envoy-External-Address: 127.0.0.1",
		"Host: x\r\nX-Envoy-Internal: true", "Host: x\r\nX-Forwarded-Client-Cert: URI=spiffe://cluster.local/ns/a/sa/b", "Host: x\r\nConnection: X-Forwarded-For",
	}
	for _, peer := range []string{"10.0.0.1", "127.0.0.6", "::6", "::ffff:127.0.0.6", "2001:db8::1", "169.254.169.254", "::ffff:10.0.0.1"} {
		t.Run(peer, func(t *testing.T) {
			t.Parallel()
			address, quits, drains := guardAll(t, peer)
			for _, path := range guarded {
				for _, method := range []string{"GET", "POST"} {
					for _, claim := range claims {
						if codes := raw(t, address, method+" "+path+" HTTP/1.1\r\n"+claim+"\r\nConnection: close\r\n\r\n"); codes != "403" {
							t.Errorf("%s %s with %q: got %s, want 403", method, path, claim, codes)
						}
					}
				}
				for _, method := range []string{"HEAD", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "post"} {
					if codes := raw(t, address, line(method+" "+path)); codes != "403" {
						t.Errorf("%s %s: got %s, want 403", method, path, codes)
					}
				}
				for _, target := range []string{"http://127.0.0.1" + path, "http://localhost:15020" + path, "http://[::1]" + path, "HTTP://LOCALHOST" + path} {
					if codes := raw(t, address, line("POST "+target)); codes != "403" {
						t.Errorf("%s: got %s, want 403", target, codes)
					}
				}
			}
			if quits.Load()+drains.Load() != 0 {
				t.Errorf("Quit was called %d times and Drain %d times, want never", quits.Load(), drains.Load())
			}
		})
	}
}

// TestLocalRequests checks that peers on this machine, too, must use the exact method and path.
func TestLocalRequests(t *testing.T) {
	t.Parallel()
	for _, peer := range []string{"127.0.0.1", "::1"} {
		t.Run(peer, func(t *testing.T) {
			t.Parallel()
			address, quits, drains := guardAll(t, peer)
			for request, want := range map[string]string{
				"GET /quitquitquit": "405", "HEAD /quitquitquit": "405", "PUT /quitquitquit": "405", "DELETE /quitquitquit": "405", "OPTIONS /quitquitquit": "405",
				"post /quitquitquit": "405", "CONNECT /quitquitquit": "405", "GET http://127.0.0.1/quitquitquit": "405",
				"POST //quitquitquit": "307", "POST /./quitquitquit": "307", "POST /metrics/../quitquitquit": "307", "POST /healthz/ready/../../quitquitquit": "307",
				"POST /healthz/ready%2F..%2F..%2Fquitquitquit": "404", "POST /quitquitquit/": "404", "POST /quitquitquit/x": "404", "POST /QUITQUITQUIT": "404",
				"POST /quitquitquit%00": "404", "POST /quitquitquit;x": "404", "POST quitquitquit": "400", "CONNECT 127.0.0.1:15000": "404",
				"GET /drain": "405", "PUT /drain": "405", "HEAD /drain": "405", "POST /drain/": "404", "POST /app-health/../drain": "307",
				"GET /debug/own": "200", "HEAD /debug/own": "200", "POST /debug/own": "405", "DELETE /debug/own": "405", "GET /debug/own/": "404",
				"GET /debug/": "404", "GET /debug": "404", "GET /debug/other": "404", "GET /debug/pprof/cmdline": "200", "GET /debug/pprof/../own": "307", "GET /debug/pprof/none": "404",
				"GET /debug/pprof": "307", "GET /stats": "404", "GET /stats/": "404", "GET /stats/prometheus/": "404", "GET /stats/prometheus": "200", "HEAD /metrics": "200", "GET /metrics/": "404",
				"GET http://elsewhere.example/metrics": "403", "GET /metrics?filter=x&format=html": "200", "GET /": "404", "OPTIONS *": "200",
			} {
				if codes := raw(t, address, strings.Replace(line(request), "Host: x", "Host: localhost", 1)); codes != want {
					t.Errorf("%s: got %s, want %s", request, codes, want)
				}
			}
			if quits.Load()+drains.Load() != 0 {
				t.Errorf("Quit was called %d times and Drain %d times, want never", quits.Load(), drains.Load())
			}
			for _, request := range []string{"POST /drain", "POST /drain?x=y", "POST /quitquitquit", "POST http://127.0.0.1:1/quitquitquit"} {
				if codes := raw(t, address, strings.Replace(line(request), "Host: x", "Host: localhost", 1)); codes != "200" {
					t.Errorf("%s: got %s, want 200", request, codes)
				}
			}
			if quits.Load() != 2 || drains.Load() != 2 {
				t.Errorf("Quit was called %d times and Drain %d times, want twice each", quits.Load(), drains.Load())
			}
		})
	}
}

// TestMetricsForAll checks that all peers may read metrics unless MetricsLocalOnly is set.
// Readiness and probes are available to all peers in any case.
func TestMetricsForAll(t *testing.T) {
	t.Parallel()
	for _, peer := range []string{"10.0.0.1", "127.0.0.6"} {
		_, address := serve(t, func(c *Config) { c.Listener = from{c.Listener, &net.TCPAddr{IP: net.ParseIP(peer), Port: 1}} })
		for _, path := range []string{"/metrics", "/stats/prometheus"} {
			wantAnswer(t, address, path, http.StatusOK, "")
		}
	}
	address, _, _ := guardAll(t, "10.0.0.1")
	wantAnswer(t, address, "/metrics", http.StatusForbidden, "Only requests from localhost are allowed")
	wantAnswer(t, address, "/healthz/ready", http.StatusOK, "ready")
	if _, body := get(t, address, "/app-health/app/livez"); !strings.Contains(body, "there is no probe") {
		t.Errorf("response to a probe: got %q", body)
	}
}

// TestWebPagesAreRefused checks that requests from a web page in a browser on this machine are
// refused. Such requests have a foreign host name or a header that names their origin.
func TestWebPagesAreRefused(t *testing.T) {
	t.Parallel()
	address, quits, drains := guardAll(t, "127.0.0.1")
	for header, want := range map[string]string{
		"Host: evil.example": "403", "Host: evil.example:15020": "403", "Host: localhost.evil.example": "403", "Host: localhost\r\nOrigin: http://evil.example": "403",
		"Host: localhost\r\nOrigin: null": "403", "Host: localhost\r\nSec-Fetch-Site: cross-site": "403",
		"Host: localhost\r\nX-Forwarded-For: 127.0.0.1": "403", "Host: localhost\r\nForwarded: for=127.0.0.1": "403", "Host: localhost\r\nVia: 1.1 proxy": "403", "Host: localhost\r\nX-Real-IP: ::1": "403", "Host: localhost:15020": "200", "Host: 127.0.0.1": "200", "Host: [::1]:15020": "200", "Host: 10.1.2.3:15020": "200",
	} {
		if codes := raw(t, address, "GET /debug/own HTTP/1.1\r\n"+header+"\r\nConnection: close\r\n\r\n"); codes != want {
			t.Errorf("%q: got %s, want %s", header, codes, want)
		}
	}
	if codes := raw(t, address, "POST /quitquitquit HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\nConnection: close\r\n\r\n"); codes != "403" || quits.Load()+drains.Load() != 0 {
		t.Errorf("got %s, want 403; Quit was called %d times", codes, quits.Load())
	}
}
