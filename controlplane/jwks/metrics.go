// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package jwks

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics count the fetches of a Follower.
type metrics struct {
	succeeded, failed prometheus.Counter
	sources           prometheus.Gauge
}

func newMetrics() *metrics {
	return &metrics{
		succeeded: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "pilot_jwks_resolver_network_fetch_success_total",
			Help: "Fetches of the keys of token issuers that RequestAuthentications name.",
		}),
		failed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "pilot_jwks_resolver_network_fetch_fail_total",
			Help: "Fetches that failed of the keys of token issuers that RequestAuthentications name.",
		}),
		sources: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "outrigger_control_jwks_sources",
			Help: "Number of URLs and issuers from which the keys of RequestAuthentications are fetched.",
		}),
	}
}

func (m *metrics) register(reg prometheus.Registerer) error {
	if reg == nil {
		return nil
	}
	for _, c := range []prometheus.Collector{m.succeeded, m.failed, m.sources} {
		if err := reg.Register(c); err != nil {
			return fmt.Errorf("registering metrics of key sets: %w", err)
		}
	}
	return nil
}

func (m *metrics) fetched(err error) {
	if err != nil {
		m.failed.Inc()
		return
	}
	m.succeeded.Inc()
}
