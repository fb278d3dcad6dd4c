// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics counts operations in clusters. It is shared by all Clients; a nil Metrics counts nothing.
type Metrics struct {
	leader   *prometheus.GaugeVec
	roots    *prometheus.CounterVec
	requests *prometheus.CounterVec
}

// NewMetrics registers the metrics. reg may be nil.
func NewMetrics(reg prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		leader: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "outrigger_control_kube_leader",
			Help: "1 while this replica holds the lease, else 0.",
		}, []string{"lease"}),
		roots: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "outrigger_control_kube_root_writes_total",
			Help: "Number of times that the roots were written to a namespace.",
		}, []string{"result"}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "outrigger_control_kube_signing_requests_total",
			Help: "Number of certificates that were requested through certificates.k8s.io.",
		}, []string{"result"}),
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.leader, m.roots, m.requests} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("registering metrics of Kubernetes: %w", err)
		}
	}
	return m, nil
}

func (m *Metrics) leads(lease string, is bool) {
	if m == nil {
		return
	}
	value := 0.0
	if is {
		value = 1
	}
	m.leader.WithLabelValues(lease).Set(value)
}

func (m *Metrics) wroteRoots(err error) {
	if m != nil {
		m.roots.WithLabelValues(result(err)).Inc()
	}
}

func (m *Metrics) asked(err error) {
	if m != nil {
		m.requests.WithLabelValues(result(err)).Inc()
	}
}

func result(err error) string {
	if err != nil {
		return "error"
	}
	return "ok"
}
