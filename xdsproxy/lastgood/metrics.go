// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package lastgood

import (
	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the metrics of the store.
type metrics struct {
	refused *prometheus.CounterVec
	bytes   prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer, s *Store) *metrics {
	m := &metrics{
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "outrigger_agent_last_good_refused_total",
			Help: "Times that the last good configuration was not used or not stored, by reason.",
		}, []string{"reason"}),
		bytes: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "outrigger_agent_last_good_bytes",
			Help: "Size of the file with the last good configuration.",
		}),
	}
	if reg != nil {
		reg.MustRegister(m.refused, m.bytes, age{s})
	}
	return m
}

// age is the gauge of the age of the last good configuration. It has no value if there is none.
type age struct{ store *Store }

func (age) desc() *prometheus.Desc {
	return prometheus.NewDesc("outrigger_agent_last_good_age_seconds",
		"Age of the configuration with which Envoy starts if the control plane cannot be reached; absent while there is none.", nil, nil)
}

func (a age) Describe(ch chan<- *prometheus.Desc) { ch <- a.desc() }

func (a age) Collect(ch chan<- prometheus.Metric) {
	if !a.store.From().IsZero() {
		ch <- prometheus.MustNewConstMetric(a.desc(), prometheus.GaugeValue, a.store.Age().Seconds())
	}
}
