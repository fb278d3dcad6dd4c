// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package agent

import (
	"context"
	"log/slog"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/outrigger-mesh/outrigger/agent/environ"
	"github.com/outrigger-mesh/outrigger/bootstrap/platform"
	"github.com/outrigger-mesh/outrigger/envoy"
)

// Config is what a command line and an environment ask of the agent.
type Config struct {
	Role    string // node.Sidecar, node.Router or node.Waypoint
	Flags   Flags
	Environ environ.Values
	// JSONLog makes Envoy's log JSON.
	JSONLog bool
	// Version is that of the program, for the log and the debug pages.
	Version string
	Logger  *slog.Logger
	// Now is closed to end without draining.
	Now <-chan struct{}
}

// Flags are the flags of the proxy command that the agent runs by.
type Flags struct {
	Domain            string // DNS domain; empty: that of the namespace
	MeshConfig        string // file, which may be missing
	ProxyLogLevel     string // of Envoy, and component:level
	ComponentLogLevel string // of Envoy's components
	OutlierLogPath    string
	TemplateFile      string // template of the bootstrap
	ServiceCluster    string
	Concurrency       int // worker threads of Envoy; 0: as ProxyConfig says
	Profiling         bool
	Restart           envoy.Restart // how often a crashed Envoy is started again
	MaxDrain          time.Duration // longest drain with EXIT_ON_ZERO_ACTIVE_CONNECTIONS
	HotRestart        bool          // a new Envoy takes over from the one that runs
}

// Agent is the node agent.
type Agent struct {
	settings *settings
	log      *slog.Logger
}

// New resolves the configuration. It starts nothing and binds nothing, but asks
// for the machine's cloud and the address of statsd, until ctx is done.
func New(ctx context.Context, c Config) (*Agent, error) {
	cfg, warnings, err := resolve(ctx, sources{
		Config: c, read: os.ReadFile, addresses: hostAddresses, lookup: net.DefaultResolver.LookupHost, platform: detector(ctx, c.Environ.Cloud, c.Logger),
	})
	for _, warning := range warnings {
		c.Logger.Warn("the configuration holds something that is not used", "reason", warning)
	}
	if err != nil {
		return nil, err
	}
	c.Logger.Info("configuration resolved", "proxy", cfg.node.String(), "identity", cfg.identity.String(),
		"address", cfg.xds.address, "path", cfg.proxyConfig.GetBinaryPath(), "version", c.Version)
	c.Logger.Info("proxy configuration in force", "resource", redacted(cfg))
	return &Agent{settings: cfg, log: c.Logger}, nil
}

// detector finds the cloud. What its metadata service does not answer in time is
// left out.
func detector(ctx context.Context, cloud environ.Cloud, log *slog.Logger) func(bool) platform.Result {
	return func(ipv6 bool) platform.Result {
		// The error is that of ctx: the start ends anyway.
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

// Run binds what the agent listens on, builds its parts and runs them until ctx
// is done or a part ends. Envoy drains before Run returns.
func (a *Agent) Run(ctx context.Context) error {
	if ctx.Err() != nil {
		return nil // the end came before the start
	}
	cfg := a.settings
	ctx, quit := context.WithCancel(ctx)
	defer quit()
	socks, err := bind(ctx, cfg)
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
	return parts.run(ctx, a.log)
}

// TuneRuntime has the process trade a little CPU for memory: the agent allocates
// little, and there is one beside every application. Run limits its memory. A program that honors GOGC,
// GOMAXPROCS and GOMEMLIMIT does not call it when one of them is set.
func TuneRuntime() {
	debug.SetGCPercent(50)
	// One relay and few probes keep one processor busy at most; more of them
	// cost memory and wake-ups.
	runtime.GOMAXPROCS(1)
}
