// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package config

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// newProblemGauge gives the gauge of one store. Stores of one program share
// the metric.
func newProblemGauge(r prometheus.Registerer, store string) (prometheus.Gauge, error) {
	vec := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "outrigger_control_config_problems",
		Help: "Things that are wrong with configuration objects of a store now.",
	}, []string{"store"})
	if r != nil {
		if err := r.Register(vec); err != nil {
			var already prometheus.AlreadyRegisteredError
			existing, ok := (*prometheus.GaugeVec)(nil), false
			if errors.As(err, &already) {
				existing, ok = already.ExistingCollector.(*prometheus.GaugeVec)
			}
			if !ok {
				return nil, fmt.Errorf("register metrics of config store %s: %w", store, err)
			}
			vec = existing
		}
	}
	return vec.WithLabelValues(store), nil
}
