// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// registryMetrics count events from clusters. Metrics with the prefix pilot_ have the names of
// Istio's control plane.
type registryMetrics struct {
	events  *prometheus.CounterVec
	skipped *prometheus.CounterVec
	awaited prometheus.GaugeFunc
}

func newRegistryMetrics(reg prometheus.Registerer, awaited func() float64) (*registryMetrics, error) {
	m := &registryMetrics{
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pilot_k8s_reg_events",
			Help: "Events of objects of clusters, by kind and event.",
		}, []string{"type", "event"}),
		skipped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "outrigger_control_kube_events_skipped_total",
			Help: "Number of events of objects of clusters that changed nothing for any proxy, by kind.",
		}, []string{"type"}),
		awaited: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "pilot_k8s_endpoints_pending_pod",
			Help: "Pods that endpoints name but that are unknown.",
		}, awaited),
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.events, m.skipped, m.awaited} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("registering metrics of services of Kubernetes: %w", err)
		}
	}
	return m, nil
}
