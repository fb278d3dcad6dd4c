// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package status

import (
	"context"
	"crypto/tls"
	"flag"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/outrigger-mesh/outrigger/status/probe/probetest"
)

// loadFor sets the duration of the load: go test ./status -run ManyProbes -load 1m.
var loadFor = flag.Duration("load", 0, "how long to send each kind of probe; 0: a second or two")

// quiet runs a server with one probe and without a log until the test ends, and returns the probe's
// URL.
func quiet(tb testing.TB, probe string) (url string) {
	tb.Helper()
	probers, err := ParseProbers(`{"` + livez + `": ` + probe + `}`)
	if err != nil {
		tb.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.77.50.10:0")
	if err != nil {
		tb.Fatal(err)
	}
	s, err := New(Config{
		Listener: listener, Ready: alwaysReady, InstanceIP: "127.77.50.10", ProbeSourceIP: "127.77.50.16",
		Probers: probers, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(tb.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	tb.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			tb.Errorf("Run() = %v, want nil", err)
		}
	})
	return "http://" + listener.Addr().String() + livez
}

// application runs an HTTP server until the test ends and returns its port.
func application(tb testing.TB, secure *tls.Config) string {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.77.50.10:0")
	if err != nil {
		tb.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "fine")
	}), TLSConfig: secure, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if secure != nil {
			_ = server.ServeTLS(listener, "", "") // returns only after Close
		} else {
			_ = server.Serve(listener)
		}
	}()
	tb.Cleanup(func() {
		_ = server.Close()
		<-done
	})
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		tb.Fatal(err)
	}
	return port
}

// held counts resources of this process.
type held struct {
	goroutines, files int
	heap              uint64
}

func holds(t *testing.T) held {
	t.Helper()
	runtime.GC()
	runtime.GC() // finalizers of the first collection release what the second one counts
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	files, err := probetest.OpenFiles(os.Getpid())
	if err != nil {
		t.Skipf("the open files of this process cannot be counted here: %v", err)
	}
	return held{runtime.NumGoroutine(), files, m.HeapAlloc}
}

// TestManyProbesLeakNothing checks that probes do not leak goroutines, files or memory. It is not
// parallel, because it counts the resources of the whole process.
func TestManyProbesLeakNothing(t *testing.T) {
	grpcServer := grpc.NewServer()
	healthv1.RegisterHealthServer(grpcServer, health.NewServer())
	listener, err := net.Listen("tcp", "127.77.50.10:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- grpcServer.Serve(listener) }()
	t.Cleanup(func() {
		grpcServer.Stop()
		if err := <-done; err != nil {
			t.Errorf("serve gRPC: %v", err)
		}
	})
	plain := application(t, nil)
	for _, c := range []struct {
		name, probe string
		rate        int
		duration    time.Duration
	}{
		{"http", `{"httpGet": {"port": ` + plain + `}, "timeoutSeconds": 10}`, 5000, 2 * time.Second},
		{"tcp", `{"tcpSocket": {"port": ` + plain + `}, "timeoutSeconds": 10}`, 5000, time.Second},
		{"grpc", `{"grpc": {"port": ` + portOfAddr(t, listener.Addr().String()) + `}, "timeoutSeconds": 10}`, 500, time.Second},
	} {
		if *loadFor > 0 {
			c.duration = *loadFor
		}
		url := quiet(t, c.probe)
		warm := probetest.Load{URL: url, Rate: c.rate, Duration: 400 * time.Millisecond}
		if _, err := warm.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		before := settled(t, held{})
		out, err := probetest.Load{URL: url, Rate: c.rate, Duration: c.duration}.Run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		after := settled(t, before)
		t.Logf("%s: %d probes in %s, p50 %s, p99 %s; before %+v, after %+v", c.name, out.Sent, c.duration, out.P50, out.P99, before, after)
		if out.Failed > 0 || out.Sent == 0 {
			t.Errorf("%s: %d of %d probes failed: %v", c.name, out.Failed, out.Sent, out.Failure)
		}
		if after.goroutines > before.goroutines+5 || after.files > before.files+5 || after.heap > before.heap+4<<20 {
			t.Errorf("%s: resources leaked: before %+v, after %+v", c.name, before, after)
		}
	}
}

// settled waits until the process holds no more than before. If before is zero, it waits until the
// numbers of goroutines and files no longer change.
func settled(t *testing.T, before held) held {
	t.Helper()
	now := holds(t)
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
		time.Sleep(100 * time.Millisecond) // gives connections time to close
		last := now
		now = holds(t)
		if now.goroutines <= before.goroutines && now.files <= before.files || before == (held{}) && now.goroutines == last.goroutines && now.files == last.files {
			break
		}
	}
	return now
}

// BenchmarkProbe measures probes sent directly to the application and probes sent through the
// agent. p50-us is the metric to compare.
func BenchmarkProbe(b *testing.B) {
	secure := &tls.Config{Certificates: []tls.Certificate{certificateOf(b)}}
	plain, tlsPort := application(b, nil), application(b, secure)
	for name, url := range map[string]string{
		"straight": "http://127.77.50.10:" + plain + "/",
		"http":     quiet(b, `{"httpGet": {"port": `+plain+`}}`),
		"https":    quiet(b, `{"httpGet": {"port": `+tlsPort+`, "scheme": "HTTPS"}}`),
		"tcp":      quiet(b, `{"tcpSocket": {"port": `+plain+`}}`),
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				out, err := probetest.Load{URL: url, Duration: time.Second}.Run(b.Context())
				if err != nil || out.Failed > 0 {
					b.Fatalf("%+v, %v", out, err)
				}
				b.ReportMetric(float64(out.P50.Nanoseconds())/1e3, "p50-us")
				b.ReportMetric(float64(out.P99.Nanoseconds())/1e3, "p99-us")
			}
		})
	}
}

func certificateOf(tb testing.TB) tls.Certificate {
	tb.Helper()
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	return server.TLS.Certificates[0]
}
