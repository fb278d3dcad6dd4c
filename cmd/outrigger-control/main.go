// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/controlplane/server"
	"github.com/outrigger-mesh/outrigger/internal/collateral"
)

// version is set by the linker; see the Makefile.
var version = "dev"

func main() {
	os.Exit(run(os.Args[1:]))
}

// run executes the command line and returns the exit code: 255 after an error,
// as pilot-discovery does.
func run(args []string) int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	hurry := make(chan struct{})
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go obey(signals, cancel, func() { close(hurry) }, func() { signal.Stop(signals) })
	root := newRootCommand(hurry)
	root.SetArgs(args)
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "outrigger-control:", err)
		return 255
	}
	return 0
}

// duplicateSignal is the interval in which a second signal counts as a duplicate: programs such as
// timeout and sudo send a signal to a process and to its group.
const duplicateSignal = 100 * time.Millisecond

// obey calls stop after the first signal, and hurry after the second one. After it has called
// release, another signal ends the process.
func obey(signals <-chan os.Signal, stop, hurry, release func()) {
	<-signals
	stop()
	for began := time.Now(); time.Since(began) < duplicateSignal; {
		<-signals
	}
	hurry()
	release()
}

// newRootCommand returns the command line. A closed hurry ends the wait before the shutdown.
func newRootCommand(hurry <-chan struct{}) *cobra.Command {
	root := &cobra.Command{
		Use:   "outrigger-control",
		Short: "The control plane of a service mesh with stock Envoy",
		Long: "outrigger-control reads the configuration of the mesh, serves it to the proxies and signs their\n" +
			"certificates. It replaces Istio's pilot-discovery: flags, environment, ports and protocols are the same.",
		Example: "  outrigger-control discovery --configDir ./config --registries \"\"\n" +
			"  outrigger-control version",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.AddCommand(newDiscoveryCommand(hurry), collateral.New())
	collateral.AddBuildVersion(root, version)
	return root
}

func newDiscoveryCommand(hurry <-chan struct{}) *cobra.Command {
	var f flags
	env := environment{Config: server.Config{Version: version, Hurry: hurry}}
	cmd := &cobra.Command{
		Use:   "discovery",
		Short: "Serve the mesh",
		Args:  cobra.NoArgs,
		Example: "  # configuration from a directory of Istio YAML, watched\n" +
			"  outrigger-control discovery --configDir ./config --registries \"\"\n\n" +
			"  # TLS on one address, no plaintext port\n" +
			"  outrigger-control discovery --configDir ./config --grpcAddr \"\" --secureGRPCAddr 127.1.0.1:15012\n\n" +
			"  # identity from a Kubernetes cluster: its tokens, the root in a Secret, the roots in each namespace\n" +
			"  outrigger-control discovery --configDir ./config --kubeconfig ./kubeconfig",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := env.read(); err != nil {
				return err
			}
			f.resolve(cmd.Flags(), &env.Config)
			tuneRuntime(env.gogc)
			log, err := f.logger()
			if err != nil {
				return err
			}
			for _, name := range f.ineffects {
				log.Warn("flag of pilot-discovery has no effect", "component", "control", "name", name)
			}
			srv, err := server.New(cmd.Context(), env.Config, log)
			if err != nil {
				return err
			}
			return srv.Run(cmd.Context())
		},
	}
	f.add(cmd.Flags(), &env.Config)
	return cmd
}

// tuneRuntime saves memory for a little CPU: the heap of the control plane is mostly
// long-lived, and the garbage of a push is short-lived. GOGC overrides it.
func tuneRuntime(gogc string) {
	if gogc == "" {
		debug.SetGCPercent(60)
	}
}
