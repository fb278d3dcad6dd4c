// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package status

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

func TestPaths(t *testing.T) {
	t.Parallel()
	quit := make(chan struct{})
	_, address := serve(t, func(c *Config) {
		c.Loopback = Loopback{Quit: func() { close(quit) }, Profiling: true}
	})
	wantAnswer(t, address, "/nothing", http.StatusNotFound, `nothing at "/nothing"`)
	wantAnswer(t, address, "/app-health/app/readyz", http.StatusBadRequest, "ISTIO_KUBE_APP_PROBERS")
	wantAnswer(t, address, "/app-health/app/other", http.StatusBadRequest, "paths are /app-health/<container>/{livez,readyz,startupz}")
	wantAnswer(t, address, "/debug/pprof/cmdline", http.StatusOK, "")
	wantAnswer(t, address, "/quitquitquit", http.StatusMethodNotAllowed, "only POST")
	select {
	case <-quit:
		t.Fatal("a GET made the agent quit")
	default:
	}
	if code, body, _ := do(t, http.MethodPost, address, "/quitquitquit", nil); code != http.StatusOK || body != "OK\n" {
		t.Errorf("POST /quitquitquit = %d %q, want 200 OK", code, body)
	}
	<-quit
}

func TestDisabledPaths(t *testing.T) {
	t.Parallel()
	_, address := serve(t, nil)
	wantAnswer(t, address, "/debug/pprof/", http.StatusNotFound, "")
	wantAnswer(t, address, "/quitquitquit", http.StatusNotFound, "")
	wantAnswer(t, address, "/drain", http.StatusNotFound, "")
}

func TestDrainRespondsWhenOver(t *testing.T) {
	t.Parallel()
	begun, over := make(chan struct{}), make(chan struct{})
	_, address := serve(t, func(c *Config) {
		c.Loopback.Drain = func(context.Context) { close(begun); <-over }
	})
	wantAnswer(t, address, "/drain", http.StatusMethodNotAllowed, "only POST")
	answered := make(chan int)
	go func() {
		code, _, _ := do(t, http.MethodPost, address, "/drain", nil)
		answered <- code
	}()
	<-begun
	select {
	case code := <-answered:
		t.Errorf("got response %d before the drain was over", code)
		return
	case <-time.After(100 * time.Millisecond): // long enough for a premature response
	}
	close(over)
	if code := <-answered; code != http.StatusOK {
		t.Errorf("POST /drain = %d, want 200", code)
	}
}

// from returns a listener whose connections all have the same peer.
type from struct {
	net.Listener
	peer net.Addr
}

type fromConn struct {
	net.Conn
	peer net.Addr
}

func (l from) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return fromConn{conn, l.peer}, err
}

func (c fromConn) RemoteAddr() net.Addr { return c.peer }

func TestLoopbackOnly(t *testing.T) {
	t.Parallel()
	for ip, allowed := range map[string]bool{
		"127.0.0.1": true, "127.1.0.7": true, "::1": true, "::ffff:127.0.0.1": true,
		"127.0.0.6": false, "::ffff:127.0.0.6": false, "::6": false, "10.0.0.1": false, "2001:db8::1": false,
	} {
		t.Run(ip, func(t *testing.T) {
			t.Parallel()
			_, address := serve(t, func(c *Config) {
				c.Listener = from{c.Listener, &net.TCPAddr{IP: net.ParseIP(ip), Port: 1234}}
				c.Loopback = Loopback{Quit: func() {}, Drain: func(context.Context) {}, Profiling: true}
			})
			want := http.StatusForbidden
			if allowed {
				want = http.StatusOK
			}
			for path, method := range map[string]string{"/quitquitquit": http.MethodPost, "/drain": http.MethodPost, "/debug/pprof/cmdline": http.MethodGet} {
				if code, body, _ := do(t, method, address, path, nil); code != want {
					t.Errorf("%s %s = %d %q, want %d", method, path, code, body, want)
				}
			}
			wantAnswer(t, address, "/healthz/ready", http.StatusOK, "ready")
		})
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	port := listener.Addr().(*net.TCPAddr).Port
	_, address := serve(t, nil)
	good, _ := serve(t, nil)
	cfg := good.cfg
	for want, edit := range map[string]func(*Config){
		"no listener":                 func(c *Config) { c.Listener = nil },
		"no readiness function":       func(c *Config) { c.Ready = nil },
		"no logger":                   func(c *Config) { c.Logger = nil },
		"set INSTANCE_IP":             func(c *Config) { c.InstanceIP, c.Probers = "", Probers{"/app-health/a/livez": {}} },
		`"localhost", is not an IP`:   func(c *Config) { c.ProbeSourceIP = "localhost" },
		"the agent's own status port": func(c *Config) { c.Listener, c.Probers = listener, ownProbe(port) },
		"register the metrics":        func(c *Config) { c.Registerer = taken(t) },
	} {
		edited := cfg
		edit(&edited)
		if _, err := New(edited); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New() = %v, want %q", err, want)
		}
	}
	wantAnswer(t, address, "/healthz/ready", http.StatusOK, "ready")
}

func ownProbe(port int) Probers {
	return Probers{"/app-health/a/livez": {HTTPGet: &HTTPGet{Scheme: "http", Port: port, Path: "/app-health/a/livez"}}}
}

// taken returns a registry in which the names are in use.
func taken(t *testing.T) prometheus.Registerer {
	t.Helper()
	reg := prometheus.NewRegistry()
	if _, err := newMetrics(reg); err != nil {
		t.Fatal(err)
	}
	return reg
}

func TestRunReportsBrokenListener(t *testing.T) {
	t.Parallel()
	s, _ := serve(t, nil)
	cfg := s.cfg
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg.Listener = listener
	broken, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	if err := broken.Run(t.Context()); err == nil || !strings.Contains(err.Error(), listener.Addr().String()) {
		t.Errorf("Run() = %v, want an error that names %s", err, listener.Addr())
	}
}

func TestReady(t *testing.T) {
	t.Parallel()
	var draining atomic.Bool
	var reason atomic.Pointer[string]
	reg := prometheus.NewRegistry()
	_, address := serve(t, func(c *Config) {
		c.Draining, c.Registerer = draining.Load, reg
		c.Ready = func(context.Context) error {
			if text := reason.Load(); text != nil {
				return errors.New(*text)
			}
			return nil
		}
	})
	text := "envoy has received no configuration from the control plane yet"
	reason.Store(&text)
	if code, body := get(t, address, "/healthz/ready"); code != 503 || body != text+"\n" {
		t.Errorf("not ready: got %d %q", code, body)
	}
	if v := gauge(t, reg, "istio_agent_startup_duration_seconds"); v != 0 {
		t.Errorf("startup duration = %v before the agent is ready, want 0", v)
	}
	reason.Store(nil)
	if code, body := get(t, address, "/healthz/ready"); code != 200 || body != "ready\n" {
		t.Errorf("ready: got %d %q", code, body)
	}
	first := gauge(t, reg, "istio_agent_startup_duration_seconds")
	wantAnswer(t, address, "/healthz/ready", 200, "ready")
	if again := gauge(t, reg, "istio_agent_startup_duration_seconds"); first <= 0 || again != first {
		t.Errorf("startup duration = %v, then %v, want it set once", first, again)
	}
	draining.Store(true)
	if code, body := get(t, address, "/healthz/ready"); code != 503 || body != "draining\n" {
		t.Errorf("draining: got %d %q", code, body)
	}
}

// gauge returns the sum of the values of a family of counters or gauges.
func gauge(t *testing.T, reg prometheus.Gatherer, name string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var sum float64
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			if family.GetName() == name {
				sum += metric.GetGauge().GetValue() + metric.GetCounter().GetValue()
			}
		}
	}
	return sum
}

func TestSlowPeerIsDisconnected(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits until the timeout for headers has passed")
	}
	_, address := serve(t, nil)
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := conn.Write([]byte("GET /healthz/ready HTTP/1.1\r\n")); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(3 * readHeaderTimeout)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("read = %v, want a closed connection", err)
	} else if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		t.Error("the connection of a peer that never completes its headers stays open")
	}
}
