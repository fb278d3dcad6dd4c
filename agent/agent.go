// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package agent

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/outrigger-mesh/outrigger/agent/environ"
	"github.com/outrigger-mesh/outrigger/bootstrap/platform"
	"github.com/outrigger-mesh/outrigger/envoy"
)

// Config are the settings of a command line and an environment.
type Config struct {
	Role    string // node.Sidecar, node.Router or node.Waypoint
	Flags   Flags
	Environ environ.Values
	// Process is the environment of the process, for an agent that replaces this one.
	Process []string
	// JSONLog makes Envoy's log JSON.
	JSONLog bool
	// Version is the version of the program, for the log and the debug pages.
	Version string
	Logger  *slog.Logger
	// LogLevels are the levels of Logger, which /debug/logging changes. It may be nil.
	LogLevels http.Handler
	// Now is closed to stop without draining.
	Now <-chan struct{}
}

// Flags are the flags of the proxy command that configure the agent.
type Flags struct {
	Domain            string // DNS domain; "" means that of the namespace
	MeshConfig        string // file, which may be missing
	ProxyLogLevel     string // level of Envoy, and component:level
	ComponentLogLevel string // levels of Envoy's components
	OutlierLogPath    string
	TemplateFile      string // template of the bootstrap
	ServiceCluster    string
	Concurrency       int // worker threads of Envoy; 0 means those of ProxyConfig
	Profiling         bool
	Restart           envoy.Restart // how often to restart a crashed Envoy
	MaxDrain          time.Duration // longest drain with EXIT_ON_ZERO_ACTIVE_CONNECTIONS
	AllowUnsafeEnvoy  bool          // allows an Envoy with known bypasses of authorization
	HotRestart        bool          // enables hot restarts
}

// Agent is the node agent.
type Agent struct {
	settings *settings
	process  []string // Config.Process
	log      *slog.Logger
}

// New resolves the configuration. It starts and binds nothing, but detects the
// machine's cloud, looks up the address of statsd, and waits for an address of a network
// interface if none has one, until ctx is done.
func New(ctx context.Context, c Config) (*Agent, error) {
	interfaces := hostInterfaces
	if c.Environ.Workload.InstanceIP == "" {
		interfaces = awaitAddress(ctx, c.Logger, hostInterfaces)
	}
	cfg, warnings, err := resolve(ctx, sources{
		Config: c, read: os.ReadFile, interfaces: interfaces, lookup: net.DefaultResolver.LookupHost, platform: detector(ctx, c.Environ.Cloud, c.Logger),
	})
	for _, warning := range warnings {
		c.Logger.Warn("unused setting in the configuration", "reason", warning)
	}
	if err != nil {
		return nil, err
	}
	c.Logger.Info("configuration resolved", "proxy", cfg.node.String(), "identity", cfg.identity.String(),
		"address", cfg.xds.address, "path", cfg.proxyConfig.GetBinaryPath(), "version", c.Version)
	c.Logger.Info("proxy configuration in force", "resource", redacted(cfg))
	return &Agent{settings: cfg, process: c.Process, log: c.Logger}, nil
}

// detector returns a function that detects the cloud. Metadata that its service does
// not return in time is left out.
func detector(ctx context.Context, cloud environ.Cloud, log *slog.Logger) func(bool) platform.Result {
	return func(ipv6 bool) platform.Result {
		// The error is that of ctx, which ends the start anyway.
		result, _ := platform.Detect(ctx, platform.Config{
			Platform: cloud.Platform, IPv6: ipv6, Logger: log.With("component", "platform"),
			Env: platform.Env{
				GCPMetadata: cloud.GCPMetadata, GCEMetadataHost: cloud.GCEMetadataHost,
				GKEClusterURL: cloud.GKEClusterURL, GCPQuotaProject: cloud.GCPQuotaProject,
			},
		})
		return result
	}
}

// Run binds the sockets of the agent, builds its components and runs them until ctx
// is done or a component stops. Envoy drains before Run returns. Run does not return if another
// agent replaces this one.
func (a *Agent) Run(ctx context.Context) error {
	if ctx.Err() != nil {
		return nil // stopped before the start
	}
	cfg := a.settings
	ctx, quit := context.WithCancel(ctx)
	defer quit()
	socks, err := bind(ctx, cfg, a.log)
	if err != nil && ctx.Err() != nil {
		return nil // stopped during the start
	}
	if err != nil {
		return err
	}
	defer socks.close()
	removeBootstrap, err := writeBootstrap(cfg)
	if err != nil {
		return err
	}
	defer removeBootstrap()
	b := &builder{cfg: cfg, socks: socks, log: a.log, quit: quit}
	parts, err := b.build(ctx)
	if err != nil {
		return err
	}
	if err := writeGRPCBootstrap(cfg, a.log); err != nil {
		return err
	}
	if err := parts.run(ctx, a.log); !errors.Is(err, envoy.ErrHandedOver) {
		return err
	}
	return parts.exec(ctx, a.log, a.process)
}

// TuneRuntime makes the process save memory for a little CPU: the agent allocates
// little, and every application has one. Run limits its memory. A program that honors
// GOGC, GOMAXPROCS and GOMEMLIMIT does not call it if one of them is set.
func TuneRuntime() {
	debug.SetGCPercent(50)
	// One relay and few probes use at most one processor; more processors cost
	// memory and wake-ups.
	runtime.GOMAXPROCS(1)
}
