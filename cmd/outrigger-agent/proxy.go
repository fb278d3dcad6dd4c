// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/agent"
	"github.com/outrigger-mesh/outrigger/agent/environ"
	"github.com/outrigger-mesh/outrigger/agent/logging"
	"github.com/outrigger-mesh/outrigger/bootstrap/node"
	"github.com/outrigger-mesh/outrigger/envoy/capture"
)

const proxyLong = `proxy runs the agent and its Envoy until SIGTERM or SIGINT. It then fails readiness
probes, drains Envoy for terminationDrainDuration of ProxyConfig, and exits with code
0. A second signal stops both at once, and so does the first one if POST /drain of the
status port has drained Envoy before. If Envoy exits unexpectedly, the agent logs why
and exits with code 1; after other errors it exits with 255. With
--envoy-restart=N/duration it restarts a crashed Envoy instead, up to N times in any
such duration. With --hot-restart, a new Envoy replaces the running one without failed
requests on SIGHUP and when the Envoy binary changes. If the file of this program was
replaced, SIGHUP first replaces the agent.

The role is sidecar (the default), router, or waypoint. The configuration comes from flags, the
pod's annotations, the environment (docs/reference/env-agent.md) and the mesh config file, in
this order.`

// proxyName is the name of the command.
const proxyName = "proxy"

func newProxyCommand(p process, logs *logging.Flags) *cobra.Command {
	var f proxyFlags
	cmd := &cobra.Command{
		Use:   proxyName + " [sidecar|router|waypoint]",
		Short: "Run the agent and its Envoy",
		Long:  proxyLong,
		// For completion only: parseRole rejects other roles.
		ValidArgs: []string{node.Sidecar, node.Router, node.Waypoint},
		Example: "  # in a pod, as the entrypoint of the istio-proxy container\n" +
			"  outrigger-agent proxy sidecar --domain default.svc.cluster.local\n\n" +
			"  # a gateway with a mesh config file\n" +
			"  outrigger-agent proxy router --meshConfig ./etc/istio/config/mesh",
		RunE: func(cmd *cobra.Command, args []string) error {
			log, err := logs.Logger()
			if err != nil {
				return err
			}
			f.note(cmd.Flags())
			for _, flag := range p.dropped {
				log.Warn("unknown flag ignored", "name", flag)
			}
			for _, flag := range f.deprecated {
				log.Warn("deprecated flag; see --help for its replacement", "name", flag)
			}
			for _, flag := range f.ineffects {
				log.Warn("flag has no effect", "name", flag)
			}
			return logs.Report(log, runProxy(cmd.Context(), log, proxyRun{args: args, flags: f, logs: logs, process: p}))
		},
	}
	f.add(cmd.Flags())
	return cmd
}

// newHandoverCommand returns the command that an agent runs before this program replaces it.
func newHandoverCommand() *cobra.Command {
	return &cobra.Command{
		Use: agent.HandoverCommand, Short: "Print the version of the handover between agents", Args: cobra.NoArgs, Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), agent.HandoverVersion)
			return err
		},
	}
}

// proxyRun are the inputs of one run of the proxy command.
type proxyRun struct {
	args    []string
	flags   proxyFlags
	logs    *logging.Flags
	process process
}

// runProxy runs the agent with the settings of flags and environment.
func runProxy(ctx context.Context, log *slog.Logger, r proxyRun) error {
	role, err := parseRole(r.args)
	if err != nil {
		return err
	}
	if err := r.flags.check(); err != nil {
		return err
	}
	if r.flags.HotRestart {
		// A SIGHUP before Envoy has started must not end the agent.
		early := make(chan os.Signal, 1)
		signal.Notify(early, syscall.SIGHUP)
		defer signal.Stop(early)
	}
	values, warnings := environ.Read(r.process.environ)
	for _, warning := range warnings {
		log.Warn("unused setting in the configuration", "reason", warning)
	}
	if !values.GoTuned {
		agent.TuneRuntime()
	}
	if err := checkCapture(ctx, log, role, values, r.process.environ); err != nil {
		return err
	}
	a, err := agent.New(ctx, agent.Config{
		Role: role, Flags: r.flags.Flags, Environ: values, Process: r.process.environ, JSONLog: r.logs.JSON, Version: version, Logger: log, LogLevels: r.logs.Levels(), Now: r.process.now,
	})
	if err != nil {
		return err
	}
	return a.Run(ctx)
}

// checkCapture checks that connections are redirected to Envoy, where the interception mode says so.
func checkCapture(ctx context.Context, log *slog.Logger, role string, values environ.Values, environ []string) error {
	mode := values.Metadata["ISTIO_META_INTERCEPTION_MODE"]
	if mode == "" && values.RequireInterception {
		mode = "REDIRECT" // the default
	}
	if role != node.Sidecar || values.Envoy.Disabled || values.BindAddress != "" || mode != "REDIRECT" && mode != "TPROXY" {
		return nil
	}
	err := capture.Check(ctx, environ)
	switch {
	case err != nil && values.RequireInterception:
		return fmt.Errorf("OUTRIGGER_REQUIRE_INTERCEPTION is set: %w", err)
	case errors.Is(err, capture.ErrNotCaptured):
		log.Warn("interception is missing; OUTRIGGER_REQUIRE_INTERCEPTION=true makes this an error", "err", err)
	}
	return nil
}

// parseRole returns the role. Like pilot-agent, it ignores further arguments.
func parseRole(args []string) (string, error) {
	if len(args) == 0 {
		return node.Sidecar, nil
	}
	switch role := args[0]; role {
	case node.Sidecar, node.Router, node.Waypoint:
		return role, nil
	case node.Ztunnel:
		return "", fmt.Errorf("role %q: this role has a separate program without Envoy; use sidecar, router or waypoint", role)
	default:
		return "", errors.New("role \"" + role + "\" is unknown: use sidecar, router or waypoint")
	}
}
