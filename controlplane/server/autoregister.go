// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"os"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/controlplane/autoregister"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// newRegistration makes what registers machines. It hears of the objects even if
// it registers nobody: it knows the labels of their proxies.
func (s *Server) newRegistration(cfg Config, reg prometheus.Registerer) error {
	instance, err := instanceOf(cfg, os.Hostname)
	if err != nil {
		return err
	}
	s.registration, err = autoregister.New(autoregister.Config{
		Store: s.objects.store, Instance: instance, Grace: cfg.Registration.Grace, StrictAddress: cfg.Registration.StrictAddress,
		// Who is asked to connect anew does so in time for this to be Istio's rule.
		Orphaned: cfg.Keepalive.MaxAge + cfg.Keepalive.MaxAge/2,
		Logger:   s.log.With("component", "autoregister"), Registerer: reg,
	})
	if err != nil {
		return err
	}
	if s.registers = cfg.Registration.On; s.registers {
		s.objects.store.RegisterEventHandler(s.registration.Hear, model.WorkloadEntry, model.WorkloadGroup)
	} else {
		s.objects.store.RegisterEventHandler(s.registration.Index().Hear, model.WorkloadEntry)
	}
	return nil
}

// instanceOf names this replica in the entries: a name that a restart does not
// change, and that no other replica on this machine has.
func instanceOf(cfg Config, hostname func() (string, error)) (string, error) {
	if cfg.Registration.Instance != "" {
		return cfg.Registration.Instance, nil
	}
	host, err := hostname()
	if err != nil {
		return "", err
	}
	return host + "/" + strings.TrimPrefix(cfg.Listen.Secure, ":"), nil
}

// presence returns who hears of proxies and knows their labels.
func (s *Server) presence() discovery.PresenceConfig {
	p := discovery.PresenceConfig{Labels: s.labelsOf, Registered: s.objects.platform != nil}
	if s.registers {
		p.OnConnect = s.registration.Connect
	}
	return p
}

// gone takes a proxy whose stream has ended.
func (s *Server) gone(proxy *model.Proxy) {
	s.health.Gone(proxy)
	s.registration.Gone(proxy)
}

// labelsOf returns the labels of the pod or the WorkloadEntry of a proxy; nil if it
// has neither.
func (s *Server) labelsOf(proxy *model.Proxy) map[string]string {
	if s.objects.platform != nil {
		name := strings.TrimSuffix(proxy.ID, "."+proxy.Namespace)
		if labels := s.objects.platform.PodLabels(proxy.Namespace, name, proxy.ServiceAccount); labels != nil {
			return labels
		}
	}
	return s.registration.Index().Labels(proxy)
}
