// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package objectstatus

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct{ writes *prometheus.CounterVec }

func newMetrics(reg prometheus.Registerer, missing func() float64) (*metrics, error) {
	m := &metrics{writes: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "outrigger_control_status_writes_total",
		Help: "Writes of the status of an object, by result: ok, conflict (another writer was faster; the write is retried) or error.",
	}, []string{"result"})}
	if reg == nil {
		return m, nil
	}
	gauge := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "outrigger_control_unacknowledged_objects",
		Help: "Objects whose last change is not in force in every proxy that is connected to this replica: being sent, or rejected.",
	}, missing)
	for _, c := range []prometheus.Collector{m.writes, gauge} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("registering metrics of the status of objects: %w", err)
		}
	}
	return m, nil
}
