// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/kube"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/objectstatus"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// statusLease is held by the replica that writes the status of the objects of a
// cluster; the name is Istio's.
const statusLease = "istio-status-leader"

// statusEnvironment is the part of the environment about the status of objects.
type statusEnvironment struct {
	on, health     bool
	workers, burst int
	qps            float64
}

// statusVariables are the rows of the table about the status of objects.
func statusVariables() []variable {
	return []variable{
		{"PILOT_ENABLE_STATUS", "true", "writes into the status of objects whether all proxies have acknowledged them (condition Reconciled) and what is wrong with them (validationMessages, condition PassedAnalysis)", boolean(func(e *environment) *bool { return &e.status.on })},
		{"PILOT_STATUS_MAX_WORKERS", "100", "writes of status at a time", count(func(e *environment) *int { return &e.status.workers })},
		{"PILOT_STATUS_QPS", "100", "writes of status in a second, on average", func(e *environment, s string) error {
			qps, err := strconv.ParseFloat(s, 64)
			if err != nil || !(qps > 0) {
				return fmt.Errorf("%q is no number above 0", s)
			}
			e.status.qps = qps
			return nil
		}},
		{"PILOT_STATUS_BURST", "500", "writes of status that may come at once", count(func(e *environment) *int { return &e.status.burst })},
		{"PILOT_ENABLE_WORKLOAD_ENTRY_HEALTHCHECKS", "true", "takes machines whose agents say that the application is unhealthy out of service, and writes it into the status of their WorkloadEntry (condition Healthy)", boolean(func(e *environment) *bool { return &e.status.health })},
	}
}

func count(field func(*environment) *int) func(*environment, string) error {
	return func(e *environment, s string) error {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			return fmt.Errorf("%q is no number: write 1 or more", s)
		}
		*field(e) = n
		return nil
	}
}

// newStatus makes what writes the status of objects, and what leaves the events
// of status alone out of the pushes. The store does not run yet.
func (s *server) newStatus(f flags, env environment, reg prometheus.Registerer) error {
	s.skipped = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "outrigger_control_config_events_skipped_total",
		Help: "Changes of configuration objects that made no push, because they change the status alone, or what a store keeps for itself.",
	}, []string{"kind"})
	if err := reg.Register(s.skipped); err != nil {
		return fmt.Errorf("registering metrics of events: %w", err)
	}
	cfg := objectstatus.Config{
		Store: s.store, Distribution: s.discovery.Distribution, InForce: snapshot.InForce, Off: !env.status.on,
		Denied:     apierrors.IsForbidden,
		Limits:     objectstatus.Limits{Workers: env.status.workers, QPS: env.status.qps, Burst: env.status.burst},
		Logger:     s.log.With("component", "status"),
		Registerer: reg,
	}
	if env.status.health {
		cfg.Health = s.health.Verdict
	}
	var err error
	if cfg.Lead, err = s.leader(f, env, statusLease); err != nil {
		return err
	}
	if s.status, err = objectstatus.New(cfg); err != nil {
		return err
	}
	s.store.RegisterEventHandler(s.hear)
	return nil
}

// leader gives what has one replica at a time do what writes, by a lease in the
// store; nil if all may, as with files, which one replica serves.
func (s *server) leader(f flags, env environment, lease string) (func(context.Context, func(context.Context) error) error, error) {
	addresses, err := s.sources(f)
	if err != nil || !env.kube.election {
		return nil, err
	}
	if s.kube != nil && slices.ContainsFunc(addresses, func(a string) bool { return strings.HasPrefix(a, "k8s:") }) {
		return func(ctx context.Context, work func(context.Context) error) error {
			return s.kube.Lead(ctx, kube.Lease{Namespace: env.podNamespace, Name: lease, Identity: env.kube.podName}, work)
		}, nil
	}
	if elector := config.ElectorOf(s.store); elector != nil {
		return func(ctx context.Context, work func(context.Context) error) error {
			return elector.Lead(ctx, lease, env.kube.podName, work)
		}, nil
	}
	return nil, nil
}

// reports gives what takes the reports of agents; nil if they do not count.
func (s *server) reports() func(*model.Proxy, bool, string) {
	if !s.healthOn {
		return nil
	}
	return s.health.Report
}

// hear takes the events of the stores: those that can change what proxies get go
// on to the next snapshot.
func (s *server) hear(events []config.Event) {
	s.status.Hear(events)
	effective := make([]config.Event, 0, len(events))
	var entries []*model.Config
	for _, e := range events {
		if objectstatus.Effective(e) {
			effective = append(effective, e)
			continue
		}
		s.skipped.WithLabelValues(string(e.New.Kind)).Inc()
		if e.New.Kind == model.WorkloadEntry {
			entries = append(entries, e.New)
		}
	}
	s.health.Follow(entries)
	if len(effective) > 0 {
		s.debounce.Add(config.Change(effective))
	}
}
