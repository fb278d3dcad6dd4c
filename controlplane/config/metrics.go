// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package config

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// newProblemGauge gives the gauge of one store.
func newProblemGauge(r prometheus.Registerer, store string) (prometheus.Gauge, error) {
	vec, err := shared(r, prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "outrigger_control_config_problems",
		Help: "Things that are wrong with configuration objects of a store now.",
	}, []string{"store"}))
	if err != nil {
		return nil, fmt.Errorf("register metrics of config store %s: %w", store, err)
	}
	return vec.WithLabelValues(store), nil
}

// countEvents makes a store that was not run yet count its events.
func countEvents(r prometheus.Registerer, s Store) error {
	vec, err := shared(r, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "outrigger_control_config_events_total",
		Help: "Changes of configuration objects that a store told of, by kind and by event: add, update or delete.",
	}, []string{"store", "kind", "event"}))
	if err != nil {
		return fmt.Errorf("register metrics of config store %s: %w", s.Name(), err)
	}
	s.RegisterEventHandler(func(events []Event) {
		for _, e := range events {
			vec.WithLabelValues(s.Name(), string(e.Current().Kind), e.Type.String()).Inc()
		}
	})
	return nil
}

// shared registers a metric that the stores of one program share, and gives the
// one that is registered already when there is one.
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
