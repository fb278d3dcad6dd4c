// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/outrigger-mesh/outrigger/bootstrap"
)

// The variables that say where metrics are read from.
const (
	nameSecureMetrics = "ENVOY_SECURE_METRICS_PORT"
	nameSecureMerged  = "ENVOY_SECURE_MERGED_METRICS_PORT"
	nameMetricsLocal  = "METRICS_LOCALHOST_ACCESS_ONLY"
)

// portOrNone takes a port, or 0 for none.
func portOrNone(field func(*environment) *int) func(*environment, string) error {
	return func(e *environment, s string) error {
		n, err := strconv.ParseUint(s, 10, 16)
		if err != nil {
			return fmt.Errorf("%q is no port from 0 (none) to 65535", s)
		}
		*field(e) = int(n)
		return nil
	}
}

// metrics are the ports of metrics as the bootstrap has them.
func (e scrapeEnvironment) metrics() bootstrap.Metrics {
	return bootstrap.Metrics{SecurePort: e.securePort, SecureMergedPort: e.secureMergedPort, LocalOnly: e.localOnly}
}

// checkMetrics refuses ports of metrics that could not be bound, or that would
// let others read than was asked for.
func checkMetrics(cfg *config) error {
	e, statusPort := cfg.env.scrape, int(cfg.proxyConfig.GetStatusPort())
	if bind, err := netip.ParseAddr(cfg.env.bindAddress); e.localOnly && err == nil && !bind.IsLoopback() {
		return fmt.Errorf("environment variable %s is true, but OUTRIGGER_BIND_ADDRESS is %s, where others reach all ports: set only one of them, or bind to a loopback address", nameMetricsLocal, bind)
	}
	if e.secureMergedPort != 0 && statusPort == 0 {
		return fmt.Errorf("environment variable %s is %d, but statusPort of ProxyConfig is 0, so there are no merged metrics: set both or neither", nameSecureMerged, e.secureMergedPort)
	}
	taken := map[int]string{
		int(cfg.proxyConfig.GetProxyAdminPort()): "proxyAdminPort of ProxyConfig", statusPort: "statusPort of ProxyConfig",
		cfg.env.statusPort: "ENVOY_STATUS_PORT", cfg.env.prometheusPort: "ENVOY_PROMETHEUS_PORT",
	}
	if cfg.env.relay.debug {
		taken[cfg.env.relay.debugPort] = "PROXY_XDS_DEBUG_VIA_AGENT_PORT"
	}
	claim := func(name string, port int) error {
		if other, clash := taken[port]; port != 0 && clash {
			return fmt.Errorf("environment variable %s is %d, which is the port of %s: choose another", name, port, other)
		}
		taken[port] = name
		return nil
	}
	return errors.Join(claim(nameSecureMetrics, e.securePort), claim(nameSecureMerged, e.secureMergedPort))
}
