// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package health

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
)

// Defaults of the API's documentation, which are those of Kubernetes.
const (
	defaultTimeout          = time.Second
	defaultPeriod           = 10 * time.Second
	defaultSuccessThreshold = 1
	defaultFailureThreshold = 3
)

// envoyPatience is for how long an Envoy that was ready may take to answer: its
// main thread is busy with new configuration then, and what it serves goes on.
const envoyPatience = 10 * time.Second

// Config is what a Checker needs.
type Config struct {
	// Probe is readinessProbe of ProxyConfig. Required.
	Probe *networkingv1alpha3.ReadinessProbe
	// EnvoyReady answers nil when Envoy serves; while it does not, the application
	// counts as failing. One that was ready may be silent for 10 s: that is a
	// context.DeadlineExceeded. nil: there is no Envoy.
	EnvoyReady func(ctx context.Context) error
	// Address is the host to ask when the probe names none: the proxy's first
	// address. Empty: localhost.
	Address string
	// SourceIP is the address that probes come from, so that traffic capture
	// leaves them alone. Empty: the kernel chooses.
	SourceIP string
	// Report takes each verdict that differs from the last one; the message says
	// what is wrong. Run waits for it. Required.
	Report func(healthy bool, message string)
	// Logger is required.
	Logger *slog.Logger
	// Registerer takes the metrics. nil: none.
	Registerer prometheus.Registerer
}

// Checker asks the application whether it is ready.
type Checker struct {
	cfg                Config
	metrics            *metrics
	ask                func(ctx context.Context) error
	delay              time.Duration
	timeout            time.Duration
	period             time.Duration
	successes, failure int
	silent             time.Time // since when Envoy, which was ready, does not answer; zero: it does, or never was
	served             bool      // Envoy's last answer was that it is ready
}

// New checks the configuration. It starts nothing.
func New(cfg Config) (*Checker, error) {
	switch {
	case cfg.Probe == nil:
		return nil, errors.New("there is no readinessProbe")
	case cfg.Report == nil:
		return nil, errors.New("the health check has nobody to report to")
	case cfg.Logger == nil:
		return nil, errors.New("the health check has no logger")
	}
	for field, value := range map[string]int32{
		"initialDelaySeconds": cfg.Probe.GetInitialDelaySeconds(), "timeoutSeconds": cfg.Probe.GetTimeoutSeconds(), "periodSeconds": cfg.Probe.GetPeriodSeconds(),
		"successThreshold": cfg.Probe.GetSuccessThreshold(), "failureThreshold": cfg.Probe.GetFailureThreshold(),
	} {
		if value < 0 {
			return nil, fmt.Errorf("readinessProbe.%s is %d: use 0 for the default, or more", field, value)
		}
	}
	ask, err := newQuestion(cfg)
	if err != nil {
		return nil, fmt.Errorf("readinessProbe: %w", err)
	}
	m, err := newMetrics(cfg.Registerer)
	if err != nil {
		return nil, err
	}
	return &Checker{
		cfg: cfg, metrics: m, ask: ask,
		delay:     time.Duration(cfg.Probe.GetInitialDelaySeconds()) * time.Second,
		timeout:   secondsOr(cfg.Probe.GetTimeoutSeconds(), defaultTimeout),
		period:    secondsOr(cfg.Probe.GetPeriodSeconds(), defaultPeriod),
		successes: orDefault(cfg.Probe.GetSuccessThreshold(), defaultSuccessThreshold),
		failure:   orDefault(cfg.Probe.GetFailureThreshold(), defaultFailureThreshold),
	}, nil
}

func secondsOr(value int32, otherwise time.Duration) time.Duration {
	if value == 0 {
		return otherwise
	}
	return time.Duration(value) * time.Second
}

func orDefault(value, otherwise int32) int {
	if value == 0 {
		value = otherwise
	}
	return int(value)
}

// Run asks until ctx is done: first after the delay, then in each period.
func (c *Checker) Run(ctx context.Context) error {
	select {
	case <-time.After(c.delay):
	case <-ctx.Done():
		return nil
	}
	var t tally
	// A check that takes longer than a period costs the next one, as in the kubelet.
	ticker := time.NewTicker(c.period)
	defer ticker.Stop()
	for {
		err := c.check(ctx)
		if ctx.Err() != nil {
			return nil // what was asked last says nothing
		}
		c.metrics.count(err)
		if t.add(err == nil, c.successes, c.failure) {
			c.report(err)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// check asks once: Envoy first, because nobody reaches the application without it.
func (c *Checker) check(ctx context.Context) error {
	if c.cfg.EnvoyReady != nil {
		if err := c.askEnvoy(ctx); err != nil {
			return fmt.Errorf("envoy is not ready: %w", err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	return c.ask(ctx)
}

// askEnvoy uses the last answer in place of one that does not come.
func (c *Checker) askEnvoy(ctx context.Context) error {
	begun := time.Now()
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	err := c.cfg.EnvoyReady(ctx)
	if !errors.Is(err, context.DeadlineExceeded) {
		c.served, c.silent = err == nil, time.Time{}
		return err
	}
	if c.silent.IsZero() {
		c.silent = begun
	}
	if c.served && time.Since(c.silent) <= envoyPatience {
		return nil
	}
	return err
}

func (c *Checker) report(err error) {
	if err == nil {
		c.cfg.Logger.Info("the application is ready")
		c.metrics.healthy.Set(1)
		c.cfg.Report(true, "")
		return
	}
	c.cfg.Logger.Warn("the application is not ready", "err", err)
	c.metrics.healthy.Set(0)
	c.cfg.Report(false, err.Error())
}

// tally counts results as the kubelet does.
type tally struct {
	last    bool // the last result
	run     int  // how often it came in a row
	known   bool // there is a verdict
	verdict bool
}

// add takes a result and tells whether it makes a verdict that is new.
func (t *tally) add(healthy bool, successes, failures int) bool {
	if healthy != t.last {
		t.last, t.run = healthy, 0
	}
	t.run++
	threshold := failures
	if healthy {
		threshold = successes
	}
	if t.run < threshold || t.known && t.verdict == healthy {
		return false
	}
	t.known, t.verdict = true, healthy
	return true
}

// metrics are the health check's own.
type metrics struct {
	checks  *prometheus.CounterVec
	healthy prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		checks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "outrigger_agent_health_checks_total", Help: "Checks of the application's readiness on a machine, by result: success, failure.",
		}, []string{"result"}),
		healthy: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "outrigger_agent_health_ready", Help: "1 while the application of a machine is ready, as it was last reported, else 0; 0 before the first verdict.",
		}),
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.checks, m.healthy} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("register the metrics of the health check: %w", err)
		}
	}
	return m, nil
}

func (m *metrics) count(err error) {
	result := "success"
	if err != nil {
		result = "failure"
	}
	m.checks.WithLabelValues(result).Inc()
}
