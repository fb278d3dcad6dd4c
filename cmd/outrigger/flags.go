// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/controlplane/inject"
	"github.com/outrigger-mesh/outrigger/internal/columns"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/tool/objects"
)

const upLong = `Run a mesh on this machine: one control plane, and for each workload of the mesh
file its application, an agent and an Envoy on a loopback address of its own.
No root, no container, no network is needed. As root, each workload has a network
namespace, whose connections are redirected to its Envoy; --isolate=none turns this
off. The network of the machine is not changed.

The mesh file is checked first, and all problems are listed, such as an unknown
field, a missing command or a port in use. Then everything starts, a table shows the
processes, and the output of the workloads follows. Processes that exit are
restarted. Ctrl-C stops everything and removes temporary files; a second Ctrl-C does
so at once.

What goes wrong, and what is resolved, is said once, with the file and the line:
findings of outrigger analyze, configuration that an Envoy refuses, certificates that
are not renewed, services whose requests fail. On a terminal the last lines show
requests a second, success and latency of each service, and what is wrong now.

Envoy 1.36 or newer is taken from --envoy, ENVOY, the directory of this program
(where make envoy puts it) or PATH, in this order.`

const upExample = `  outrigger up -f examples/shop/mesh.yaml
  outrigger up -f mesh.yaml --open                # with the dashboard
  outrigger up -f mesh.yaml --verbose
  outrigger up -f mesh.yaml --state-dir ./state   # keep logs, CA and objects
  sudo outrigger up -f mesh.yaml --isolate=netns  # redirect all connections
  ENVOY=/usr/local/bin/envoy outrigger up -f mesh.yaml`

func newUpCommand(env environment, kill <-chan struct{}, observe func(mesh.Watched) mesh.Observer) *cobra.Command {
	cfg := mesh.Config{Environ: env.all, Kill: kill, Observe: observe}
	host := mesh.Host{EnvoyVariable: env.envoy, Dumb: env.dumb, NoColor: env.noColor}
	cmd := &cobra.Command{
		Use:     "up -f mesh.yaml",
		Short:   "Run a mesh on this machine",
		Long:    upLong,
		Example: upExample,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			host.Out = columns.Raw(cmd.OutOrStdout()) // it knows the terminal itself
			return mesh.Up(cmd.Context(), cfg, host)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVarP(&cfg.File, "file", "f", "mesh.yaml", "the mesh file")
	flags.StringVar(&host.Isolate, "isolate", mesh.IsolateAuto, "how workloads are separated: netns, none, or auto, which is netns for root")
	flags.StringVar(&cfg.StateDir, "state-dir", "", "keep the state here (default: a temporary directory, removed at the end)")
	flags.BoolVar(&cfg.Open, "open", false, "open the dashboard in the browser, or print its address")
	flags.StringVar(&host.EnvoyFlag, "envoy", "", "the Envoy to run")
	flags.BoolVar(&host.AllowUnsafeEnvoy, "allow-unsafe-envoy", env.allowUnsafeEnvoy, "run an Envoy with known bypasses of authorization policies")
	flags.DurationVar(&cfg.Timeout, "timeout", time.Minute, "how long the start may take")
	flags.BoolVarP(&cfg.Verbose, "verbose", "v", false, "show all output of agents, Envoys and the control plane, not only warnings and errors")
	return cmd
}

const injectLong = `Add proxies to the pods of the objects of a file: Pods, Deployments and other objects
with a template of a pod, and Lists of them. All other documents are printed as they are.
This is what the control plane does to the pods of labeled namespaces; no cluster is
asked. Objects that receive no proxy are named on standard error, with the reason.`

const injectExample = `  outrigger inject -f shop.yaml | kubectl apply -f -
  kubectl get deploy web -o yaml | outrigger inject -f - | kubectl apply -f -
  outrigger inject -f shop.yaml --values values.yaml --config templates.yaml`

func newInjectCommand() *cobra.Command {
	var file, config, values, mesh, namespace string
	in := inject.Injector{}
	cmd := &cobra.Command{
		Use:     "inject -f FILE",
		Short:   "Add proxies to the pods of a file",
		Long:    injectLong,
		Example: injectExample,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if err := in.ReadFiles(config, values, mesh, version); err != nil {
				return objects.Unreadable(err)
			}
			var from io.Reader = cmd.InOrStdin()
			if file != "-" {
				opened, err := os.Open(file)
				if err != nil {
					return objects.Unreadable(err)
				}
				defer func() { _ = opened.Close() }() // only read
				from = opened
			}
			return in.File(from, columns.Raw(cmd.OutOrStdout()), namespace, func(line string) { cmd.PrintErrln(line) })
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVarP(&file, "filename", "f", "-", "file with objects; - reads the standard input")
	flags.StringVarP(&namespace, "namespace", "n", "", "namespace of objects that name none")
	flags.StringVar(&config, "config", "", "file with policy and templates, as in the key config of the ConfigMap istio-sidecar-injector")
	flags.StringVar(&values, "values", "", "file with values, as in its key values")
	flags.StringVar(&mesh, "mesh-config", "", "file with the mesh config")
	flags.StringVar(&in.Revision, "revision", "", "revision of the control plane")
	flags.BoolVar(&in.Native, "native-sidecars", true, "run proxies as native sidecars")
	return cmd
}
