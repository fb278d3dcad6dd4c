// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/kube"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/objectstatus"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// statusLease is the lease of the replica that writes the status of a cluster's objects.
// The name is Istio's.
const statusLease = "istio-status-leader"

// newStatus creates the writer of object status, and the filter that drops events that
// change only the status. The store must not run yet.
func (s *Server) newStatus(cfg Config, reg prometheus.Registerer) error {
	s.skipped = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "outrigger_control_config_events_skipped_total",
		Help: "Changes of configuration objects without a push, because only their status or internal fields of the store changed.",
	}, []string{"kind"})
	if err := reg.Register(s.skipped); err != nil {
		return fmt.Errorf("registering metrics of events: %w", err)
	}
	writer := objectstatus.Config{
		Store: s.objects.store, Distribution: s.discovery.Distribution, Generated: s.discovery.Problems, Matched: s.discovery.Matched, InForce: snapshot.InForce, Off: !cfg.Status.On,
		Denied:     apierrors.IsForbidden,
		Limits:     objectstatus.Limits{Workers: cfg.Status.Workers, QPS: cfg.Status.QPS, Burst: cfg.Status.Burst},
		Logger:     s.log.With("component", "status"),
		Registerer: reg,
	}
	if cfg.Health {
		writer.Health = s.machines.health.Verdict
	}
	var err error
	if writer.Lead, err = s.leader(cfg, statusLease); err != nil {
		return err
	}
	if s.status, err = objectstatus.New(writer); err != nil {
		return err
	}
	s.objects.store.RegisterEventHandler(s.hear)
	return nil
}

// leader returns a function that runs a writer in one replica at a time, by a lease in
// the store. It returns nil if all replicas may write, as with files, which only one
// replica serves.
func (s *Server) leader(cfg Config, lease string) (func(context.Context, func(context.Context) error) error, error) {
	addresses, err := s.sources(cfg)
	if err != nil || !cfg.Cluster.Election {
		return nil, err
	}
	if s.kube != nil && slices.ContainsFunc(addresses, func(a string) bool { return strings.HasPrefix(a, "k8s:") }) {
		return func(ctx context.Context, work func(context.Context) error) error {
			return s.kube.Lead(ctx, kube.Lease{Namespace: cfg.Namespace, Name: lease, Identity: cfg.PodName}, work)
		}, nil
	}
	if elector := config.ElectorOf(s.objects.store); elector != nil {
		return func(ctx context.Context, work func(context.Context) error) error {
			return elector.Lead(ctx, lease, cfg.PodName, work)
		}, nil
	}
	return nil, nil
}

// hear processes the events of the stores. Those that can change the configuration of
// proxies are added to the next snapshot.
func (s *Server) hear(events []config.Event) {
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
	s.machines.health.Follow(entries)
	if len(effective) > 0 {
		s.debounce.Add(config.Change(effective))
	}
}
