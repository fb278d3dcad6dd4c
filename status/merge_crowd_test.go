// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package status

import (
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
)

// TestManySlowScrapes: scrapes that do not end take up a bounded number of
// places, cost nobody else the status port, and leave nothing.
func TestManySlowScrapes(t *testing.T) {
	t.Parallel()
	var crowded atomic.Bool
	crowded.Store(true)
	begun := make(chan struct{}, maxScrapes)
	reg, address := serveMerged(t, text(envoyText), func(w http.ResponseWriter, r *http.Request) {
		if crowded.Load() {
			begun <- struct{}{}
			<-r.Context().Done()
		}
		text(appText)(w, r)
	})
	var slow []net.Conn
	for range maxScrapes {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		slow = append(slow, conn)
		if _, err := io.WriteString(conn, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
	}
	for range maxScrapes {
		<-begun
	}
	code, body, header := do(t, http.MethodGet, address, "/stats/prometheus", http.Header{timeoutHeader: {"1"}})
	if code != http.StatusServiceUnavailable || !strings.HasPrefix(body, "32 others") || header.Get("Retry-After") == "" {
		t.Errorf("one scrape more = %d %q, %v", code, body, header)
	}
	if n := failuresOf(t, reg); n != 1 {
		t.Errorf("%v failures are counted, want 1", n)
	}
	wantAnswer(t, address, "/healthz/ready", http.StatusOK, "ready")
	crowded.Store(false)
	for _, conn := range slow {
		_ = conn.Close() // as clients that give up
	}
	// It waits until a place is free.
	if _, names := scrape(t, address, "/metrics", http.Header{timeoutHeader: {"20"}}); !names["app_requests_total"] || !names["envoy_server_live"] {
		t.Errorf("families %v", names)
	}
}
