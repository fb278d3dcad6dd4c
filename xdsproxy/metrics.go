// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xdsproxy

import "github.com/prometheus/client_golang/prometheus"

// metrics are the relay's counters. Names with istio_agent_ are those of
// Istio's agent, which dashboards know.
type metrics struct {
	requests      prometheus.Counter
	responses     prometheus.Counter
	rejected      *prometheus.CounterVec
	dialFailures  prometheus.Counter
	upstreamEnds  *prometheus.CounterVec
	envoyEnds     *prometheus.CounterVec
	connected     prometheus.Gauge
	backoffSecond prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	byType := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	}
	m := &metrics{
		requests:     counter("istio_agent_xds_proxy_requests", "xDS requests forwarded to the control plane."),
		responses:    counter("istio_agent_xds_proxy_responses", "xDS responses received from the control plane."),
		rejected:     byType("outrigger_agent_xds_rejected_total", "xDS responses that Envoy rejected.", "type_url"),
		dialFailures: counter("istio_agent_istiod_connection_failures", "Attempts to reach the control plane that did not succeed."),
		upstreamEnds: byType("istio_agent_istiod_connection_terminations", "Streams to the control plane that ended.", "type"),
		envoyEnds:    byType("istio_agent_envoy_connection_terminations", "Streams from Envoy that ended.", "type"),
		connected: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "outrigger_agent_xds_connected",
			Help: "Envoy's streams that are joined to a stream of the control plane: 1, during a hot restart 2, or 0 while the control plane is away.",
		}),
		backoffSecond: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "outrigger_agent_xds_backoff_seconds",
			Help: "Pause before the next attempt to reach the control plane; 0 when none is pending.",
		}),
	}
	if reg != nil {
		reg.MustRegister(m.requests, m.responses, m.rejected, m.dialFailures, m.upstreamEnds, m.envoyEnds,
			m.connected, m.backoffSecond)
	}
	return m
}

// endType is the label of a stream's end: "cancelled" when somebody wanted
// it, "error" else.
func endType(expected bool) string {
	if expected {
		return "cancelled"
	}
	return "error"
}
