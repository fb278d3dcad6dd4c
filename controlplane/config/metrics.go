// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package config

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// problemGauge counts the problems of stores when it is collected.
type problemGauge struct {
	desc, behind *prometheus.Desc

	mu     sync.Mutex // guards the fields below
	stores []Reader
}

// countProblems registers the metric of the problems of a store.
func countProblems(r prometheus.Registerer, s Reader) error {
	gauge, err := shared(r, &problemGauge{
		desc: prometheus.NewDesc(
			"outrigger_control_config_problems", "Current problems of configuration objects of a store.", []string{"store"}, nil),
		behind: prometheus.NewDesc(
			"outrigger_control_config_behind_seconds", "How long a store has applied no changes because reading its directory does not finish; 0 if it does.", []string{"store"}, nil),
	})
	if err != nil {
		return fmt.Errorf("register metrics of config store %s: %w", s.Name(), err)
	}
	gauge.mu.Lock()
	defer gauge.mu.Unlock()
	gauge.stores = append(gauge.stores, s)
	return nil
}

// Describe implements [prometheus.Collector].
func (g *problemGauge) Describe(out chan<- *prometheus.Desc) {
	out <- g.desc
	out <- g.behind
}

// Collect implements [prometheus.Collector]. Stores of one name share a value.
func (g *problemGauge) Collect(out chan<- prometheus.Metric) {
	g.mu.Lock()
	stores := slices.Clone(g.stores)
	g.mu.Unlock()
	counts, behind := map[string]int{}, map[string]float64{}
	for _, s := range stores {
		counts[s.Name()] += model.CountProblems(s.Problems())
		if f, ok := s.(interface{ Behind() time.Time }); ok {
			behind[s.Name()] += 0
			if since := f.Behind(); !since.IsZero() {
				behind[s.Name()] = max(behind[s.Name()], time.Since(since).Seconds())
			}
		}
	}
	for name, seconds := range behind {
		out <- prometheus.MustNewConstMetric(g.behind, prometheus.GaugeValue, seconds, name)
	}
	for name, n := range counts {
		out <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, float64(n), name)
	}
}

// countEvents registers the metric of the events of a store, which must not run yet.
func countEvents(r prometheus.Registerer, s Store) error {
	vec, err := shared(r, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "outrigger_control_config_events_total",
		Help: "Changes of configuration objects that a store reported, by kind and by event: add, update or delete.",
	}, []string{"store", "kind", "event"}))
	if err != nil {
		return fmt.Errorf("register metrics of config store %s: %w", s.Name(), err)
	}
	// Dashboards of Istio use this name.
	all, err := shared(r, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "pilot_k8s_cfg_events",
		Help: "Changes of configuration objects in all stores, by kind and by event: add, update or delete.",
	}, []string{"type", "event"}))
	if err != nil {
		return fmt.Errorf("register metrics of config store %s: %w", s.Name(), err)
	}
	s.RegisterEventHandler(func(events []Event) {
		for _, e := range events {
			kind, event := string(e.Current().Kind), e.Type.String()
			vec.WithLabelValues(s.Name(), kind, event).Inc()
			all.WithLabelValues(kind, event).Inc()
		}
	})
	return nil
}

// shared registers a metric that the stores of one program share, or returns the one
// that is already registered.
func shared[C prometheus.Collector](r prometheus.Registerer, c C) (C, error) {
	if r == nil {
		return c, nil
	}
	err := r.Register(c)
	var already prometheus.AlreadyRegisteredError
	if errors.As(err, &already) {
		if existing, ok := already.ExistingCollector.(C); ok {
			return existing, nil
		}
	}
	return c, err
}
