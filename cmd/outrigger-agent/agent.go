// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
	"github.com/outrigger-mesh/outrigger/envoy"
	"github.com/outrigger-mesh/outrigger/sds"
	"github.com/outrigger-mesh/outrigger/sds/caclient"
	"github.com/outrigger-mesh/outrigger/status"
	"github.com/outrigger-mesh/outrigger/xdsproxy"
)

// envoyLife is what the command line says of Envoy's life.
type envoyLife struct {
	restart  envoy.Restart
	maxDrain time.Duration
	// now is closed by a second signal: end without draining.
	now <-chan struct{}
}

// runAgent binds what the agent listens on, builds its parts and runs them
// until ctx is done or a part ends.
func runAgent(ctx context.Context, cfg *config, log *slog.Logger, life envoyLife) error {
	ctx, quit := context.WithCancel(ctx)
	defer quit()
	socks, err := bind(cfg)
	if err != nil {
		return err
	}
	defer socks.close()
	removeBootstrap, err := writeBootstrap(cfg)
	if err != nil {
		return err
	}
	defer removeBootstrap()
	parts, err := build(ctx, cfg, socks, builder{log: log, life: life, quit: quit})
	if err != nil {
		return err
	}
	if err := writeGRPCBootstrap(cfg, log); err != nil {
		return err
	}
	return parts.run(ctx, log)
}

// parts are what the agent is made of.
type parts struct {
	ca       *caclient.Client
	workload *sds.Workload
	secrets  *sds.Server
	relay    *xdsproxy.Proxy
	status   *status.Server // nil when the status port is off
	envoy    *envoy.Process
	binary   string
}

// run runs the parts. Envoy ends first, whatever the cause: a signal, or a
// part that ended by itself. The others serve it until then.
func (p *parts) run(ctx context.Context, log *slog.Logger) error {
	var g errgroup.Group
	proxying, stopEnvoy := context.WithCancel(ctx)
	defer stopEnvoy()
	helping, stopHelpers := context.WithCancel(context.WithoutCancel(ctx))
	defer stopHelpers()
	start := func(name string, run func(context.Context) error) {
		g.Go(func() error {
			defer stopEnvoy()
			if err := run(helping); err != nil {
				log.Error("a part of the agent has ended, and ends the agent", "name", name, "err", err)
				return fmt.Errorf("%s: %w", name, err)
			}
			return nil
		})
	}
	start("ca", p.ca.Run)             // reads requests to sign, feeds the certificate authority
	start("workload", p.workload.Run) // reads signed certificates, feeds secrets and every TLS handshake
	start("sds", p.secrets.Run)       // reads the workload's identity, feeds Envoy over the SDS socket
	start("xdsproxy", p.relay.Run)    // reads the control plane's stream, feeds Envoy over the XDS socket, and back
	if p.status != nil {
		start("status", p.status.Run) // reads Envoy's admin port, the identity and the application, feeds probes and scrapes
	}
	g.Go(func() error { // reads nothing, feeds the system: memory that only the start needed
		giveBackMemory(helping)
		return nil
	})
	ended, tooOld := make(chan struct{}), make(chan error, 1)
	g.Go(func() error { // reads Envoy's version, feeds the one sentence that an Envoy too old needs
		err := checkVersion(proxying, p.binary, ended)
		if err != nil {
			stopEnvoy()
		}
		tooOld <- err
		return nil
	})
	g.Go(func() error { // Envoy: reads both sockets, feeds the application; drains before it ends
		defer stopHelpers()
		err := p.envoy.Run(proxying)
		close(ended)
		if old := <-tooOld; old != nil {
			return old
		}
		return err
	})
	return g.Wait()
}

// versionDelay keeps the check of Envoy's version, which starts a second Envoy
// for a moment, out of the way of the start.
const versionDelay = time.Second

// checkVersion refuses an Envoy that is too old, a moment after its start or
// when it has ended: an old one may end over the bootstrap, and that would be
// all the log says. It is not asked for once the agent drains.
func checkVersion(ctx context.Context, binary string, ended <-chan struct{}) error {
	timer := time.NewTimer(versionDelay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ended:
	case <-ctx.Done():
	}
	if ctx.Err() != nil {
		return nil
	}
	_, err := envoy.CheckVersion(ctx, binary)
	if ctx.Err() != nil {
		return nil // cut short
	}
	return err
}

// builder is what building the parts needs beside the configuration.
type builder struct {
	log  *slog.Logger
	life envoyLife
	quit func()
}

// build makes the parts; nothing runs yet. ctx is done when the agent drains.
func build(ctx context.Context, cfg *config, socks *sockets, b builder) (*parts, error) {
	registry := prometheus.NewRegistry()
	// With a prefix, as Istio's agent has it: the application's own metrics of
	// Go and of its process stand beside these.
	prometheus.WrapRegistererWithPrefix("istio_agent_", registry).MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	scope := func(name string) *slog.Logger { return b.log.With("component", name) }
	p := &parts{binary: cfg.proxyConfig.GetBinaryPath()}
	token := tokenSource(cfg.env.jwtPolicy)
	// The authority is asked with the certificate that is renewed, if there is one.
	certificate := func() *tls.Certificate { return p.workload.Certificate() }
	clusterID := cfg.metadata.ClusterID

	var err error
	caConfig := caclient.Config{
		Address: cfg.ca.address, ServerName: cfg.ca.serverName, TLS: cfg.ca.tlsConfig(certificate), Token: token,
		ClusterID: clusterID, CertSigner: certSigner(cfg.metadata), Logger: scope("ca"), Registerer: registry,
	}
	if caConfig.TLS == nil {
		caConfig.Token = nil // never in plaintext
	}
	if p.ca, err = caclient.New(caConfig); err != nil {
		return nil, err
	}
	p.workload, err = sds.NewWorkload(sds.WorkloadConfig{
		ID: cfg.identity, KeyType: cfg.keyType, TTL: cfg.env.secretTTL, GraceRatio: cfg.env.graceRatio,
		Sign: p.ca.Sign, Logger: scope("sds"), Registerer: registry,
	})
	if err != nil {
		return nil, err
	}
	if p.secrets, err = sds.NewServer(sds.ServerConfig{Listener: socks.sds, Workload: p.workload, Logger: scope("sds")}); err != nil {
		return nil, err
	}
	p.relay, err = xdsproxy.New(xdsproxy.Config{
		Listener: socks.xds, Logger: scope("xdsproxy"), Registerer: registry,
		Upstream: xdsproxy.UpstreamConfig{
			Address: cfg.xds.address, ServerName: cfg.xds.serverName, TLS: cfg.xds.tlsConfig(certificate), Token: token,
			ClusterID: clusterID, Headers: cfg.env.headers,
		},
	})
	if err != nil {
		return nil, err
	}
	admin := envoy.NewAdmin(cfg.address(int(cfg.proxyConfig.GetProxyAdminPort())))
	drain := cfg.drain(b.life.now)
	drain.MaxDuration = b.life.maxDrain
	p.envoy, err = envoy.New(envoy.Config{
		Binary: p.binary, Args: cfg.envoyArgs, Admin: admin, Drain: drain, Restart: b.life.restart,
		Stdout: os.Stdout, Stderr: os.Stderr, Logger: scope("envoy"), Registerer: registry,
	})
	if err != nil || socks.status == nil {
		return p, err
	}
	p.status, err = newStatus(ctx, cfg, statusParts{
		socks: socks, envoy: p.envoy, workload: p.workload, registry: registry, log: scope("status"), quit: b.quit,
	})
	return p, err
}

// statusParts is what the status server is built from.
type statusParts struct {
	socks    *sockets
	envoy    *envoy.Process
	workload *sds.Workload
	registry *prometheus.Registry
	log      *slog.Logger
	quit     func()
}

func newStatus(ctx context.Context, cfg *config, s statusParts) (*status.Server, error) {
	instance := cfg.node.IP
	if cfg.env.legacyProbeLocalhost {
		instance = "localhost"
	}
	source := ""
	if cfg.metadata.InterceptionMode != "NONE" && cfg.env.bindAddress == "" {
		// The rules that capture traffic let this address pass.
		if source = "127.0.0.6"; cfg.local == "::1" {
			source = "::6"
		}
	}
	return status.New(status.Config{
		Listener: s.socks.status,
		Ready:    readiness(s.envoy, s.workload),
		Draining: func() bool { return ctx.Err() != nil || s.envoy.Draining() },
		// Through Envoy's own listener, as everybody else sees it.
		EnvoyMetricsURL: "http://" + cfg.address(cfg.env.prometheusPort) + "/stats/prometheus",
		AppScrape:       cfg.appScrape,
		Gatherer:        s.registry,
		Probers:         cfg.probers,
		InstanceIP:      instance,
		ProbeSourceIP:   source,
		Loopback:        status.Loopback{Quit: s.quit, Drain: s.envoy.Drain, Profiling: cfg.profiling, Debug: debugHandlers(cfg)},
		Logger:          s.log,
		Registerer:      s.registry,
	})
}

// readiness answers nil when Envoy serves and the workload can prove who it is.
func readiness(proxy *envoy.Process, workload *sds.Workload) func(context.Context) error {
	return func(ctx context.Context) error {
		identity := workload.Current()
		switch {
		case identity == nil:
			return errors.New("the workload has no certificate yet: the certificate authority has not signed one; see the agent's log")
		case workload.Certificate() == nil:
			return fmt.Errorf("the workload's certificate ran out at %s and could not be renewed; see the agent's log", identity.NotAfter.UTC().Format(time.RFC3339))
		}
		return proxy.Ready(ctx)
	}
}

// certSigner is the name of the signer that the node metadata asks for.
func certSigner(m *node.Metadata) string {
	name, _ := m.Raw["CERT_SIGNER"].(string)
	return name
}

// tuneRuntime trades a little CPU for memory: the agent allocates little, and
// there is one beside every application. GOGC, GOMAXPROCS and GOMEMLIMIT win.
func tuneRuntime(env environment) {
	if env.goTuned {
		return
	}
	debug.SetGCPercent(50)
	// One relay and few probes keep one processor busy at most; more of them
	// cost memory and wake-ups.
	runtime.GOMAXPROCS(1)
	// Above this, what a large configuration left behind goes back to the
	// system at once.
	debug.SetMemoryLimit(32 << 20)
}

// startOver is when what the start needed is not needed any more.
const startOver = 1500 * time.Millisecond

// giveBackMemory gives the system what the start left free. Go would do so by
// and by, or never in an agent that allocates next to nothing.
func giveBackMemory(ctx context.Context) {
	t := time.NewTimer(startOver)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
		debug.FreeOSMemory()
	}
}

// logConfig logs what the agent runs by, without anything that may be secret.
func logConfig(log *slog.Logger, cfg *config) {
	log.Info("configuration resolved", "proxy", cfg.node.String(), "identity", cfg.identity.String(),
		"address", cfg.xds.address, "path", cfg.proxyConfig.GetBinaryPath(), "version", version)
	log.Info("proxy configuration in force", "resource", redacted(cfg))
}

// redacted is the ProxyConfig as JSON without values that may be secret.
func redacted(cfg *config) string {
	var fields map[string]any
	if err := json.Unmarshal(cfg.metadata.ProxyConfig, &fields); err != nil {
		return ""
	}
	if values, ok := fields["proxyMetadata"].(map[string]any); ok {
		fields["proxyMetadata"] = slices.Sorted(maps.Keys(values))
	}
	delete(fields, "tracing") // may hold an access token
	delete(fields, "caCertificatesPem")
	doc, err := json.Marshal(fields)
	if err != nil {
		return ""
	}
	return string(doc)
}
