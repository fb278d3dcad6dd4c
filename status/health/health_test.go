// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package health

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/e2e/ownnet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(ownnet.Tests(m)) }

// tcp is a minimal valid probe.
func tcp(edit func(*networkingv1alpha3.ReadinessProbe)) *networkingv1alpha3.ReadinessProbe {
	p := &networkingv1alpha3.ReadinessProbe{HealthCheckMethod: &networkingv1alpha3.ReadinessProbe_TcpSocket{
		TcpSocket: &networkingv1alpha3.TCPHealthCheckConfig{Port: 1},
	}}
	if edit != nil {
		edit(p)
	}
	return p
}

// TestVerdicts passes results, + and -, through the thresholds. A report follows the result that
// caused it.
func TestVerdicts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		successes, failures int
		results             string
	}{
		{1, 3, "+>+ + - - + - - ->- - - +>+"},
		{1, 3, "- - ->- - +>+"},
		{1, 1, "->- - +>+ ->- +>+"},
		{2, 2, "+ - + - ->- + +>+ + - + - ->-"},
		{3, 1, "+ + ->- + + +>+"},
	} {
		var tally tally
		var got []string
		for word := range strings.FieldsSeq(c.results) {
			result := word[:1]
			if tally.add(result == "+", c.successes, c.failures) {
				result += ">" + result
			}
			got = append(got, result)
		}
		if joined := strings.Join(got, " "); joined != c.results {
			t.Errorf("success %d, failure %d: got %s, want %s", c.successes, c.failures, joined, c.results)
		}
	}
}

// event is a report and its time.
type event struct {
	At      time.Duration
	Healthy bool
	Message string
}

// runFor runs a checker with a function instead of an application.
func runFor(t *testing.T, cfg Config, life time.Duration, ask func(ctx context.Context, at time.Duration) error) []event {
	t.Helper()
	var events []event
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		cfg.Logger = slog.New(slog.DiscardHandler)
		cfg.Report = func(healthy bool, message string) {
			events = append(events, event{time.Since(begin), healthy, message})
		}
		c, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		c.ask = func(ctx context.Context) error { return ask(ctx, time.Since(begin)) }
		ctx, cancel := context.WithTimeout(t.Context(), life)
		defer cancel()
		if err := c.Run(ctx); err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
	return events
}

// busy simulates an Envoy that does not respond for a while, starting with the first check.
func busy(from, to time.Duration) func(context.Context) error {
	var first time.Time
	return func(ctx context.Context) error {
		if first.IsZero() {
			first = time.Now()
		}
		if at := time.Since(first); at < from || at >= to {
			return nil
		}
		<-ctx.Done()
		return ctx.Err()
	}
}

func TestRun(t *testing.T) {
	t.Parallel()
	ill := errors.New("ill")
	between := func(from, to time.Duration) func(context.Context, time.Duration) error {
		return func(_ context.Context, at time.Duration) error {
			if at >= from && at < to {
				return ill
			}
			return nil
		}
	}
	never := func(ctx context.Context, _ time.Duration) error { <-ctx.Done(); return ctx.Err() }
	everySecond := tcp(func(p *networkingv1alpha3.ReadinessProbe) { p.PeriodSeconds, p.FailureThreshold = 1, 1 })
	for name, c := range map[string]struct {
		cfg  Config
		ask  func(context.Context, time.Duration) error
		want []event
	}{
		"first result is reported": {Config{Probe: tcp(nil)}, between(0, 0), []event{{0, true, ""}}},
		"defaults: three failures, every ten seconds": {
			Config{Probe: tcp(nil)},
			between(15*time.Second, 45*time.Second),
			[]event{{0, true, ""}, {40 * time.Second, false, "ill"}, {50 * time.Second, true, ""}},
		},
		"short failure is not reported": {Config{Probe: tcp(nil)}, between(15*time.Second, 35*time.Second), []event{{0, true, ""}}},
		"unhealthy from the start":      {Config{Probe: tcp(nil)}, between(0, time.Hour), []event{{20 * time.Second, false, "ill"}}},
		"delay, period, thresholds": {
			Config{Probe: tcp(func(p *networkingv1alpha3.ReadinessProbe) {
				p.InitialDelaySeconds, p.PeriodSeconds, p.SuccessThreshold, p.FailureThreshold = 7, 2, 2, 1
			})},
			between(12*time.Second, 14*time.Second),
			[]event{{9 * time.Second, true, ""}, {13 * time.Second, false, "ill"}, {17 * time.Second, true, ""}},
		},
		"a timeout": {
			Config{Probe: tcp(func(p *networkingv1alpha3.ReadinessProbe) { p.TimeoutSeconds, p.FailureThreshold = 3, 1 })},
			never,
			[]event{{3 * time.Second, false, "context deadline exceeded"}},
		},
		"a check longer than a period": {
			Config{Probe: tcp(func(p *networkingv1alpha3.ReadinessProbe) { p.TimeoutSeconds, p.PeriodSeconds = 5, 2 })},
			never,
			[]event{{15 * time.Second, false, "context deadline exceeded"}},
		},
		"Envoy is not ready": {
			Config{Probe: tcp(func(p *networkingv1alpha3.ReadinessProbe) { p.FailureThreshold = 1 }), EnvoyReady: func(context.Context) error { return errors.New("no listeners") }},
			between(0, 0),
			[]event{{0, false, "envoy is not ready: no listeners"}},
		},
		"hanging Envoy": {
			Config{Probe: tcp(func(p *networkingv1alpha3.ReadinessProbe) { p.FailureThreshold = 1 }), EnvoyReady: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }},
			between(0, 0),
			[]event{{time.Second, false, "envoy is not ready: context deadline exceeded"}},
		},
		"busy Envoy": {Config{Probe: everySecond, EnvoyReady: busy(20*time.Second, 29*time.Second)}, between(0, 0), []event{{0, true, ""}}},
		"busy Envoy and unhealthy application": {
			Config{Probe: everySecond, EnvoyReady: busy(20*time.Second, 29*time.Second)},
			between(25*time.Second, 40*time.Second),
			[]event{{0, true, ""}, {25 * time.Second, false, "ill"}, {40 * time.Second, true, ""}},
		},
		"Envoy is busy for too long": {
			Config{Probe: everySecond, EnvoyReady: busy(20*time.Second, 40*time.Second)},
			between(0, 0),
			[]event{{0, true, ""}, {31 * time.Second, false, "envoy is not ready: context deadline exceeded"}, {40 * time.Second, true, ""}},
		},
		"shutdown during the initial delay": {Config{Probe: tcp(func(p *networkingv1alpha3.ReadinessProbe) { p.InitialDelaySeconds = 100 })}, between(0, 0), nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(c.want, runFor(t, c.cfg, 65*time.Second, c.ask)); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
		})
	}
}

// TestShutdownIsNoFailure checks that a check interrupted by shutdown has no result.
func TestShutdownIsNoFailure(t *testing.T) {
	t.Parallel()
	probe := tcp(func(p *networkingv1alpha3.ReadinessProbe) { p.FailureThreshold, p.TimeoutSeconds = 1, 100 })
	events := runFor(t, Config{Probe: probe}, time.Second, func(ctx context.Context, _ time.Duration) error { <-ctx.Done(); return ctx.Err() })
	if len(events) != 0 {
		t.Errorf("got reports %v, want none", events)
	}
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	runFor(t, Config{Probe: tcp(nil), Registerer: reg}, 35*time.Second, func(_ context.Context, at time.Duration) error {
		if at == 0 {
			return errors.New("not yet")
		}
		return nil
	})
	err := testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP outrigger_agent_health_checks_total Checks of the application's readiness on a machine, by result: success, failure.
# TYPE outrigger_agent_health_checks_total counter
outrigger_agent_health_checks_total{result="failure"} 1
outrigger_agent_health_checks_total{result="success"} 3
# HELP outrigger_agent_health_ready 1 while the application of a machine is ready, as it was last reported, else 0; 0 before the first verdict.
# TYPE outrigger_agent_health_ready gauge
outrigger_agent_health_ready 1
`))
	if err != nil {
		t.Error(err)
	}
	report, logger := func(bool, string) {}, slog.New(slog.DiscardHandler)
	if _, err := New(Config{Probe: tcp(nil), Registerer: reg, Report: report, Logger: logger}); err == nil {
		t.Error("metrics were registered twice")
	}
}

func TestNewErrors(t *testing.T) {
	t.Parallel()
	httpGet := func(g *networkingv1alpha3.HTTPHealthCheckConfig) *networkingv1alpha3.ReadinessProbe {
		return &networkingv1alpha3.ReadinessProbe{HealthCheckMethod: &networkingv1alpha3.ReadinessProbe_HttpGet{HttpGet: g}}
	}
	report, logger := func(bool, string) {}, slog.New(slog.DiscardHandler)
	for want, cfg := range map[string]Config{
		"no readinessProbe":      {Report: report, Logger: logger},
		"no receiver of reports": {Probe: tcp(nil), Logger: logger},
		"no logger":              {Probe: tcp(nil), Report: report},
		"none of httpGet, tcpSocket, exec and grpc":   {Probe: &networkingv1alpha3.ReadinessProbe{}, Report: report, Logger: logger},
		"httpGet.port is 0":                           {Probe: httpGet(&networkingv1alpha3.HTTPHealthCheckConfig{}), Report: report, Logger: logger},
		"httpGet.port is 65536":                       {Probe: httpGet(&networkingv1alpha3.HTTPHealthCheckConfig{Port: 65536}), Report: report, Logger: logger},
		`httpGet.scheme is "ftp"`:                     {Probe: httpGet(&networkingv1alpha3.HTTPHealthCheckConfig{Port: 1, Scheme: "ftp"}), Report: report, Logger: logger},
		"a header without a name":                     {Probe: httpGet(&networkingv1alpha3.HTTPHealthCheckConfig{Port: 1, HttpHeaders: []*networkingv1alpha3.HTTPHeader{{}}}), Report: report, Logger: logger},
		"tcpSocket.port is 0":                         {Probe: tcp(func(p *networkingv1alpha3.ReadinessProbe) { p.GetTcpSocket().Port = 0 }), Report: report, Logger: logger},
		"grpc.port is 0":                              {Probe: &networkingv1alpha3.ReadinessProbe{HealthCheckMethod: &networkingv1alpha3.ReadinessProbe_Grpc{}}, Report: report, Logger: logger},
		"exec.command is empty":                       {Probe: &networkingv1alpha3.ReadinessProbe{HealthCheckMethod: &networkingv1alpha3.ReadinessProbe_Exec{}}, Report: report, Logger: logger},
		"readinessProbe.failureThreshold is -1":       {Probe: tcp(func(p *networkingv1alpha3.ReadinessProbe) { p.FailureThreshold = -1 }), Report: report, Logger: logger},
		`source address of probes, "x", is not an IP`: {Probe: httpGet(&networkingv1alpha3.HTTPHealthCheckConfig{Port: 1}), SourceIP: "x", Report: report, Logger: logger},
	} {
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New() = %v, want %q", err, want)
		}
	}
}
