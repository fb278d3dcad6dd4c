// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/controlplane/replicas"
)

// replicaVariables are the rows of the table about other replicas.
func replicaVariables() []variable {
	return []variable{
		{"OUTRIGGER_REPLICAS", "", "where the replicas of this control plane answer on --httpAddr, as host:port with commas between; a name stands for all of its addresses, as that of a headless service does. They ask each other how many proxies they have, and one that has more than its share has some connect again (default: proxies stay where they are)", func(e *environment, s string) error {
			e.replicas = nil
			for item := range strings.SplitSeq(s, ",") {
				if item = strings.TrimSpace(item); item != "" {
					e.replicas = append(e.replicas, item)
				}
			}
			_, err := replicas.Resolve(e.replicas)
			return err
		}},
	}
}

// newReplicas makes what evens out load with other replicas, if there are any.
func (s *server) newReplicas(env environment, reg prometheus.Registerer) error {
	if len(env.replicas) == 0 {
		return nil
	}
	peers, err := replicas.Resolve(env.replicas)
	if err != nil {
		return err
	}
	s.replicas, err = replicas.New(replicas.Config{
		Peers: peers, Load: s.discovery.Load, Shed: s.discovery.Shed,
		Ready:  func() bool { return s.discovery.Ready() && !s.stopping.Load() },
		Logger: s.log.With("component", "replicas"), Registerer: reg,
	})
	return err
}
