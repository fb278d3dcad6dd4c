// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package authn

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics counts key fetches and token reviews. It is shared by all authenticators; a nil Metrics
// counts nothing.
type Metrics struct {
	fetches *prometheus.CounterVec
	good    *prometheus.GaugeVec
	reviews *prometheus.CounterVec
}

// NewMetrics registers the metrics. reg may be nil.
func NewMetrics(reg prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		fetches: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "outrigger_control_authn_key_fetches_total",
			Help: "Number of times that the keys of an issuer of tokens were fetched.",
		}, []string{"issuer", "result"}),
		good: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "outrigger_control_authn_keys_timestamp_seconds",
			Help: "Time at which the keys of an issuer of tokens were last fetched, in seconds since 1970.",
		}, []string{"issuer"}),
		reviews: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "outrigger_control_authn_token_reviews_total",
			Help: "Number of tokens to be reviewed by a Kubernetes API server.",
		}, []string{"result"}),
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.fetches, m.good, m.reviews} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("registering metrics of authentication: %w", err)
		}
	}
	return m, nil
}

func (m *Metrics) fetched(issuer string, err error) {
	if m == nil {
		return
	}
	if err != nil {
		m.fetches.WithLabelValues(issuer, "error").Inc()
		return
	}
	m.fetches.WithLabelValues(issuer, "ok").Inc()
	m.good.WithLabelValues(issuer).SetToCurrentTime()
}

func (m *Metrics) reviewed(result string) {
	if m != nil {
		m.reviews.WithLabelValues(result).Inc()
	}
}
