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

// statusLease is held by the replica that writes the status of the objects of a
// cluster; the name is Istio's.
const statusLease = "istio-status-leader"

// newStatus makes what writes the status of objects, and what leaves the events
// of status alone out of the pushes. The store does not run yet.
func (s *Server) newStatus(cfg Config, reg prometheus.Registerer) error {
	s.skipped = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "outrigger_control_config_events_skipped_total",
		Help: "Changes of configuration objects that made no push, because they change the status alone, or what a store keeps for itself.",
	}, []string{"kind"})
	if err := reg.Register(s.skipped); err != nil {
		return fmt.Errorf("registering metrics of events: %w", err)
	}
	writer := objectstatus.Config{
		Store: s.objects.store, Distribution: s.discovery.Distribution, InForce: snapshot.InForce, Off: !cfg.Status.On,
		Denied:     apierrors.IsForbidden,
		Limits:     objectstatus.Limits{Workers: cfg.Status.Workers, QPS: cfg.Status.QPS, Burst: cfg.Status.Burst},
		Logger:     s.log.With("component", "status"),
		Registerer: reg,
	}
	if cfg.Health {
		writer.Health = s.health.Verdict
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

// leader returns what has one replica at a time do what writes, by a lease in the
// store; nil if all may, as with files, which one replica serves.
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

// reports returns what takes the reports of agents; nil if they do not count.
func (s *Server) reports() func(*model.Proxy, bool, string) {
	if !s.healthOn {
		return nil
	}
	return s.health.Report
}

// hear takes the events of the stores: those that can change what proxies get go
// on to the next snapshot.
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
	s.health.Follow(entries)
	if len(effective) > 0 {
		s.debounce.Add(config.Change(effective))
	}
}
