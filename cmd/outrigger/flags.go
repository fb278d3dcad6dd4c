// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/mesh"
)

const upLong = `Run a mesh on this machine: one control plane, and for each workload of the mesh
file its application, an agent and an Envoy on a loopback address of its own.
No root, no container, no network is needed.

The mesh file is checked first, and all problems are listed, such as an unknown
field, a missing command or a port in use. Then everything starts, a table shows the
processes, and the output of the workloads follows. Processes that exit are
restarted. Ctrl-C stops everything and removes temporary files; a second Ctrl-C does
so at once.

Envoy 1.36 or newer is taken from --envoy, ENVOY, the directory of this program
(where make envoy puts it) or PATH, in this order.`

const upExample = `  outrigger up -f examples/shop/mesh.yaml
  outrigger up -f mesh.yaml --verbose
  outrigger up -f mesh.yaml --state-dir ./state   # keep logs, CA and configuration
  ENVOY=/usr/local/bin/envoy outrigger up -f mesh.yaml`

func newUpCommand(env environment, kill <-chan struct{}) *cobra.Command {
	cfg := mesh.Config{Environ: env.all, Kill: kill}
	host := mesh.Host{EnvoyVariable: env.envoy, Dumb: env.dumb, NoColor: env.noColor}
	cmd := &cobra.Command{
		Use:     "up -f mesh.yaml",
		Short:   "Run a mesh on this machine",
		Long:    upLong,
		Example: upExample,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			host.Out = cmd.OutOrStdout()
			return mesh.Up(cmd.Context(), cfg, host)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVarP(&cfg.File, "file", "f", "mesh.yaml", "the mesh file")
	flags.StringVar(&cfg.StateDir, "state-dir", "", "keep the state here (default: a temporary directory, removed at the end)")
	flags.StringVar(&host.EnvoyFlag, "envoy", "", "the Envoy to run")
	flags.BoolVar(&host.AllowUnsafeEnvoy, "allow-unsafe-envoy", env.allowUnsafeEnvoy, "run an Envoy with known bypasses of authorization policies")
	flags.DurationVar(&cfg.Timeout, "timeout", time.Minute, "how long the start may take")
	flags.BoolVarP(&cfg.Verbose, "verbose", "v", false, "show all output of agents, Envoys and the control plane, not only warnings and errors")
	return cmd
}
