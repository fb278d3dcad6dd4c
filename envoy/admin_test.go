// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoy

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// fakeAdmin serves an admin port and returns a client for it.
func fakeAdmin(t *testing.T, handler http.HandlerFunc) *Admin {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return NewAdmin(server.Listener.Addr().String())
}

func TestAdminReadiness(t *testing.T) {
	t.Parallel()
	admin := fakeAdmin(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || r.URL.Path != "/stats" || !r.URL.Query().Has("usedonly") ||
			r.URL.Query().Get("filter") != readinessFilter {
			http.Error(w, "unexpected "+r.Method+" "+r.URL.String(), http.StatusBadRequest)
			return
		}
		_, _ = w.Write([]byte("cluster_manager.cds.update_success: 3\ncluster_manager.cds.update_rejected: 1\n" +
			"listener_manager.lds.update_success: 2\nlistener_manager.workers_started: 1\nserver.state: 0\n"))
	})
	got, err := admin.Readiness(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := Readiness{CDSUpdated: 3, CDSRejected: 1, LDSUpdated: 2, State: "live", Live: true, WorkersStarted: true}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("readiness (-want +got):\n%s", diff)
	}
	if got.Err() != nil {
		t.Errorf("Err() = %v, want none", got.Err())
	}
}

func TestReadinessErr(t *testing.T) {
	t.Parallel()
	for want, r := range map[string]Readiness{
		"no configuration": {},
		"rejected every configuration of its clusters (CDS) so far (2)":  {CDSRejected: 2, LDSRejected: 1},
		"rejected every configuration of its listeners (LDS) so far (1)": {CDSUpdated: 1, LDSRejected: 1},
		"no clusters (CDS)":               {LDSUpdated: 1},
		"no listeners (LDS)":              {CDSUpdated: 1},
		"its state is initializing":       {CDSUpdated: 1, LDSUpdated: 1, State: "initializing", WorkersStarted: true},
		"worker threads have not started": {CDSUpdated: 1, LDSUpdated: 1, State: "live", Live: true},
	} {
		if err := r.Err(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: Err() = %v, want %q", r, err, want)
		}
	}
}

func TestReadinessWithoutState(t *testing.T) {
	t.Parallel()
	admin := fakeAdmin(t, func(http.ResponseWriter, *http.Request) {})
	r, err := admin.Readiness(t.Context())
	if err != nil || r.Live || r.State != "unknown" {
		t.Errorf("readiness = %+v, %v; an absent state must not count as live", r, err)
	}
}

func TestAdminErrors(t *testing.T) {
	t.Parallel()
	refusing := fakeAdmin(t, func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "try later", http.StatusServiceUnavailable)
	})
	if _, err := refusing.Stats(t.Context(), "x"); err == nil || !strings.Contains(err.Error(), "503") || !strings.Contains(err.Error(), "try later") {
		t.Errorf("error = %v, want the status and what Envoy said", err)
	}
	redirecting := fakeAdmin(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://192.0.2.1/", http.StatusFound)
	})
	if _, err := redirecting.Stats(t.Context(), "x"); err == nil || !strings.Contains(err.Error(), "302") {
		t.Errorf("error = %v, want the redirect as the answer", err)
	}

	release := make(chan struct{})
	hanging := fakeAdmin(t, func(http.ResponseWriter, *http.Request) { <-release })
	t.Cleanup(func() { close(release) }) // runs before the server is closed
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := hanging.DrainListeners(ctx, true); err == nil {
		t.Error("no error from an admin port that does not answer")
	}
}

func TestDrainListeners(t *testing.T) {
	t.Parallel()
	var got []string
	admin := fakeAdmin(t, func(_ http.ResponseWriter, r *http.Request) { got = append(got, r.Method+" "+r.URL.String()) })
	for _, inboundOnly := range []bool{true, false} {
		if err := admin.DrainListeners(t.Context(), inboundOnly); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"POST /drain_listeners?inboundonly&graceful&skip_exit", "POST /drain_listeners?graceful&skip_exit"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

func TestActiveConnections(t *testing.T) {
	t.Parallel()
	admin := fakeAdmin(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`listener.0.0.0.0_15006.downstream_cx_active: 2
listener.0.0.0.0_15006.worker_0.downstream_cx_active: 2
listener.10.0.0.1_8080.downstream_cx_active: 1
listener.0.0.0.0_15021.downstream_cx_active: 7
listener.[__]_15090.downstream_cx_active: 5
listener.admin.downstream_cx_active: 1
listener.admin.main_thread.downstream_cx_active: 1
`))
	})
	for want, ignore := range map[uint64][]int{15: nil, 3: {15021, 15090}, 8: {15021}} {
		got, err := admin.ActiveConnections(t.Context(), ignore...)
		if err != nil || got != want {
			t.Errorf("without %v: %d connections, %v, want %d", ignore, got, err, want)
		}
	}
}

func TestParseStats(t *testing.T) {
	t.Parallel()
	got := parseStats("a.b: 1\nc: d.e: 2\nhistogram: P0(1,2)\n\nbroken\nnegative: -1\n")
	if diff := cmp.Diff(map[string]uint64{"a.b": 1, "c: d.e": 2}, got); diff != "" {
		t.Errorf("statistics (-want +got):\n%s", diff)
	}
}

func FuzzParseStats(f *testing.F) {
	f.Add("a.b: 1\nc: d.e: 2\n")
	f.Add(": 1\n: ")
	f.Fuzz(func(t *testing.T, body string) {
		if n := len(parseStats(body)); n > strings.Count(body, "\n")+1 {
			t.Errorf("%d statistics in %q", n, body)
		}
	})
}
