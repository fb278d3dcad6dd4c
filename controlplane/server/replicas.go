// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/controlplane/replicas"
)

// newReplicas creates the balancer of load between replicas, if others are configured.
func (s *Server) newReplicas(cfg Config, reg prometheus.Registerer) error {
	if len(cfg.Replicas) == 0 {
		return nil
	}
	peers, err := replicas.Resolve(cfg.Replicas)
	if err != nil {
		return err
	}
	s.replicas, err = replicas.New(replicas.Config{
		Peers: peers, Load: s.discovery.Load, Shed: s.discovery.Shed,
		Ready:  func() bool { return s.discovery.Ready() && !s.ports.stopping.Load() },
		Logger: s.log.With("component", "replicas"), Registerer: reg,
	})
	return err
}
