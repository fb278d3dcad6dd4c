// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package denylist

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	entries  *prometheus.GaugeVec
	rejected prometheus.Gauge
}

func newMetrics() *metrics {
	return &metrics{
		entries: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "outrigger_control_deny_list_entries", Help: "Number of entries of the deny list in force, by kind and version of the list.",
		}, []string{"kind", "version"}),
		rejected: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "outrigger_control_deny_list_rejected", Help: "1 while the file of the deny list has an error and the last good list is in force.",
		}),
	}
}

// register registers the metrics; a nil registerer disables them.
func (m *metrics) register(reg prometheus.Registerer) error {
	if reg == nil {
		return nil
	}
	for _, c := range []prometheus.Collector{m.entries, m.rejected} {
		if err := reg.Register(c); err != nil {
			return fmt.Errorf("registering metrics of the deny list: %w", err)
		}
	}
	return nil
}

// show sets the metrics to the list in force.
func (m *metrics) show(l *List) {
	m.entries.Reset()
	namespaces := 0
	for _, id := range l.identities {
		if id.ServiceAccount == anyAccount {
			namespaces++
		}
	}
	for kind, n := range map[string]int{"identity": len(l.identities) - namespaces, "namespace": namespaces, "serial": len(l.serials)} {
		m.entries.WithLabelValues(kind, l.version).Set(float64(n))
	}
}
