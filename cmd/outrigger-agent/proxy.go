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
)

const proxyLong = `proxy runs the agent and its Envoy until SIGTERM or SIGINT. Then readiness goes off,
Envoy drains for terminationDrainDuration of ProxyConfig, and both end with code 0. A
second signal ends them at once, and so does the first one after POST /drain of the
status port has drained. When Envoy ends by itself, the agent says why and ends with
code 1; other errors end with 255. With --envoy-restart=N/duration a crashed Envoy is
started again instead, up to N times in any such duration. With --hot-restart, SIGHUP
or another Envoy binary has a new Envoy take over from the old one without a failed
request.

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
		// For completion only: parseRole says what is wrong with others.
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
				log.Warn("an unknown flag is ignored", "name", flag)
			}
			for _, flag := range f.deprecated {
				log.Warn("a deprecated flag is used; see --help for its successor", "name", flag)
			}
			for _, flag := range f.ineffects {
				log.Warn("a flag is accepted but has no effect", "name", flag)
			}
			return logs.Report(log, runProxy(cmd.Context(), log, proxyRun{args: args, flags: f, jsonLog: logs.JSON, process: p}))
		},
	}
	f.add(cmd.Flags())
	return cmd
}

// proxyRun is what one run of the proxy command is asked to do.
type proxyRun struct {
	args    []string
	flags   proxyFlags
	jsonLog bool
	process process
}

// runProxy runs the agent as flags and environment say.
func runProxy(ctx context.Context, log *slog.Logger, r proxyRun) error {
	role, err := parseRole(r.args)
	if err != nil {
		return err
	}
	if err := r.flags.check(); err != nil {
		return err
	}
	if r.flags.HotRestart {
		// One that comes before there is an Envoy must not end the agent.
		early := make(chan os.Signal, 1)
		signal.Notify(early, syscall.SIGHUP)
		defer signal.Stop(early)
	}
	values, warnings := environ.Read(r.process.environ)
	for _, warning := range warnings {
		log.Warn("the configuration holds something that is not used", "reason", warning)
	}
	if !values.GoTuned {
		agent.TuneRuntime()
	}
	a, err := agent.New(ctx, agent.Config{
		Role: role, Flags: r.flags.Flags, Environ: values, JSONLog: r.jsonLog, Version: version, Logger: log, Now: r.process.now,
	})
	if err != nil {
		return err
	}
	return a.Run(ctx)
}

// parseRole reads the role. What stands behind it is ignored, as pilot-agent
// does.
func parseRole(args []string) (string, error) {
	if len(args) == 0 {
		return node.Sidecar, nil
	}
	switch role := args[0]; role {
	case node.Sidecar, node.Router, node.Waypoint:
		return role, nil
	case node.Ztunnel:
		return "", fmt.Errorf("role %q: it has a program of its own, which needs no Envoy; use sidecar, router or waypoint", role)
	default:
		return "", errors.New("role \"" + role + "\" is unknown, use sidecar, router or waypoint")
	}
}
