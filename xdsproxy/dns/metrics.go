// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package dns

import "github.com/prometheus/client_golang/prometheus"

// metrics are the server's counters. Names that begin with istio_agent_ are those of Istio's agent,
// for compatibility with dashboards.
type metrics struct {
	requests         prometheus.Counter
	upstreamRequests prometheus.Counter
	upstreamFailures prometheus.Counter
	upstreamSeconds  prometheus.Histogram
	stale            prometheus.Counter
	ignored          prometheus.Counter
	refused          *prometheus.CounterVec
	hosts            prometheus.Gauge
}

// Values of the reason label of outrigger_agent_dns_refused_total.
const (
	reasonMalformed   = "malformed"
	reasonUnsupported = "unsupported"
	reasonLoop        = "loop"
	reasonOverload    = "overload"
)

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		requests: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "istio_agent_dns_requests_total", Help: "DNS requests received.",
		}),
		upstreamRequests: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "istio_agent_dns_upstream_requests_total", Help: "DNS requests that were sent to upstream servers.",
		}),
		upstreamFailures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "istio_agent_dns_upstream_failures_total", Help: "DNS requests that no upstream server answered.",
		}),
		upstreamSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "istio_agent_dns_upstream_request_duration_seconds", Help: "Time until upstream servers answered.",
			Buckets: []float64{.001, .005, .01, .1, 1, 5},
		}),
		stale: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "outrigger_agent_dns_stale_answers_total",
			Help: "Requests that were answered with upstream's last answer because upstream did not respond.",
		}),
		ignored: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "outrigger_agent_dns_upstream_ignored_total",
			Help: "Messages from upstream addresses that match no pending request: late, damaged or forged.",
		}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "outrigger_agent_dns_refused_total", Help: "DNS requests that were refused.",
		}, []string{"reason"}),
		hosts: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "outrigger_agent_dns_hosts", Help: "Hosts of the name table that can be answered.",
		}),
	}
	if reg != nil {
		reg.MustRegister(m.requests, m.upstreamRequests, m.upstreamFailures, m.upstreamSeconds, m.stale, m.ignored, m.refused, m.hosts)
	}
	return m
}
