// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package sds

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	requests, failures, retries, renewalFailures prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, current func() *Identity) (*metrics, error) {
	counter := func(name, help string, labels prometheus.Labels) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels})
	}
	csr := prometheus.Labels{"request_type": "csr"}
	m := &metrics{
		requests:        counter("istio_agent_num_outgoing_requests", "Number of requests to other servers.", csr),
		failures:        counter("istio_agent_num_failed_outgoing_requests", "Number of requests to other servers that did not work.", csr),
		retries:         counter("istio_agent_num_outgoing_retries", "Number of requests to other servers that were made again.", csr),
		renewalFailures: counter("outrigger_agent_cert_renewal_failures_total", "Number of attempts to renew a certificate that did not work.", nil),
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.requests, m.failures, m.retries, m.renewalFailures, expiryCollector{current}} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("registering metrics of the workload's identity: %w", err)
		}
	}
	return m, nil
}

func (m *metrics) failed(renewal bool) {
	m.failures.Inc()
	if renewal {
		m.renewalFailures.Inc()
	}
}

// expiryCollector shows the time that is left when it is scraped. It shows
// nothing before the first certificate.
type expiryCollector struct {
	current func() *Identity
}

func expiryDesc() *prometheus.Desc {
	return prometheus.NewDesc("istio_agent_cert_expiry_seconds",
		"Time until the certificate runs out, in seconds; negative once it has.", []string{"resource_name"}, nil)
}

// Describe implements prometheus.Collector.
func (c expiryCollector) Describe(ch chan<- *prometheus.Desc) { ch <- expiryDesc() }

// Collect implements prometheus.Collector.
func (c expiryCollector) Collect(ch chan<- prometheus.Metric) {
	id := c.current()
	if id == nil {
		return
	}
	show := func(name string, end time.Time) {
		ch <- prometheus.MustNewConstMetric(expiryDesc(), prometheus.GaugeValue, time.Until(end).Seconds(), name)
	}
	show(NameDefault, id.NotAfter)
	root := id.roots[0].NotAfter
	for _, r := range id.roots[1:] {
		if r.NotAfter.Before(root) {
			root = r.NotAfter
		}
	}
	show(NameRoots, root)
}
