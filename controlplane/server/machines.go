// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"context"
	"log/slog"
	"os"
	"strings"

	"github.com/outrigger-mesh/outrigger/controlplane/autoregister"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery"
	"github.com/outrigger-mesh/outrigger/controlplane/health"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// machines are the workloads that report about themselves: their health, and, if they register,
// their entries in the store.
type machines struct {
	objects      *objects
	health       *health.Table
	reported     bool // health reports have an effect
	registration *autoregister.Controller
	registers    bool // creates entries; otherwise it only follows those of the store
}

// newMachines creates the table of health reports and the controller that registers machines, which
// follows objects even if registration is off, because it has the labels of their proxies.
func newMachines(cfg Config, in *objects, log *slog.Logger, table health.Config) (m machines, err error) {
	m = machines{objects: in, reported: cfg.Health, registers: cfg.Registration.On}
	table.Logger = log.With("component", "health")
	if m.health, err = health.New(table); err != nil {
		return m, err
	}
	instance, err := instanceOf(cfg, os.Hostname)
	if err != nil {
		return m, err
	}
	m.registration, err = autoregister.New(autoregister.Config{
		Store: in.store, Instance: instance, Grace: cfg.Registration.Grace, StrictAddress: cfg.Registration.StrictAddress,
		// Istio's rule; proxies that must reconnect do so within this time.
		Orphaned: cfg.Keepalive.MaxAge + cfg.Keepalive.MaxAge/2,
		Logger:   log.With("component", "autoregister"), Registerer: table.Registerer,
	})
	if err != nil {
		return m, err
	}
	if m.registers {
		in.store.RegisterEventHandler(m.registration.Hear, model.WorkloadEntry, model.WorkloadGroup)
	} else {
		in.store.RegisterEventHandler(m.registration.Index().Hear, model.WorkloadEntry)
	}
	return m, nil
}

// run registers machines until ctx is done.
func (m *machines) run(ctx context.Context) error {
	if !m.registers {
		return nil
	}
	return m.registration.Run(ctx)
}

// reports returns the function for health reports of agents, or nil if they are ignored.
func (m *machines) reports() func(*model.Proxy, bool, string) {
	if !m.reported {
		return nil
	}
	return m.health.Report
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
func (m *machines) presence() discovery.PresenceConfig {
	p := discovery.PresenceConfig{Labels: m.labelsOf, Registered: m.objects.platform != nil}
	if m.registers {
		p.OnConnect = m.registration.Connect
	}
	return p
}

// gone is called when the stream of a proxy has ended.
func (m *machines) gone(proxy *model.Proxy) {
	m.health.Gone(proxy)
	m.registration.Gone(proxy)
}

// labelsOf returns the labels of the pod or the WorkloadEntry of a proxy, or nil if it
// has neither.
func (m *machines) labelsOf(proxy *model.Proxy) map[string]string {
	if m.objects.platform != nil {
		name := strings.TrimSuffix(proxy.ID, "."+proxy.Namespace)
		if labels := m.objects.platform.PodLabels(proxy.Namespace, name, proxy.ServiceAccount); labels != nil {
			return labels
		}
	}
	return m.registration.Index().Labels(proxy)
}
