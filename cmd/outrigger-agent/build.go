// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"log/slog"
	"os"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/outrigger-mesh/outrigger/envoy"
	"github.com/outrigger-mesh/outrigger/xdsproxy"
)

// builder makes the parts of the agent one after the other; nothing runs yet.
type builder struct {
	cfg      *config
	socks    *sockets
	life     envoyLife
	log      *slog.Logger
	quit     func()
	registry *prometheus.Registry
	parts    *parts
}

// build makes the parts. ctx is done when the agent drains.
func (b *builder) build(ctx context.Context) (*parts, error) {
	b.registry = prometheus.NewRegistry()
	// With a prefix, as Istio's agent has it: the application's own metrics of
	// Go and of its process stand beside these.
	prometheus.WrapRegistererWithPrefix("istio_agent_", b.registry).MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	b.parts = &parts{binary: b.cfg.proxyConfig.GetBinaryPath(), hot: b.life.hotRestart}
	for _, step := range []func() error{b.lastGood, b.identity, b.dnsProxy, b.wasmCache, b.relay, b.envoy, b.debugPort, b.healthCheck} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	if b.socks.status == nil {
		return b.parts, nil
	}
	var err error
	b.parts.status, err = b.status(ctx)
	return b.parts, err
}

func (b *builder) scope(name string) *slog.Logger { return b.log.With("component", name) }

func (b *builder) relay() (err error) {
	cfg := b.cfg
	b.parts.relay, err = xdsproxy.New(xdsproxy.Config{
		Listener: b.socks.xds, Logger: b.scope("xdsproxy"), Registerer: b.registry,
		Consumers: b.consumers(), Rewriters: b.rewriters(), Check: b.fileCheck(), LastGood: lastGoodOf(b.parts.lastGood),
		Rejected: func(pid int, typeURL, reason string) {
			if b.parts.envoy != nil {
				b.parts.envoy.Rejected(pid, typeURL, reason)
			}
		},
		Upstream: xdsproxy.UpstreamConfig{
			Address: cfg.xds.address, ServerName: cfg.xds.serverName, TLS: cfg.xds.tlsConfig(b.certificate), Token: tokenSource(cfg.env.jwtPolicy),
			ClusterID: cfg.metadata.ClusterID, Headers: cfg.env.headers, Refused: b.refused,
			KeepaliveTime: cfg.env.keepaliveInterval, KeepaliveTimeout: cfg.env.keepaliveTimeout,
		},
	})
	return err
}

// envoy makes the process of Envoy, unless applications do without.
func (b *builder) envoy() (err error) {
	cfg := b.cfg
	if cfg.env.disableEnvoy {
		return nil
	}
	admin := envoy.NewAdmin(cfg.address(int(cfg.proxyConfig.GetProxyAdminPort())))
	drain := cfg.drain(b.life.now)
	drain.MaxDuration = b.life.maxDrain
	b.parts.envoy, err = envoy.New(envoy.Config{
		Binary: b.parts.binary, Args: cfg.envoyArgs, Admin: admin, Configured: b.parts.relay.Configured, Drain: drain, Restart: b.life.restart,
		HotRestart: hotRestart(cfg, b.life, b.parts.relay.Connected),
		Stdout:     os.Stdout, Stderr: os.Stderr, Logger: b.scope("envoy"), Registerer: b.registry,
	})
	return err
}

// refused renews a certificate that the control plane does not take.
func (b *builder) refused() {
	if b.parts.workload != nil {
		b.parts.workload.Renew()
	}
}
