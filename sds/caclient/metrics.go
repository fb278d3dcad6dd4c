// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package caclient

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	latency prometheus.Counter
	skew    *skewCollector
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{skew: &skewCollector{}, latency: prometheus.NewCounter(prometheus.CounterOpts{
		Name:        "istio_agent_outgoing_latency",
		Help:        "Total time of requests to other servers, in milliseconds.",
		ConstLabels: prometheus.Labels{"request_type": "csr"},
	})}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.latency, m.skew} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("registering metrics of the certificate authority client: %w", err)
		}
	}
	return m, nil
}
