// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package agent

import (
	"github.com/outrigger-mesh/outrigger/status/health"
)

// healthCheck creates the health check of an application that no kubelet probes.
func (b *builder) healthCheck() (err error) {
	probe := b.cfg.proxyConfig.GetReadinessProbe()
	if probe == nil {
		return nil
	}
	c := health.Config{
		Probe: probe, Address: b.cfg.node.IP, SourceIP: b.probeSource(), Report: b.parts.relay.ReportHealth,
		Logger: b.logger("healthcheck"), Registerer: b.registry,
	}
	if b.cfg.env.Probe.LegacyLocalhost {
		c.Address = ""
	}
	if b.parts.envoy != nil {
		c.EnvoyReady = b.parts.envoy.Ready
	}
	b.parts.health, err = health.New(c)
	return err
}

// probeSource returns the source address of probes, which the redirect rules do not
// capture, or "" if the kernel chooses it.
func (b *builder) probeSource() string {
	switch {
	case b.cfg.metadata.InterceptionMode == "NONE", b.cfg.env.BindAddress != "":
		return ""
	case b.cfg.local == "::1":
		return "::6"
	}
	return "127.0.0.6"
}
