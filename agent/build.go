// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package agent

import (
	"context"
	"log/slog"
	"os"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/outrigger-mesh/outrigger/bootstrap"
	"github.com/outrigger-mesh/outrigger/bootstrap/node"
	"github.com/outrigger-mesh/outrigger/envoy"
)

// builder creates the components of the agent one after the other, and starts nothing.
type builder struct {
	cfg      *settings
	socks    *sockets
	log      *slog.Logger
	quit     func()
	registry *prometheus.Registry
	parts    *parts
}

// build creates the components. ctx is done when the agent drains.
func (b *builder) build(ctx context.Context) (*parts, error) {
	b.registry = prometheus.NewRegistry()
	// The prefix is that of Istio's agent. It distinguishes these metrics from the
	// application's metrics of Go and of its process.
	prometheus.WrapRegistererWithPrefix("istio_agent_", b.registry).MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "istio_build", Help: "The version of the agent, as tag; always 1."}, []string{"component", "tag"})
	build.WithLabelValues("proxy", b.cfg.version).Set(1)
	b.registry.MustRegister(build)
	b.parts = &parts{socks: b.socks, binary: b.cfg.proxyConfig.GetBinaryPath(), hot: b.cfg.flags.HotRestart, limited: !b.cfg.env.GoTuned, unsafe: b.cfg.flags.AllowUnsafeEnvoy || b.cfg.env.AllowUnsafeEnvoy}
	for _, step := range []func() error{b.lastGood, b.identity, b.dnsProxy, b.wasmCache, b.relay, b.envoy, b.debugPort, b.healthCheck} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	if b.parts.envoy != nil {
		b.parts.credentials = newCredentials(ctx, b.admin(), b.cfg.env.Workload.Namespace, b.socks.external, b.parts.relay.Status)
	}
	b.registry.MustRegister(outageCollector{b.holdings})
	b.parts.manager, b.parts.state = b.cfg.env.Manager, b.state
	if b.socks.status == nil {
		return b.parts, nil
	}
	var err error
	b.parts.status, err = b.status(ctx)
	return b.parts, err
}

// logger returns the logger of a component.
func (b *builder) logger(name string) *slog.Logger { return b.log.With("component", name) }

// envoy creates the process of Envoy, unless it is disabled.
func (b *builder) envoy() (err error) {
	cfg := b.cfg
	if cfg.env.Envoy.Disabled {
		return nil
	}
	b.parts.envoy, err = envoy.New(envoy.Config{
		Binary: b.parts.binary, AllowUnsafe: b.parts.unsafe, Args: cfg.envoyArgs, Admin: b.admin(), Configured: b.parts.relay.Configured, Drain: cfg.drain(), Restart: cfg.flags.Restart,
		Env: append(node.WorkloadOf(cfg.metadata.WorkloadName, cfg.metadata.Namespace, cfg.metadata.ClusterID, cfg.metadata.Labels).Environ(),
			bootstrap.Environ(cfg.env.Compliance)...),
		HotRestart: hotRestart(cfg, b.parts.relay.Connected), Prepare: b.bootstrapPatch(),
		Stdout: os.Stdout, Stderr: os.Stderr, Logger: b.logger("envoy"), Registerer: b.registry,
	})
	return err
}

// admin returns a client of Envoy's admin port.
func (b *builder) admin() *envoy.Admin {
	return envoy.NewAdmin(b.cfg.address(int(b.cfg.proxyConfig.GetProxyAdminPort())))
}
