// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package agent

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/outrigger-mesh/outrigger/agent/environ"
	"github.com/outrigger-mesh/outrigger/bootstrap"
)

// The variables that configure the ports of metrics.
const (
	nameSecureMetrics = "ENVOY_SECURE_METRICS_PORT"
	nameSecureMerged  = "ENVOY_SECURE_MERGED_METRICS_PORT"
	nameMetricsLocal  = "METRICS_LOCALHOST_ACCESS_ONLY"
)

// bootstrapMetrics returns the ports of metrics in the form of the bootstrap.
func bootstrapMetrics(m environ.Metrics) bootstrap.Metrics {
	return bootstrap.Metrics{SecurePort: m.SecurePort, SecureMergedPort: m.SecureMergedPort, LocalOnly: m.LocalOnly}
}

// checkMetrics returns an error for ports of metrics that cannot be bound, or that
// more peers could read than configured.
func checkMetrics(cfg *settings) error {
	e, statusPort := cfg.env.Metrics, int(cfg.proxyConfig.GetStatusPort())
	if bind, err := netip.ParseAddr(cfg.env.BindAddress); e.LocalOnly && err == nil && !bind.IsLoopback() {
		return fmt.Errorf("environment variable %s is true, but OUTRIGGER_BIND_ADDRESS is %s, where other hosts reach all ports: set only one of them, or bind to a loopback address", nameMetricsLocal, bind)
	}
	if e.SecureMergedPort != 0 && statusPort == 0 {
		return fmt.Errorf("environment variable %s is %d, but statusPort of ProxyConfig is 0, so there are no merged metrics: set both or neither", nameSecureMerged, e.SecureMergedPort)
	}
	taken := map[int]string{
		int(cfg.proxyConfig.GetProxyAdminPort()): "proxyAdminPort of ProxyConfig", statusPort: "statusPort of ProxyConfig",
		cfg.env.Envoy.StatusPort: "ENVOY_STATUS_PORT", cfg.env.Envoy.PrometheusPort: "ENVOY_PROMETHEUS_PORT",
	}
	if cfg.env.Debug.Enabled {
		taken[cfg.env.Debug.Port] = "PROXY_XDS_DEBUG_VIA_AGENT_PORT"
	}
	claim := func(name string, port int) error {
		if other, clash := taken[port]; port != 0 && clash {
			return fmt.Errorf("environment variable %s is %d, which is the port of %s: choose another one", name, port, other)
		}
		taken[port] = name
		return nil
	}
	return errors.Join(claim(nameSecureMetrics, e.SecurePort), claim(nameSecureMerged, e.SecureMergedPort))
}
