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

// Defaults of the API, which are the same as in Kubernetes.
const (
	defaultTimeout          = time.Second
	defaultPeriod           = 10 * time.Second
	defaultSuccessThreshold = 1
	defaultFailureThreshold = 3
)

// envoyPatience is how long an Envoy that has been ready may take to respond. Its main thread may
// be busy with new configuration while it continues to serve.
const envoyPatience = 10 * time.Second

// Config is the configuration of a Checker.
type Config struct {
	// Probe is the readinessProbe of ProxyConfig. Required.
	Probe *networkingv1alpha3.ReadinessProbe
	// EnvoyReady returns nil if Envoy serves. Otherwise the application counts as failing. An Envoy
	// that has been ready may take 10 s to respond; a missing response is a
	// context.DeadlineExceeded. nil means that there is no Envoy.
	EnvoyReady func(ctx context.Context) error
	// Address is the host for probes that name none: the proxy's first address. Empty means
	// localhost.
	Address string
	// SourceIP is the source address of probes, which traffic interception exempts. If empty, the
	// kernel chooses.
	SourceIP string
	// Report is called with each change of state and a message that describes the problem. Run
	// waits for it. Required.
	Report func(healthy bool, message string)
	// Logger is required.
	Logger *slog.Logger
	// Registerer registers the metrics. nil means none.
	Registerer prometheus.Registerer
}

// Checker checks whether the application is ready.
type Checker struct {
	cfg                Config
	metrics            *metrics
	ask                func(ctx context.Context) error
	delay              time.Duration
	timeout            time.Duration
	period             time.Duration
	successes, failure int
	silent             time.Time // since when an Envoy that had been ready has not responded; zero if it responds or has never been ready
	served             bool      // Envoy's last response was that it is ready
}

// New checks the configuration and returns a Checker. It starts nothing.
func New(cfg Config) (*Checker, error) {
	switch {
	case cfg.Probe == nil:
		return nil, errors.New("there is no readinessProbe")
	case cfg.Report == nil:
		return nil, errors.New("the health check has no receiver of reports")
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

// Run checks until ctx is done: first after the initial delay, then once per period.
func (c *Checker) Run(ctx context.Context) error {
	select {
	case <-time.After(c.delay):
	case <-ctx.Done():
		return nil
	}
	var t tally
	// As in the kubelet, a check that takes longer than a period skips the next one.
	ticker := time.NewTicker(c.period)
	defer ticker.Stop()
	for {
		err := c.check(ctx)
		if ctx.Err() != nil {
			return nil // the result of an interrupted check is meaningless
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

// check performs one check. It checks Envoy first, because the application cannot be reached
// without it.
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

// askEnvoy checks Envoy and uses the last response if there is no new one.
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

// tally counts results like the kubelet.
type tally struct {
	last    bool // the last result
	run     int  // number of consecutive equal results
	known   bool // the state is known
	verdict bool
}

// add adds a result and reports whether the state has changed.
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

// metrics are the metrics of the health checker.
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
