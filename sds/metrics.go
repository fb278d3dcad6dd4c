// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package sds

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics count requests to an authority.
type metrics struct {
	requests, failures, retries, renewalFailures prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	csr := prometheus.Labels{"request_type": "csr"}
	m := &metrics{
		requests: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "istio_agent_num_outgoing_requests", Help: "Number of requests to other servers.", ConstLabels: csr,
		}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "istio_agent_num_failed_outgoing_requests", Help: "Number of requests to other servers that failed.", ConstLabels: csr,
		}),
		retries: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "istio_agent_num_outgoing_retries", Help: "Number of requests to other servers that were retried.", ConstLabels: csr,
		}),
		renewalFailures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "outrigger_agent_cert_renewal_failures_total", Help: "Number of attempts to renew a certificate that failed.",
		}),
	}
	return m, register(reg, "the workload's identity", m.requests, m.failures, m.retries, m.renewalFailures)
}

func (m *metrics) failed(renewal bool) {
	m.failures.Inc()
	if renewal {
		m.renewalFailures.Inc()
	}
}

// fileMetrics count failures of files.
type fileMetrics struct {
	watcherFailures, secretFailures prometheus.Counter
}

func newFileMetrics(reg prometheus.Registerer) (*fileMetrics, error) {
	m := &fileMetrics{
		watcherFailures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "istio_agent_num_file_watcher_failures_total", Help: "Number of times that a file could not be watched.",
		}),
		secretFailures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "istio_agent_num_file_secret_failures_total", Help: "Number of times that files of a secret could not be used.",
		}),
	}
	return m, register(reg, "files", m.watcherFailures, m.secretFailures)
}

func register(reg prometheus.Registerer, what string, list ...prometheus.Collector) error {
	if reg == nil {
		return nil
	}
	for _, c := range list {
		if err := reg.Register(c); err != nil {
			return fmt.Errorf("registering metrics of %s: %w", what, err)
		}
	}
	return nil
}

// expiryCollector collects the remaining lifetime of certificates. It reports nothing for
// certificates that do not exist yet.
type expiryCollector struct {
	workload *Workload
	files    *Files // may be nil
}

func registerExpiry(reg prometheus.Registerer, w *Workload, files *Files) error {
	return register(reg, "the expiry of certificates", expiryCollector{w, files})
}

func expiryDesc() *prometheus.Desc {
	return prometheus.NewDesc("istio_agent_cert_expiry_seconds",
		"Time until the certificate expires, in seconds; negative once it has.", []string{"resource_name"}, nil)
}

func identityDesc() *prometheus.Desc {
	return prometheus.NewDesc("outrigger_agent_identity_left_seconds",
		"Time until peers refuse the workload because of an expired certificate, in seconds; negative once they do.", nil, nil)
}

// Describe implements prometheus.Collector.
func (c expiryCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- expiryDesc()
	ch <- identityDesc()
}

// Collect implements prometheus.Collector.
func (c expiryCollector) Collect(ch chan<- prometheus.Metric) {
	show := func(desc *prometheus.Desc, end time.Time, labels ...string) {
		if !end.IsZero() {
			ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, time.Until(end).Seconds(), labels...)
		}
	}
	s := c.workload.state.Load()
	if s.leaf != nil {
		show(expiryDesc(), s.leaf.end, NameDefault)
	}
	if s.roots != nil {
		show(expiryDesc(), s.roots.end, NameRoots)
	}
	if s.identity != nil {
		show(identityDesc(), s.identity.end())
	}
	if c.files == nil {
		return
	}
	for name, m := range c.files.all() {
		show(expiryDesc(), m.end, name)
	}
}
