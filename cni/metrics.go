// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package cni

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are those of a node, with the names of istio-cni.
type metrics struct {
	registry *prometheus.Registry
	ready    prometheus.Gauge
	installs *prometheus.CounterVec
	repaired *prometheus.CounterVec

	isReady atomic.Bool
}

func newMetrics() *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		ready: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "istio_cni_install_ready",
			Help: "Whether the plugin is installed on the node, 1 or 0.",
		}),
		installs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "istio_cni_installs_total",
			Help: "Installations of the plugin on the node, including repairs of changes by others.",
		}, []string{"result"}),
		repaired: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "istio_cni_repair_pods_repaired_total",
			Help: "Pods that were started without rules and were repaired, deleted or labeled.",
		}, []string{"type", "result"}),
	}
	m.registry.MustRegister(m.ready, m.installs, m.repaired)
	return m
}

func (m *metrics) setReady(is bool) {
	m.isReady.Store(is)
	m.ready.Set(map[bool]float64{true: 1}[is])
}
