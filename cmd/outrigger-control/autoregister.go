// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/controlplane/autoregister"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// registerEnvironment is the part of the environment about machines that join a
// group by themselves.
type registerEnvironment struct {
	on, strict bool
	grace      time.Duration
	podName    string // as it was given; empty if it was not
}

// registerVariables are the rows of the table about them.
func registerVariables() []variable {
	return []variable{
		{"PILOT_ENABLE_WORKLOAD_ENTRY_AUTOREGISTRATION", "true", "makes a WorkloadEntry for each proxy that names a WorkloadGroup (ISTIO_META_AUTO_REGISTER_GROUP), proves on the TLS port that it has the group's service account, and is not at an address of another workload", boolean(func(e *environment) *bool { return &e.register.on })},
		{"PILOT_WORKLOAD_ENTRY_GRACE_PERIOD", "10s", "how long the WorkloadEntry of a proxy that has left stays, for the case that it comes back", duration(func(e *environment) *time.Duration { return &e.register.grace })},
		{"OUTRIGGER_WORKLOAD_ENTRY_STRICT_ADDRESS", "false", "registers only proxies that connect from the address that they say is theirs; leave it off if machines connect through a gateway or a load balancer", boolean(func(e *environment) *bool { return &e.register.strict })},
	}
}

// newRegistration makes what registers machines. It hears of the objects even if
// it registers nobody: it knows the labels of their proxies.
func (s *server) newRegistration(f flags, env environment, reg prometheus.Registerer) error {
	instance, err := instanceOf(f, env, os.Hostname)
	if err != nil {
		return err
	}
	s.registration, err = autoregister.New(autoregister.Config{
		Store: s.store, Instance: instance, Grace: env.register.grace, StrictAddress: env.register.strict,
		// Who is asked to connect anew does so in time for this to be Istio's rule.
		Orphaned: f.maxAge + f.maxAge/2,
		Logger:   s.log.With("component", "autoregister"), Registerer: reg,
	})
	if err != nil {
		return err
	}
	if s.registers = env.register.on; s.registers {
		s.store.RegisterEventHandler(s.registration.Hear, model.WorkloadEntry, model.WorkloadGroup)
	} else {
		s.store.RegisterEventHandler(s.registration.Index().Hear, model.WorkloadEntry)
	}
	return nil
}

// instanceOf names this replica in the entries: a name that a restart does not
// change, and that no other replica on this machine has.
func instanceOf(f flags, env environment, hostname func() (string, error)) (string, error) {
	if env.register.podName != "" {
		return env.register.podName, nil
	}
	host, err := hostname()
	if err != nil {
		return "", err
	}
	return host + "/" + strings.TrimPrefix(f.secureGRPCAddr, ":"), nil
}

// presence gives who hears of proxies and knows their labels.
func (s *server) presence() discovery.PresenceConfig {
	p := discovery.PresenceConfig{Labels: s.labelsOf, Registered: s.platform != nil}
	if s.registers {
		p.OnConnect = func(p discovery.Presence) error { return s.registration.Connect(autoregister.Peer(p)) }
	}
	return p
}

// gone takes a proxy whose stream has ended.
func (s *server) gone(proxy *model.Proxy) {
	s.health.Gone(proxy)
	s.registration.Gone(proxy)
}

// labelsOf gives the labels of the pod or the WorkloadEntry of a proxy; nil if it
// has neither.
func (s *server) labelsOf(proxy *model.Proxy) map[string]string {
	if s.platform != nil {
		name := strings.TrimSuffix(proxy.ID, "."+proxy.Namespace)
		if labels := s.platform.PodLabels(proxy.Namespace, name, proxy.ServiceAccount); labels != nil {
			return labels
		}
	}
	return s.registration.Index().Labels(proxy)
}
