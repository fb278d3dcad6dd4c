// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package health

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	grpchealth "google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
)

const address = "127.77.50.20"

// listen opens a port. Its server closes it.
func listen(t *testing.T) (net.Listener, uint32) {
	t.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		t.Fatal(err)
	}
	return listener, uint32(listener.Addr().(*net.TCPAddr).Port)
}

// askOnce performs one check with a probe, with a timeout of one second.
func askOnce(t *testing.T, probe *networkingv1alpha3.ReadinessProbe) error {
	t.Helper()
	c, err := New(Config{
		Probe: probe, Address: address, SourceIP: "127.77.50.26", Report: func(bool, string) {}, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return c.check(t.Context())
}

// wants checks that an error contains a text; "" means no error.
func wants(t *testing.T, name string, err error, part string) {
	t.Helper()
	if part == "" && err != nil || part != "" && (err == nil || !strings.Contains(err.Error(), part)) {
		t.Errorf("%s: got error %v, want %q", name, err, part)
	}
}

func TestHTTP(t *testing.T) {
	t.Parallel()
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/headers":
			if host, _, _ := net.SplitHostPort(r.RemoteAddr); host != "127.77.50.26" || r.Host != "shop.example" || r.UserAgent() != "istio-probe/1.0" ||
				strings.Join(r.Header["X-A"], ",") != "1,2" || !r.Close {
				w.WriteHeader(http.StatusTeapot)
			}
		case "/agent":
			if strings.Join(r.Header["User-Agent"], ",") != "mine" {
				w.WriteHeader(http.StatusTeapot)
			}
		case "/there", "/elsewhere":
			http.Redirect(w, r, map[string]string{"/there": "/code/500", "/elsewhere": "http://localhost:1/"}[r.URL.Path], http.StatusFound)
		case "/slow":
			<-r.Context().Done()
		case "/":
		default:
			code, _ := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/code/"))
			w.WriteHeader(code)
		}
	})
	for scheme, start := range map[string]func(*httptest.Server){"": (*httptest.Server).Start, "HTTPS": (*httptest.Server).StartTLS} {
		server := httptest.NewUnstartedServer(handler)
		_ = server.Listener.Close()
		var port uint32
		server.Listener, port = listen(t)
		start(server)
		t.Cleanup(server.Close)
		for path, want := range map[string]string{
			"": "", "/": "", "/code/204": "", "code/399": "", "/code/400": "responded with the status 400", "/code/503": "status 503",
			"/there": "status 500", "/elsewhere": "", "/headers": "", "/agent": "", "/slow": "deadline exceeded",
		} {
			get := &networkingv1alpha3.HTTPHealthCheckConfig{Path: path, Port: port, Scheme: scheme}
			switch path {
			case "/headers":
				for _, h := range [][2]string{{"host", "shop.example"}, {"X-A", "1"}, {"x-a", "2"}} {
					get.HttpHeaders = append(get.HttpHeaders, &networkingv1alpha3.HTTPHeader{Name: h[0], Value: h[1]})
				}
			case "/agent":
				get.HttpHeaders = []*networkingv1alpha3.HTTPHeader{{Name: "User-Agent", Value: "mine"}}
			}
			err := askOnce(t, &networkingv1alpha3.ReadinessProbe{HealthCheckMethod: &networkingv1alpha3.ReadinessProbe_HttpGet{HttpGet: get}})
			if scheme == "HTTPS" && path == "/headers" {
				continue // HTTP/2 has no Connection: close
			}
			wants(t, scheme+" "+path, err, want)
		}
	}
}

func TestTCPAndGRPC(t *testing.T) {
	t.Parallel()
	listener, port := listen(t)
	server, checks := grpc.NewServer(), grpchealth.NewServer()
	checks.SetServingStatus("ill", healthv1.HealthCheckResponse_NOT_SERVING)
	healthv1.RegisterHealthServer(server, checks)
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Errorf("serve gRPC: %v", err)
		}
	})
	for service, want := range map[string]string{"": "", "ill": "NOT_SERVING", "other": `does not know the service "other"`} {
		wants(t, "grpc "+service, askOnce(t, &networkingv1alpha3.ReadinessProbe{HealthCheckMethod: &networkingv1alpha3.ReadinessProbe_Grpc{
			Grpc: &networkingv1alpha3.GrpcHealthCheckConfig{Port: port, Service: service},
		}}), want)
	}
	for host, want := range map[string]string{address: "", "127.77.50.29": "refused"} {
		wants(t, "tcp "+host, askOnce(t, &networkingv1alpha3.ReadinessProbe{HealthCheckMethod: &networkingv1alpha3.ReadinessProbe_TcpSocket{
			TcpSocket: &networkingv1alpha3.TCPHealthCheckConfig{Port: port, Host: host},
		}}), want)
	}
}

func TestExec(t *testing.T) {
	t.Parallel()
	for script, want := range map[string]string{
		"exit 0":                             "",
		"echo not yet; echo why >&2; exit 3": "sh: exit status 3: not yet why",
		"exit 1":                             "sh: exit status 1",
		"sleep 60 & sleep 60":                "sh did not finish in time",
		"kill -9 $$":                         "signal: killed",
	} {
		begin := time.Now()
		wants(t, script, askOnce(t, &networkingv1alpha3.ReadinessProbe{HealthCheckMethod: &networkingv1alpha3.ReadinessProbe_Exec{
			Exec: &networkingv1alpha3.ExecHealthCheckConfig{Command: []string{"sh", "-c", script}},
		}}), want)
		if took := time.Since(begin); took > 20*time.Second {
			t.Errorf("%s took %s", script, took)
		}
	}
	wants(t, "no program", askOnce(t, &networkingv1alpha3.ReadinessProbe{HealthCheckMethod: &networkingv1alpha3.ReadinessProbe_Exec{
		Exec: &networkingv1alpha3.ExecHealthCheckConfig{Command: []string{"/nowhere/program"}},
	}}), "no such file")
}

// TestRealApplication tests changes of state with a real port.
func TestRealApplication(t *testing.T) {
	t.Parallel()
	listener, port := listen(t)
	events := make(chan bool, 10)
	c, err := New(Config{
		Probe: &networkingv1alpha3.ReadinessProbe{
			PeriodSeconds: 1, FailureThreshold: 1,
			HealthCheckMethod: &networkingv1alpha3.ReadinessProbe_TcpSocket{TcpSocket: &networkingv1alpha3.TCPHealthCheckConfig{Host: address, Port: port}},
		},
		Report: func(healthy bool, _ string) { events <- healthy },
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	if !<-events {
		t.Error("the first report is unhealthy, want healthy")
	}
	_ = listener.Close()
	if <-events {
		t.Error("the second report is healthy although the port is closed")
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run() = %v", err)
	}
}
