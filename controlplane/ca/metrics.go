// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ca

import (
	"crypto/x509"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// registerRootExpiry shows when the first of the roots runs out.
func registerRootExpiry(reg prometheus.Registerer, roots []*x509.Certificate) error {
	if reg == nil {
		return nil
	}
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "citadel_server_root_cert_expiry_timestamp",
		Help: "Time at which the root certificate runs out, in seconds since 1970.",
	})
	first := roots[0].NotAfter
	for _, r := range roots[1:] {
		if r.NotAfter.Before(first) {
			first = r.NotAfter
		}
	}
	g.Set(float64(first.Unix()))
	return register(reg, g)
}

type serviceMetrics struct {
	requests, issued, unauthenticated prometheus.Counter
}

func newServiceMetrics(reg prometheus.Registerer) (*serviceMetrics, error) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &serviceMetrics{
		requests:        counter("citadel_server_csr_count", "Number of certificate requests that were received."),
		issued:          counter("citadel_server_success_cert_issuance_count", "Number of certificates that were issued."),
		unauthenticated: counter("citadel_server_authentication_failure_count", "Number of callers that could not be authenticated."),
	}
	if reg == nil {
		return m, nil
	}
	return m, register(reg, m.requests, m.issued, m.unauthenticated)
}

func register(reg prometheus.Registerer, collectors ...prometheus.Collector) error {
	for _, c := range collectors {
		if err := reg.Register(c); err != nil {
			return fmt.Errorf("registering metrics of the certificate authority: %w", err)
		}
	}
	return nil
}
