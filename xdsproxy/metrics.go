// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xdsproxy

import "github.com/prometheus/client_golang/prometheus"

// metrics are the metrics of the relay. Names with istio_agent_ are those of Istio's
// agent, which dashboards use.
type metrics struct {
	requests      prometheus.Counter
	responses     prometheus.Counter
	rejected      *prometheus.CounterVec
	own           *prometheus.CounterVec
	dropped       *prometheus.CounterVec
	questions     *prometheus.CounterVec
	dialFailures  prometheus.Counter
	upstreamEnds  *prometheus.CounterVec
	envoyEnds     *prometheus.CounterVec
	connected     prometheus.Gauge
	attempts      prometheus.Gauge
	backoffSecond prometheus.Gauge
	lastGood      prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	m := &metrics{
		requests:     counter("istio_agent_xds_proxy_requests", "xDS requests forwarded to the control plane, including the agent's own."),
		responses:    counter("istio_agent_xds_proxy_responses", "xDS responses received from the control plane."),
		rejected:     counters("outrigger_agent_xds_rejected_total", "xDS responses that Envoy rejected.", "type_url"),
		own:          counters("outrigger_agent_xds_own_responses_total", "xDS responses for the agent itself, accepted or rejected.", "type_url", "result"),
		dropped:      counters("outrigger_agent_xds_dropped_total", "xDS messages without a receiver.", "reason"),
		questions:    counters("outrigger_agent_xds_debug_requests_total", "Debug queries that were forwarded to the control plane.", "result"),
		dialFailures: counter("istio_agent_istiod_connection_failures", "Failed attempts to reach the control plane."),
		upstreamEnds: counters("istio_agent_istiod_connection_terminations", "Streams to the control plane that ended.", "type"),
		envoyEnds:    counters("istio_agent_envoy_connection_terminations", "Streams from Envoy that ended.", "type"),
		connected: gauge("outrigger_agent_xds_connected",
			"Envoy's streams that are joined to a stream of the control plane: 1, during a hot restart 2, or 0 while the control plane is unreachable."),
		attempts: gauge("outrigger_agent_xds_failed_attempts", "Consecutive failed attempts to reach the control plane; 0 after a success."),
		backoffSecond: gauge("outrigger_agent_xds_backoff_seconds",
			"Pause before the next attempt to reach the control plane; 0 when none is pending."),
		lastGood: gauge("outrigger_agent_xds_last_good_streams", "Envoy's streams that are served the last good configuration because the control plane is unreachable."),
	}
	if reg != nil {
		reg.MustRegister(m.requests, m.responses, m.rejected, m.own, m.dropped, m.questions, m.dialFailures, m.upstreamEnds, m.envoyEnds,
			m.connected, m.attempts, m.backoffSecond, m.lastGood)
	}
	return m
}

// lastResponse returns the metric of the time of the last response.
func (p *Proxy) lastResponse() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "outrigger_agent_xds_last_response_timestamp_seconds",
		Help: "Time of the last response of the control plane, in seconds since 1970; 0 if there was none.",
	}, func() float64 {
		at := p.Status().LastResponse
		if at.IsZero() {
			return 0
		}
		return float64(at.UnixMilli()) / 1000
	})
}

// endType returns the label of a stream's end: "cancelled" if it was expected, else
// "error".
func endType(expected bool) string {
	if expected {
		return "cancelled"
	}
	return "error"
}
