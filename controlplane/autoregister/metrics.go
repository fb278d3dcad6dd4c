// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package autoregister

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// The reasons why a proxy is not registered, as values of the metric's label.
const (
	refusedProxy    = "proxy"    // not authenticated, or no address of its own
	refusedGroup    = "group"    // does not exist
	refusedIdentity = "identity" // the service account differs from that of the group
	refusedAddress  = "address"  // belongs to a workload of another identity
	refusedName     = "name"     // the entry name is taken
	refusedInvalid  = "invalid"  // the proxy reports invalid values
	refusedFlood    = "flood"    // too many registrations of its service account
)

// metrics uses Istio's names where they exist.
type metrics struct {
	success, updates, unregistered, deletes, errors prometheus.Counter
	refused                                         *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &metrics{
		success:      counter("auto_registration_success_total", "Workload entries that were created because a proxy of their group connected."),
		updates:      counter("auto_registration_updates_total", "Workload entries that were changed because their proxy reconnected, or their group or proxy changed."),
		unregistered: counter("auto_registration_unregister_total", "Workload entries that were marked because their proxy disconnected, or because no replica reports it as connected."),
		deletes:      counter("auto_registration_deletes_total", "Workload entries that were removed because their proxy did not reconnect, or may no longer have one."),
		errors:       counter("auto_registration_errors_total", "Writes of workload entries that failed and are retried."),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "outrigger_control_autoregister_refused_total",
			Help: "Proxies that name a group and were not registered, by reason: proxy, group, identity, address, name, invalid or flood.",
		}, []string{"reason"}),
	}
	if reg == nil {
		return m, nil
	}
	for _, collector := range []prometheus.Collector{m.success, m.updates, m.unregistered, m.deletes, m.errors, m.refused} {
		if err := reg.Register(collector); err != nil {
			return nil, fmt.Errorf("registering the metrics of registration: %w", err)
		}
	}
	return m, nil
}
