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

// newRegistration creates the controller that registers machines. It follows objects
// even if registration is off, because it has the labels of their proxies.
func (s *Server) newRegistration(cfg Config, reg prometheus.Registerer) error {
	instance, err := instanceOf(cfg, os.Hostname)
	if err != nil {
		return err
	}
	s.registration, err = autoregister.New(autoregister.Config{
		Store: s.objects.store, Instance: instance, Grace: cfg.Registration.Grace, StrictAddress: cfg.Registration.StrictAddress,
		// Istio's rule; proxies that must reconnect do so within this time.
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

// instanceOf returns the name of this replica in WorkloadEntries: it survives a restart
// and differs from those of other replicas on this machine.
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

// presence returns the functions that are notified of proxies and return their labels.
func (s *Server) presence() discovery.PresenceConfig {
	p := discovery.PresenceConfig{Labels: s.labelsOf, Registered: s.objects.platform != nil}
	if s.registers {
		p.OnConnect = s.registration.Connect
	}
	return p
}

// gone is called when the stream of a proxy has ended.
func (s *Server) gone(proxy *model.Proxy) {
	s.health.Gone(proxy)
	s.registration.Gone(proxy)
}

// labelsOf returns the labels of the pod or the WorkloadEntry of a proxy, or nil if it
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
