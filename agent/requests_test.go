// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package agent

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/envoy"
	"github.com/outrigger-mesh/outrigger/xdsproxy"
)

// TestRequestsHandler checks that the handler switches Envoy's log of requests on and off. The
// tests of the shop check that Envoy writes the log.
func TestRequestsHandler(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var asked []string
	fail := 0 // number of requests that fail
	admin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, r.Method+" "+r.URL.String())
		if fail > 0 {
			fail--
			http.Error(w, "no admin layer", http.StatusServiceUnavailable)
		}
	}))
	defer admin.Close()
	relay := &xdsproxy.Proxy{}
	server := httptest.NewServer(requestsHandler(relay, envoy.NewAdmin(strings.TrimPrefix(admin.URL, "http://")), nil))
	defer server.Close()
	get := func(query string) (int, string, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+query, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := server.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(text), resp.Trailer.Get(trailerDropped)
	}
	if code, text, dropped := get("/?for=1ms"); code != http.StatusOK || text != "" || dropped != "0" {
		t.Errorf("got %d, %q, %q", code, text, dropped)
	}
	if got := strings.Join(asked, "; "); got != "POST /runtime_modify?outrigger.record=100; POST /runtime_modify?outrigger.record=" {
		t.Errorf("requests to the admin port: %s", got)
	}
	for _, query := range []string{"/", "/?for=x", "/?for=0s", "/?for=11m"} {
		if code, text, _ := get(query); code != http.StatusBadRequest || !strings.Contains(text, "at most 10m0s") {
			t.Errorf("%s: %d, %s", query, code, text)
		}
	}
	mu.Lock()
	asked = nil
	mu.Unlock()
	if code, _, _ := get("/?for=1ms&rate=1&sample=5&direction=both"); code != http.StatusOK {
		t.Errorf("a tap: %d", code)
	}
	const both = "POST /runtime_modify?outrigger.record=N&outrigger.record_sent=N"
	if got := strings.Join(asked, "; "); got != strings.ReplaceAll(both, "N", "5")+"; "+strings.ReplaceAll(both, "N", "") {
		t.Errorf("requests of a tap to the admin port: %s", got)
	}
	capture, err := relay.Capture(xdsproxy.Selection{})
	if err != nil {
		t.Fatal(err)
	}
	if code, text, _ := get("/?for=1ms"); code != http.StatusConflict || !strings.Contains(text, "already") {
		t.Errorf("a second recording: %d, %s", code, text)
	}
	capture.End()
	mu.Lock()
	const failures = 6
	fail = failures
	mu.Unlock()
	if code, text, _ := get("/?for=1ms"); code != http.StatusBadGateway || !strings.Contains(text, "no admin layer") {
		t.Errorf("without a runtime: %d, %s", code, text)
	}
	if last := asked[len(asked)-1]; !strings.HasSuffix(last, "outrigger.record=") || fail > 0 {
		t.Errorf("recording may be on although the response says otherwise, so it must be switched off, but the last of %d requests is %s", len(asked), last)
	}
}

// unread is a response that the client does not read. Writes fail at the deadline, without waiting
// for it.
type unread struct {
	http.ResponseWriter
	deadline time.Time
}

func (u *unread) SetWriteDeadline(t time.Time) error { u.deadline = t; return nil }
func (u *unread) FlushError() error                  { return nil }

func (u *unread) Write([]byte) (int, error) {
	if u.deadline.IsZero() {
		return 0, errors.New("blocked until the client closes the connection")
	}
	return 0, os.ErrDeadlineExceeded
}

// TestUnreadRequests checks that a recording ends if its client reads nothing.
func TestUnreadRequests(t *testing.T) {
	t.Parallel()
	lines := make(chan []byte, 1)
	lines <- []byte("{}")
	capture := &xdsproxy.Capture{Lines: lines}
	err := writeRequests(t.Context(), &unread{ResponseWriter: httptest.NewRecorder()}, capture, &asked{length: time.Millisecond})
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("writeRequests: %v, want a deadline", err)
	}
}
